"""Figures of saving, crashing and starting again from a run's own segments: counted and averaged, nothing assumed.

Invariant: a pure function of the manifest's state; what was never measured is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from storage.runs.run_state import RunState, SegmentRecord


@dataclass(frozen=True)
class RunFigures:
    """Times in seconds. `seconds` is all that the segments lasted; the last three are what of it went where.

    `durable_seconds` begin after the stall of a save.
    """

    num_segments: int
    seconds: float
    world_size: int
    num_crashes: int
    num_notices: int
    num_saves: int
    stall_seconds: float | None
    durable_seconds: float | None
    num_restarts: int
    restart_seconds: float | None
    step_seconds: float | None
    checkpoint_bytes: int | None
    spent_stalled: float
    spent_restarting: float
    spent_on_lost_steps: float | None


def read_figures(state: RunState) -> RunFigures:
    """The figures of all segments that ended; of one that is under way nothing is known yet."""
    segments = state.segments
    saves = [segment.saves for segment in segments if segment.saves is not None and segment.saves.count]
    num_saves = sum(save.count for save in saves)
    restarts = [_restart_seconds(s) for s in segments if "restore" in s.phases and s.first_step > 0 and _had_started(s)]
    starts = restarts or [_restart_seconds(s) for s in segments if "start" in s.phases and _had_started(s)]
    step_seconds = _step_seconds(segments)
    lost_steps = sum(segment.steps_lost for segment in segments)
    stalled = sum(save.stall_seconds for save in saves)
    durable = sum(save.durable_seconds for save in saves)  # from the beginning of each save: its stall is part of it
    return RunFigures(
        num_segments=len(segments),
        seconds=sum(segment.seconds for segment in segments),
        world_size=segments[-1].world_size if segments else 1,
        num_crashes=sum(_is_crash(segment) for segment in segments),
        num_notices=sum(segment.outcome == "preempted" and not _is_crash(segment) for segment in segments),
        num_saves=num_saves,
        stall_seconds=stalled / num_saves if num_saves else None,
        durable_seconds=max(0.0, durable - stalled) / num_saves if num_saves else None,
        num_restarts=len(restarts),
        restart_seconds=sum(starts) / len(starts) if starts else None,
        step_seconds=step_seconds,
        checkpoint_bytes=state.promoted.num_bytes if state.promoted else saves[-1].num_bytes if saves else None,
        spent_stalled=stalled,
        spent_restarting=sum(restarts),
        spent_on_lost_steps=None if step_seconds is None else lost_steps * step_seconds,
    )


def _is_crash(segment: SegmentRecord) -> bool:
    """Whether it ended by chance and without notice. A mistake of the user's or a diverged loss is no chance.

    Ranks whose supervisor was killed had the time to save; what killed it may as well kill them the next time.
    """
    died = segment.outcome in ("lost", "failed") and not segment.is_final
    return died or segment.is_abandoned or (segment.outcome == "preempted" and segment.steps_lost > 0)


def _had_started(segment: SegmentRecord) -> bool:
    """Whether its restart is whole: one that was lost may have been killed in the middle of it."""
    return segment.outcome != "lost" or "train" in segment.phases


def _restart_seconds(segment: SegmentRecord) -> float:
    return segment.phases.get("start", 0.0) + segment.phases.get("restore", 0.0)


def _step_seconds(segments: Sequence[SegmentRecord]) -> float | None:
    """Of one step on the newest number of ranks, of which it depends."""
    trained = [s for s in segments if s.phases.get("train", 0.0) > 0 and s.last_step > s.first_step]
    newest = [segment for segment in trained if segment.world_size == trained[-1].world_size]
    if not newest:
        return None
    return sum(s.phases["train"] for s in newest) / sum(s.last_step - s.first_step for s in newest)
