"""The command `holdfast run` as a process of its own, watched and killed from outside.

Invariant: nothing of it outlives the block, however the block is left; and unless it is killed on purpose it gets the
time to save and leave.
"""

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from storage.errors import HoldfastError, SegmentFailedError
from tasks.cluster.processes import environment_of_installation, kill_tree
from tasks.console.terminal import console
from training.stopping import follow_parent

LINES_SHOWN = 15


class StartedRun:
    """`holdfast run CONFIGURATION --set ...`. A context manager."""

    def __init__(self, configuration: Path, assignments: Sequence[str]) -> None:
        settings = [part for assignment in assignments for part in ("--set", assignment)]
        self._command = [sys.executable, "-m", "flows.cli", "run", str(configuration), *settings]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env=environment_of_installation(),
            start_new_session=True,  # Ctrl-C reaches the drill alone, which passes it on once
            preexec_fn=follow_parent,
        )
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.is_running(0):
            self._stop()
        self._file.close()

    def is_running(self, wait_seconds: float) -> bool:
        """Wait a moment for its end; whether it still runs."""
        try:
            self._started().wait(wait_seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        """SIGKILL for the command, its server, its ranks: what a machine that vanishes leaves behind."""
        if self._started().poll() is None:  # else its number may be another's by now
            kill_tree(self._started().pid)
        self._started().wait()

    def require_success(self) -> None:
        """Raise the command's error unless it ended well: `SegmentFailedError` where trying again may help."""
        exit_code = self._started().wait()
        if exit_code == 0:
            return
        self._file.seek(0)
        output = self._file.read().decode(errors="replace").strip()
        message = re.search(r"^Error: (.*)", output, re.MULTILINE | re.DOTALL)
        if message is not None:
            raise (HoldfastError if exit_code == 2 else SegmentFailedError)(message[1])
        ending = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        last_lines = "\n".join(output.splitlines()[-LINES_SHOWN:])
        raise SegmentFailedError(f"The run ended with {ending}. Its last lines:\n{last_lines}")

    def _stop(self) -> None:
        process = self._started()
        console.print("Stopping: the ranks save a checkpoint and exit. Press Ctrl-C again to kill them.", style="cyan")
        try:
            process.send_signal(signal.SIGTERM)
            process.wait()
        except BaseException:  # asked a second time: processes that are left get no more time
            self.kill()
            raise

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("the run was not started")
        return self._process
