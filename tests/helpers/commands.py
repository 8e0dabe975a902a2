"""The command `holdfast` as a user runs it: real processes, from outside."""

import io
import json
import os
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import psutil

from flows.cli import execute
from storage.objects.local_store import LocalStore
from tasks.cluster.processes import kill_tree
from tasks.config.load import load_configuration
from tasks.data.pipeline import prepare_dataset
from tasks.reporting.status import read_status
from tasks.run_paths import open_run_paths
from tests.helpers.command_server import ForkedCommand, call_forked, is_forked

COMMAND = [sys.executable, "-m", "flows.cli"]
ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.05
# For what hangs, not for what is slow: there are machines on which everything takes four times as long.
RUN_SECONDS = 600.0


class StartedCommand(Protocol):
    """What `subprocess.Popen` gives of a process, as far as a test uses it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code when it has ended."""

    def send_signal(self, number: int, /) -> None:
        """If it runs."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


@dataclass
class Runner:
    """Runs commands for one run, always with the same configuration, store and settings."""

    configuration: Path
    settings: dict[str, Any]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _segments_before: set[Path] = field(default_factory=set)

    def call(self, command: str, *arguments: str, **settings: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        line = self.line(command, *arguments, **settings)
        if is_forked(self.environment):
            return call_forked(line[len(COMMAND) :], self.environment, RUN_SECONDS)
        return subprocess.run(
            line,
            env=dict(self.environment),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )

    def prepare(self) -> None:
        """Prepare the data set in this process: a command that finds it does not load Great Expectations for it."""
        config = load_configuration(self.configuration, self.assignments())
        run_paths = open_run_paths(config)
        prepare_dataset(config.data, run_paths.store, run_paths.data_scratch)

    def run(self, **settings: Any) -> None:
        """`holdfast run` to its end, which must be a good one."""
        result = self.call("run", **settings)
        assert result.returncode == 0, result.stdout + result.stderr

    def start(self, **settings: Any) -> StartedCommand:
        """`holdfast run` in the background; its output goes to the run's log."""
        self._segments_before = self._segments_in_progress()
        line = self.line("run", **settings)
        with self.log.open("ab") as log:
            if is_forked(self.environment):
                return ForkedCommand(line[len(COMMAND) :], self.environment, (log, log), in_own_session=True)
            return subprocess.Popen(
                line,
                env=dict(self.environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def status(self) -> dict[str, Any]:
        """What `holdfast status --json` prints. Of a run in a folder no process is started for it."""
        store = str(self.settings["store"])
        if store.startswith("s3://"):  # which server it is on stands in the command's environment alone
            text = self.call("status", "--json").stdout
        else:
            text = json.dumps(read_status(LocalStore(Path(store)), str(self.settings["run"])))
        read: dict[str, Any] = json.loads(text)
        return read

    @property
    def log(self) -> Path:
        return Path(str(self.settings["store"]) + ".log")

    def last_step_reported(self) -> int:
        """The step that the ranks reported last in a segment that began since `start`; 0 if none did."""
        steps = [0]
        for folder in self._segments_in_progress() - self._segments_before:
            path = folder / "progress.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            steps += [json.loads(line)["step"] for line in lines[-1:] if line.endswith("}")]
        return max(steps)

    def _segments_in_progress(self) -> set[Path]:
        scratch = Path(self.settings["store"]) / ".tmp" / "scratch" / "runs" / str(self.settings["run"])
        return set(scratch.glob("*"))

    def wait_for_step(self, process: StartedCommand, step: int) -> bool:
        """Wait until the ranks report this step; False if the command ended before."""
        return wait_until(lambda: self.last_step_reported() >= step, process)

    def line(self, command: str, *arguments: str, **settings: Any) -> list[str]:
        """The command line."""
        assignments = [part for assignment in self.assignments(**settings) for part in ("--set", assignment)]
        return [*COMMAND, command, str(self.configuration), *arguments, *assignments]

    def assignments(self, **settings: Any) -> list[str]:
        """All settings as KEY=VALUE."""
        return [f"{key.replace('__', '.')}={value}" for key, value in {**self.settings, **settings}.items()]


def write_programs(folder: Path) -> Path:
    """The programs that the guides name, of this very project, in a new folder for PATH."""
    folder.mkdir()
    for name, options in (("holdfast", ["-m", "flows.cli"]), ("prefect", ["-m", "prefect"]), ("python", [])):
        write_program(folder / name, "env", f"PYTHONPATH={ROOT}", sys.executable, *options)
    return folder


def write_program(path: Path, *command: str) -> None:
    """A program that is this command, with what is given to it behind it."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def call_here(arguments: Sequence[object]) -> "subprocess.CompletedProcess[str]":
    """A command in this process, where it needs none of its own: what it prints, and its exit code."""
    line = [str(argument) for argument in arguments]
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        exit_code = execute(line)
    return subprocess.CompletedProcess(line, exit_code, stdout.getvalue(), stderr.getvalue())


def call_narrow(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """As `call_here`, on a terminal of 80 columns."""
    with patch.dict(os.environ, COLUMNS="80"):
        return call_here(arguments)


def wait_until(condition: Callable[[], bool], process: StartedCommand | None = None) -> bool:
    """Wait for a condition; False if the process, where one is given, ended before it held."""
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        if process is not None and process.poll() is not None:
            return False
        time.sleep(POLL_SECONDS)  # it may be of files, processes, a server: none of them calls back
    raise TimeoutError(f"nothing happened within {RUN_SECONDS:.0f} s")


def kill_everything(process: StartedCommand) -> None:
    """SIGKILL a command and all its descendants, as a machine that vanishes does."""
    kill_tree(process.pid)
    process.wait()


def find_children(text: str) -> list[psutil.Process]:
    """Processes below this one with the text in their command line. What another test has left as a zombie has none."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if one.status() != psutil.STATUS_ZOMBIE and text in " ".join(one.cmdline())]


def processes_mentioning(text: str) -> list[int]:
    """Process ids whose command line contains the text."""
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if any(text in part for part in process.info["cmdline"] or [])]
