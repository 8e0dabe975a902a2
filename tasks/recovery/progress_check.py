"""Whether a run may simply go on after a segment, or a person has to know first.

Invariant: decided from how the segment ended and where the run stands; so every process decides alike.
"""

from storage.errors import ConfigurationError, SegmentFailedError
from storage.runs.run_state import RunState, SegmentRecord
from tasks.configuration.run import RunConfig


def require_progress(config: RunConfig, record: SegmentRecord, state: RunState) -> None:
    """Raise unless the run may simply go on: `SegmentFailedError` where trying again may help, others where not.

    A segment that died but left a newer resume point than it began with has got on: machines die every day in a run of
    days, and retries are counted for those that do not get on. One that diverged was rolled back, or `recover` raised.
    """
    what = f"Segment {record.fence} of run {config.run!r}"
    if record.is_final:
        raise ConfigurationError(f"{what} could not run: {record.cause}")
    got_on = state.promoted is not None and state.promoted.step > record.first_step
    # The checkpoint that it could not read was taken out of use: the next one begins with another, and there are few.
    fell_back = record.last_step == record.first_step > (state.promoted.step if state.promoted else 0)
    if record.outcome in ("failed", "lost") and not (got_on or fell_back):
        raise SegmentFailedError(f"{what} ended as {record.outcome}: {record.cause}")
    if record.outcome == "completed" and not state.is_trained:
        reasons = [damaged.reason for damaged in state.quarantined if damaged.step == record.last_step]
        raise SegmentFailedError(
            f"{what} came to the end of training, but its checkpoint was rejected: {' '.join(reasons)}"
        )
    if record.outcome == "budget" and record.last_step == record.first_step:
        raise ConfigurationError(
            f"{what} used up its time budget, segment.seconds = {config.segment.seconds:g}, before its first step. "
            "Set a larger segment.seconds."
        )
