"""What a rank takes a SIGTERM for: a notice, or the end of who launched or supervised it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from training import stopping
from training.stopping import SUPERVISOR_VARIABLE

ROOT = Path(__file__).parents[3]
# Each launches the next one, the last is a rank, with the very ties that the real ones have.
FAMILY = """
import ctypes, os, platform, signal, subprocess, sys, threading, time
from training.stopping import SUPERVISOR_VARIABLE, StopFlag, StopReason, follow_parent

(role, *younger), pids = sys.argv[1].split(","), sys.argv[2:]
if role == "supervisor":
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
if role == "rank":
    flag = StopFlag()
    flag.listen()
    follow_parent()
    print(*pids, flush=True)
    while flag.reason() is StopReason.NONE:
        time.sleep(0.001)  # a step: between two of them a rank looks at the flag
    print(flag.reason().name, flush=True)
else:
    command = [sys.executable, __file__, ",".join(younger), *pids, str(os.getpid())]
    child = subprocess.Popen(command, preexec_fn=follow_parent)
    signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
    # SIGUSR1 ends the first thread alone: so a process looks that was killed and has not ended all its threads yet.
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    signal.signal(signal.SIGUSR1, lambda number, _frame: ctypes.CDLL(None).syscall(exit_thread, 0))
    child.wait()
"""


@pytest.mark.parametrize(
    ("family", "struck", "number", "taken_for"),
    [
        ("shell,supervisor,launcher,rank", "supervisor", signal.SIGTERM, "PREEMPTED"),
        ("shell,supervisor,launcher,rank", "launcher", signal.SIGTERM, "PREEMPTED"),
        ("shell,supervisor,launcher,rank", "supervisor", signal.SIGKILL, "ABANDONED"),
        ("shell,supervisor,launcher,rank", "launcher", signal.SIGKILL, "ABANDONED"),
        ("shell,supervisor,launcher,rank", "supervisor", signal.SIGUSR1, "ABANDONED"),
        ("shell,supervisor,rank", "supervisor", signal.SIGTERM, "PREEMPTED"),
        ("shell,supervisor,rank", "supervisor", signal.SIGKILL, "ABANDONED"),
        ("shell,supervisor,rank", "supervisor", signal.SIGUSR1, "ABANDONED"),
        # Its supervisor hears of it and asks it to stop, as it would for any other reason.
        ("shell,supervisor,rank", "shell", signal.SIGKILL, "PREEMPTED"),
        ("shell,supervisor,launcher,rank", "shell", signal.SIGKILL, "PREEMPTED"),
    ],
)
def test_a_notice_and_a_killed_supervisor_are_told_apart(
    family: str, struck: str, number: signal.Signals, taken_for: str, tmp_path: Path
) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    command = [sys.executable, str(script), family]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        *roles, _rank = family.split(",")
        pids = dict(zip(roles, map(int, first.stdout.readline().split()), strict=True))
        os.kill(pids[struck], number)
        try:
            assert first.stdout.readline().strip() == taken_for
        finally:
            first.kill()


# A rank whose launcher is killed while its Python loads: nobody is left whose end Linux could tell it.
LATE = """
import os, sys, time
from training.stopping import StopFlag, end_after_parent, follow_parent

launcher = int(sys.argv[1])
while os.getppid() == launcher:
    time.sleep(0.01)
flag = StopFlag()
flag.listen()
follow_parent()
print(flag.reason().name, flush=True)
end_after_parent(0.1)
time.sleep(60)
"""


def test_a_rank_whose_launcher_was_killed_before_it_followed_it_is_abandoned_and_ends(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    launch = f"import os, subprocess, sys; subprocess.Popen([sys.executable, {str(script)!r}, str(os.getpid())])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), SUPERVISOR_VARIABLE: str(os.getpid())}
    launched = subprocess.run(
        [sys.executable, "-c", launch], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert launched.stdout == "ABANDONED\n"  # read until the rank has closed it, which is when it ends
    assert "What launched this rank was killed 0.1 s ago" in launched.stderr


def test_a_launcher_whose_parent_ends_between_fork_and_exec_ends_too() -> None:
    code = "import os\nfrom training.stopping import follow_parent\nfollow_parent(os.getppid() + 1)\nprint('lives')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "")


def test_a_process_is_not_taken_for_alive_from_the_moment_on_at_which_it_is_killed() -> None:
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-c", "print(bytes(100 << 20)[0]); input()"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as process:  # fmt: skip
            assert process.stdout is not None and process.stdout.readline() == b"0\n"
            assert stopping._read_process(process.pid) == (True, os.getpid())
            os.kill(process.pid, signal.SIGKILL)
            assert not stopping._read_process(process.pid)[0]
