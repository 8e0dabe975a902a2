"""A process is called dead only by who could see it."""

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from storage.runs.holders import find_stopped, is_alive, this_process
from tests.helpers.commands import ROOT
from tests.helpers.holders import dead_process, holder_of, process_elsewhere


def test_a_living_process_is_alive_and_one_that_ended_is_dead() -> None:
    assert is_alive(this_process()) is True
    code = "from storage.runs.holders import this_process; print(this_process().model_dump_json())"
    described = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert is_alive(type(this_process()).model_validate_json(described)) is False


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    me = this_process()
    assert is_alive(me.model_copy(update={"start_ticks": me.start_ticks - 1})) is False


def test_nothing_is_said_of_a_process_in_another_container_or_on_another_machine() -> None:
    me = this_process()
    boot = me.pid_scope.partition(" ")[0]
    assert is_alive(me.model_copy(update={"pid_scope": f"{boot} pid:[1]"})) is None
    assert is_alive(me.model_copy(update={"pid_scope": "another boot", "host": me.host})) is None


LOOK_AS_NOBODY = """
mount -t proc -o hidepid=$1 proc /proc || exit 77
exec setpriv --reuid=65534 --regid=65534 --clear-groups $2 -c '
import sys
from storage.runs.holders import is_alive
from storage.runs.run_state import Holder
print([is_alive(Holder.model_validate_json(holder)) for holder in sys.argv[1:]])' "$3" "$4"
"""


@pytest.mark.parametrize("hidepid", [1, 2])
def test_a_process_of_another_user_that_the_system_hides_is_not_called_dead_and_one_that_ended_is(hidepid: int) -> None:
    if os.getuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("to hide processes takes root, and unshare and setpriv of util-linux")
    me = this_process()
    ended = me.model_copy(update={"pid": 2**22 - 2})  # no process has this number: it is the highest but one
    holders = [holder.model_dump_json() for holder in (me, ended)]
    line = ["unshare", "--mount", "sh", "-c", LOOK_AS_NOBODY, "sh", str(hidepid), sys.executable, *holders]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(f"the system hides no processes here: {done.stderr.strip()}")
    assert done.stdout == "[None, False]\n", done.stderr


def test_a_process_that_is_stopped_lives_and_is_found_with_those_of_its_children_that_are_stopped_too() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600 & wait"]) as root:
        try:
            while len(children := psutil.Process(root.pid).children()) < 2:
                time.sleep(0.01)  # the shell tells nobody when it has started them
            holder = holder_of(root.pid)
            children[0].send_signal(signal.SIGSTOP)
            assert find_stopped(holder) == []  # the holder itself goes on
            root.send_signal(signal.SIGSTOP)
            while set(find_stopped(holder)) != {root.pid, children[0].pid}:
                time.sleep(0.01)  # Linux stops a process when it runs next
            assert is_alive(holder) is True
            assert find_stopped(holder)[0] == root.pid
            root.send_signal(signal.SIGCONT)
            while find_stopped(holder):
                time.sleep(0.01)  # as above
        finally:
            for process in (*psutil.Process(root.pid).children(), psutil.Process(root.pid)):
                process.kill()


def test_who_is_dead_or_cannot_be_seen_is_not_called_stopped() -> None:
    assert find_stopped(dead_process()) == find_stopped(process_elsewhere()) == []


def test_a_process_knows_how_old_it_is() -> None:
    code = "import time; time.sleep(0.3); from storage.runs.holders import process_age_seconds as age; print(age())"
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0.3 <= float(said) <= time.monotonic() - began + 0.02  # of which the system counts hundredths
