"""An evaluation is supervised as a segment is: nobody evaluates beside it, and one that hangs is ended."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.helpers.commands import RUN_SECONDS, Runner, kill_everything, processes_mentioning, wait_until
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

# Ranks start in silence: for longer than that takes on a busy machine.
HANG_SECONDS = 90


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(tmp_path, "tested", tmp_path / "store", tmp_path / "data")
    settings = {"store": tmp_path / "store", "run": "tested", "retry__delay_seconds": 0.1}
    return Runner(configuration, {**settings, "segment__hang_seconds": HANG_SECONDS}, prefect_server)


def test_an_evaluation_that_was_killed_or_hangs_is_made_again_and_nobody_evaluates_beside_it(runner: Runner) -> None:
    process = runner.start()
    try:
        stop_evaluating_ranks(runner, process)
    finally:
        kill_everything(process)
    assert runner.status()["state"] == "lost"
    process = runner.start()
    try:
        stop_evaluating_ranks(runner, process)
        second = runner.call("run")
        assert second.returncode == 2
        assert f"is being evaluated by process {process.pid}" in words(second.stderr)
        assert process.wait(RUN_SECONDS) == 0, runner.log.read_text()
    finally:
        kill_everything(process)
    assert f"reported nothing for {HANG_SECONDS} s (segment.hang_seconds) and were killed" in words(
        runner.log.read_text()
    )
    status = runner.status()
    assert (status["state"], len(status["segments"]), status["steps_lost_total"]) == ("completed", 1, 0)
    assert processes_mentioning(str(runner.settings["store"])) == []


def stop_evaluating_ranks(runner: Runner, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the ranks of the evaluation, and let them stand still."""
    folder = f"{runner.settings['store']}/.tmp/scratch/runs/tested/evaluation-"

    def find() -> list[int]:
        return [pid for pid in processes_mentioning(folder) if "-u" in command_line(pid)]

    assert wait_until(lambda: bool(find()), process), runner.log.read_text()
    for pid in find():
        os.kill(pid, signal.SIGSTOP)


def command_line(pid: int) -> list[str]:
    """Of torchrun the ranks differ in that their output is not buffered."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def words(text: str) -> str:
    return " ".join(text.split())
