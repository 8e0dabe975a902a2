"""`make bench-starts`: what a short run waits for, beside its steps, and what it takes of the processor.

A run of two ranks on data that are prepared: from the command to the first step; from SIGKILL of all its ranks to the
next step; from the last step to the end of the command, when its report is written. The moments are written down by
the first rank, before the step. CPU is of all processes of the command, Prefect's server among them. The last line is
for machines: `name=value` pairs, medians.
"""

import argparse
import resource
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import RUN_SECONDS, Runner, StartedCommand, wait_until
from tests.helpers.fault_plans import FaultPlan, StepFault, read_fired
from tests.helpers.operators import CONFIGURATION, CORPUS_ROWS

STEPS, SAVED_STEP, KILLED_STEP = 60, 20, 30
MOMENTS = FaultPlan(tuple(StepFault("note", 0, step, times=2) for step in (0, SAVED_STEP, KILLED_STEP, STEPS - 1)))
RANK = "holdfast rank"


class Waits(NamedTuple):
    """One run, in seconds."""

    to_first_step: float
    after_kill: float
    after_last_step: float
    cpu: float


def main() -> None:
    """Run as often as is asked for, print each time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    repetitions = parser.parse_args().repetitions
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate_corpus(folder / "corpus", "policy", CORPUS_ROWS)
        (folder / "run.toml").write_text(CONFIGURATION)
        settings = {
            "store": folder / "store", "train.steps": STEPS, "train.ranks": 2, "train.device": "cpu",
            "checkpoint.every_steps": SAVED_STEP, "checkpoint.background": "false", "validation.every_steps": STEPS,
            "retry.delay_seconds": 0.1,
        }  # fmt: skip
        Runner(folder / "run.toml", settings).prepare()
        found = [measure(folder, settings | {"run": f"run-{number}"}) for number in range(repetitions)]
    shown = Table("run", "command to first step", "SIGKILL of the ranks to next step", "last step to the end", "CPU s")
    for number, waits in enumerate(found):
        shown.add_row(str(number), *(f"{seconds:.1f}" for seconds in waits))
    Console(width=120).print(shown)
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    print(" ".join(f"{name}={value:.2f}" for name, value in zip(Waits._fields, medians, strict=True)))


def measure(folder: Path, settings: dict[str, object]) -> Waits:
    """One run, whose ranks are killed once."""
    runner, noted = Runner(folder / "run.toml", settings), folder / f"noted-{settings['run']}"
    with MOMENTS.injected(runner, noted):
        cpu, began = _cpu_seconds(), time.monotonic_ns()
        process = runner.start()
        if not wait_until(lambda: len(_times(noted, KILLED_STEP)) > 0, process):
            raise SystemExit(runner.log.read_text())
        killed = time.monotonic_ns()
        _kill_ranks(process)
        if process.wait(RUN_SECONDS):
            raise SystemExit(runner.log.read_text())
        ended = time.monotonic_ns()
    first, last = _times(noted, 0)[0], _times(noted, STEPS - 1)[-1]
    _, again = _times(noted, SAVED_STEP)
    return Waits(
        to_first_step=(first - began) / 1e9,
        after_kill=(again - killed) / 1e9,
        after_last_step=(ended - last) / 1e9,
        cpu=_cpu_seconds() - cpu,
    )


def _kill_ranks(process: StartedCommand) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended just now
            if RANK in " ".join(child.cmdline()):
                child.kill()


def _times(noted: Path, step: int) -> list[int]:
    """When the first rank began the step, each time, in nanoseconds of the monotonic clock."""
    return [int(mark["at_ns"]) for mark in read_fired(noted) if mark.get("step") == step]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
