"""`make bench-goodput`: the goodput of a day in which a run is killed 24 times, and where the rest of the day went.

What is real: a Prefect server, `holdfast run` as a process of its own with all its flow runs, checkpoints in a folder,
SIGKILL of the whole tree of processes at the moments of a seeded draw, and at once a new process, which settles,
restores and goes on. How often the run saves is what `holdfast advise` says from a first run, for as many kills a day.

A day cannot be waited for, and nearly all of it is alike: between two kills one save follows on the other at a fixed
interval. So after each start the run really trains until a checkpoint of its own is promoted, then up to the very point
between two saves at which the day has the kill; the whole intervals in between are left out. Those are added to the
run's records, with the steps, the stall of a save and the validations that were measured. From there on the report's
own code counts (`tasks.reporting.goodput`), and what it finds must be the 86,400 seconds of this program's own
clock, to the second. The machine is there again at once: how long a day's machines stay away is not the program's
doing. The last line is for machines: `name=value` pairs.
"""

import argparse
import itertools
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState, SegmentRecord
from tasks.corpora.generate import generate_corpus
from tasks.reporting.goodput import PART_NAMES, TimeSpent, sum_up_time
from tests.helpers.commands import Runner, StartedCommand, kill_everything, wait_until
from tests.helpers.operators import CONFIGURATION, ENDLESS
from tests.helpers.prefect_server import running_prefect_server

DAY_SECONDS = 86_400.0
KILLS, SEED = 24, 13
CORPUS_ROWS = 600
VALIDATE_STEPS = 1000
# Of the first run, which measures what a save costs: so many seconds between two saves, until it is asked to stop.
FIRST_EVERY_SECONDS, FIRST_SECONDS = 3.0, 40.0


@dataclass(frozen=True)
class Interval:
    """From one save to the next: what of its seconds training and validations had, and what the stall of the save."""

    seconds: float
    stall_seconds: float
    validating_share: float  # of the time beside stalls

    def phases_of(self, seconds: float) -> dict[str, float]:
        """Of so many seconds of such intervals."""
        saving = seconds / self.seconds * self.stall_seconds
        validating = (seconds - saving) * self.validating_share
        return {"train": seconds - saving - validating, "validate": validating, "save": saving}


def main() -> None:
    """Live the day, print where its time went."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=KILLS, help="in the day; with fewer the benchmark is shorter")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", type=Path, help="where the store is put; the default is TMPDIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name, running_prefect_server(Path(name)) as server:
        folder = Path(name)
        generate_corpus(folder / "corpus", "policy", CORPUS_ROWS)
        (folder / "run.toml").write_text(CONFIGURATION)
        began = time.monotonic()
        interval = _measure_interval(_runner(folder, server, "first", FIRST_EVERY_SECONDS), options.kills)
        runner = _runner(folder, server, "day", interval.seconds)
        left_out = _live(runner, interval, _lengths(options.kills, options.seed))
        _require_intact(runner)
        state = _state(runner)
        waited = time.monotonic() - began
    day = sum_up_time(_stretched(state, left_out, interval))
    assert day is not None, "its segments have ended"
    unaccounted = DAY_SECONDS - day.total
    _show(day, interval, state, waited)
    print(
        f"goodput={day.goodput:.4f} kills={options.kills} lost_seconds={day.again:.1f} "
        f"unaccounted_seconds={unaccounted:.3f} every_seconds={interval.seconds:g} seed={options.seed}"
    )
    if abs(unaccounted) >= 1:
        raise SystemExit(f"The parts come to {day.total:,.1f} s, expected {DAY_SECONDS:,.0f} s")


def _runner(folder: Path, server: Mapping[str, str], run: str, every_seconds: float) -> Runner:
    settings = {
        "store": folder / "store",
        "run": run,
        "checkpoint__every_seconds": every_seconds,
        "checkpoint__every_steps": ENDLESS,
        "validation__every_steps": VALIDATE_STEPS,
    }
    return Runner(folder / "run.toml", settings, server)


def _measure_interval(runner: Runner, kills: int) -> Interval:
    """What `holdfast advise` says after a first run, and what that one measured."""
    with _started(runner) as process:
        _wait_until(lambda: _has_promoted(runner, 0), runner, process)
        time.sleep(FIRST_SECONDS)  # the saves of this time are what is measured
        process.send_signal(signal.SIGTERM)
        process.wait()
    advised = runner.call("advise", "--failures-per-day", str(kills), "--json")
    if advised.returncode:
        raise SystemExit(advised.stderr + runner.log.read_text())
    advice = json.loads(advised.stdout)
    (segment,) = _state(runner).segments
    validating, training = segment.phases.get("validate", 0.0), segment.phases["train"]
    return Interval(
        seconds=advice["recommended"]["every_seconds"],
        stall_seconds=advice["measured"]["stall_seconds"],
        validating_share=validating / (validating + training),
    )


def _lengths(kills: int, seed: int) -> list[float]:
    """Seconds from the run's beginning to the first kill, between kills, and from the last one to the day's end."""
    moments = np.sort(np.random.default_rng(seed).uniform(0, DAY_SECONDS, kills)).tolist()
    return [later - earlier for earlier, later in itertools.pairwise([0.0, *moments, DAY_SECONDS])]


def _live(runner: Runner, interval: Interval, lengths: Sequence[float]) -> dict[int, float]:
    """Train, killed after each of these seconds but the last; what was left out of each segment, by its fence."""
    *until_kills, until_end = lengths
    left_out: dict[int, float] = {}
    began_at: float | None = None
    for number, length in enumerate(until_kills, 1):
        with _started(runner) as process:
            began_at = began_at or _began_at(runner, process)
            kill_at, fence_before = began_at + length, max(left_out, default=0)
            num_left_out = _train_until(kill_at, fence_before, runner, process, interval.seconds)
            lease = _state(runner).lease
        began_at = time.time()
        if lease is not None and lease.fence > fence_before:
            left_out[lease.fence] = num_left_out * interval.seconds
        num_intervals = length / interval.seconds
        print(f"kill {number}: {num_left_out} of {num_intervals:,.1f} intervals were left out before it", flush=True)
    assert began_at is not None, "there is at least one kill"
    fence, seconds = _end_day(runner, began_at, max(left_out, default=0))
    return left_out | {fence: until_end - seconds}


@contextmanager
def _started(runner: Runner) -> Iterator[StartedCommand]:
    """The command, killed with all its processes where the block ends."""
    process = runner.start()
    try:
        yield process
    finally:
        kill_everything(process)


def _began_at(runner: Runner, process: StartedCommand) -> float:
    """When the run began, by its manifest: preparing the data comes before."""
    _wait_until(lambda: _manifest(runner).find_head() is not None, runner, process)
    return _state(runner).created_at


def _train_until(
    kill_at: float, fence_before: int, runner: Runner, process: StartedCommand, interval_seconds: float
) -> int:
    """Wait until a kill is due, but for as many whole intervals as lie before it once a checkpoint is promoted."""
    _wait_until(lambda: time.time() >= kill_at or _has_promoted(runner, fence_before), runner, process)
    num_left_out = max(0, floor((kill_at - time.time()) / interval_seconds))
    time.sleep(max(0.0, kill_at - num_left_out * interval_seconds - time.time()))  # up to the point of the interval
    return num_left_out


def _end_day(runner: Runner, began_at: float, fence_before: int) -> tuple[int, float]:
    """The last segment, which is asked to stop once it got on: its fence, and the seconds since the kill before it."""
    with _started(runner) as process:
        _wait_until(lambda: _has_promoted(runner, fence_before), runner, process)
        lease = _state(runner).lease
        assert lease is not None, "it trains"
        process.send_signal(signal.SIGTERM)
        _wait_until(lambda: _state(runner).lease is None, runner, process)
        seconds = time.time() - began_at
        process.wait()
    return lease.fence, seconds


def _stretched(state: RunState, left_out: Mapping[int, float], interval: Interval) -> RunState:
    """The run as it stood if what was left out of its segments had been trained too."""
    trained = [segment for segment in state.segments if segment.phases.get("train")]
    num_steps = sum(segment.last_step - segment.first_step for segment in trained)
    steps_per_second = num_steps / sum(segment.phases["train"] for segment in trained)
    segments, more_steps, more_seconds = [], 0, 0.0
    for segment in state.segments:
        seconds = left_out.get(segment.fence, 0.0)
        phases = interval.phases_of(seconds)
        steps = round(phases["train"] * steps_per_second)
        segments.append(_longer(segment, more_steps, more_seconds, steps, seconds, phases))
        more_steps, more_seconds = more_steps + steps, more_seconds + seconds
    assert state.promoted is not None, "the last segment has saved"
    moved = {"step": state.promoted.step + more_steps, "promoted_at": state.promoted.promoted_at + more_seconds}
    return state.model_copy(update={"segments": segments, "promoted": state.promoted.model_copy(update=moved)})


def _longer(
    segment: SegmentRecord,
    steps_before: int,
    seconds_before: float,
    steps: int,
    seconds: float,
    phases: Mapping[str, float],
) -> SegmentRecord:
    """Begun so many steps and seconds later, and lasting longer."""
    names = segment.phases.keys() | phases.keys()
    return segment.model_copy(
        update={
            "first_step": segment.first_step + steps_before,
            "last_step": segment.last_step + steps_before + steps,
            "started_at": segment.started_at + seconds_before,
            "seconds": segment.seconds + seconds,
            "phases": {name: segment.phases.get(name, 0.0) + phases.get(name, 0.0) for name in names},
        }
    )


def _require_intact(runner: Runner) -> None:
    """The kills were survived as promised: every sample once per epoch, by the ledger."""
    audit = runner.call("audit")
    if audit.returncode:
        raise SystemExit(audit.stdout + audit.stderr)


def _show(day: TimeSpent, interval: Interval, state: RunState, waited: float) -> None:
    table = Table("of the day", "seconds", "share")
    for name, seconds in day.parts.items():
        table.add_row(PART_NAMES[name], f"{seconds:,.1f}", f"{seconds / DAY_SECONDS:.3%}")
    table.add_row("together", f"{day.total:,.1f}", f"{day.total / DAY_SECONDS:.3%}", style="bold")
    console = Console(width=140, highlight=False)
    console.print(table)
    console.print(
        f"A save every {interval.seconds:g} s, of which {interval.stall_seconds * 1000:.1f} ms are a stall; "
        f"{len(state.segments)} segments, {state.steps_lost:,} steps lost; the ledger is intact. "
        f"It took {waited:,.0f} s."
    )


def _wait_until(condition: Callable[[], bool], runner: Runner, process: StartedCommand) -> None:
    """Raises `SystemExit` with what the command said if it ended before."""
    if not wait_until(condition, process):
        raise SystemExit(runner.log.read_text()[-4000:])


def _has_promoted(runner: Runner, fence_before: int) -> bool:
    """Whether a segment after the one of this fence, which may not be settled yet, has promoted a checkpoint."""
    head = _manifest(runner).find_head()
    promoted = head.state.promoted if head else None
    return promoted is not None and promoted.fence > fence_before


def _state(runner: Runner) -> RunState:
    return _manifest(runner).load_head().state


def _manifest(runner: Runner) -> Manifest:
    return Manifest(LocalStore(Path(runner.settings["store"])), str(runner.settings["run"]))


if __name__ == "__main__":
    main()
