"""What a rank takes a SIGTERM for: a notice, or the end of who launched or supervised it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# A supervisor that launches a launcher that launches a rank, with the very ties that the real ones have.
FAMILY = """
import ctypes, os, platform, signal, subprocess, sys, threading, time
from training.stopping import StopFlag, StopReason, follow_parent

role, rest = sys.argv[1], sys.argv[2:]
if role == "rank":
    flag = StopFlag()
    flag.listen()
    follow_parent()
    print(*rest, flush=True)
    while flag.reason() is StopReason.NONE:
        time.sleep(0.001)
    print(flag.reason().name, flush=True)
else:
    younger = ["launcher", str(os.getpid())] if role == "supervisor" else ["rank", *rest, str(os.getpid())]
    child = subprocess.Popen([sys.executable, __file__, *younger], preexec_fn=follow_parent)
    signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
    # SIGUSR1 ends the first thread alone: so a process looks that was killed and has not ended all its threads yet.
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    signal.signal(signal.SIGUSR1, lambda number, _frame: ctypes.CDLL(None).syscall(exit_thread, 0))
    child.wait()
"""


@pytest.mark.parametrize(
    ("struck", "number", "taken_for"),
    [
        ("supervisor", signal.SIGTERM, "PREEMPTED"),
        ("launcher", signal.SIGTERM, "PREEMPTED"),
        ("supervisor", signal.SIGKILL, "ABANDONED"),
        ("launcher", signal.SIGKILL, "ABANDONED"),
        ("supervisor", signal.SIGUSR1, "ABANDONED"),
    ],
)
def test_a_notice_and_a_killed_supervisor_are_told_apart(
    struck: str, number: signal.Signals, taken_for: str, tmp_path: Path
) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    command = [sys.executable, str(script), "supervisor"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pids = dict(zip(("supervisor", "launcher"), map(int, supervisor.stdout.readline().split()), strict=True))
        os.kill(pids[struck], number)
        try:
            assert supervisor.stdout.readline().strip() == taken_for
        finally:
            supervisor.kill()
