"""Ranks are found by the locks that they hold, and by nothing else."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from tests.helpers.lock_holders import holding
from training.agents.locks import AGENT_LOCK, find_holders, hold_lock, rank_lock, require_locks


def test_who_holds_a_lock_is_found_with_its_number_until_it_ends(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        (found,) = find_holders(tmp_path)
        assert (found.rank, found.pid) == (0, process.pid)
        process.send_signal(signal.SIGSTOP)  # one that stands still holds it
        assert find_holders(tmp_path) == [found]
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie does not
        assert find_holders(tmp_path) == []
    assert rank_lock(tmp_path, 0).exists()


def test_a_file_without_a_lock_and_a_link_are_nobody(tmp_path: Path) -> None:
    rank_lock(tmp_path, 1).touch()
    with holding(tmp_path):
        (tmp_path / "other").mkdir()
        rank_lock(tmp_path / "other", 0).symlink_to(rank_lock(tmp_path, 0))
        assert find_holders(tmp_path / "other") == []
        assert [holder.rank for holder in find_holders(tmp_path)] == [0]
    assert find_holders(tmp_path / "nowhere") == []


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    with holding(tmp_path), pytest.raises(BlockingIOError):
        hold_lock(rank_lock(tmp_path, 0))


def test_what_is_started_from_a_holder_does_not_hold_its_lock(tmp_path: Path) -> None:
    hold = """
import os, sys, time
from pathlib import Path
from training.agents.locks import AGENT_LOCK, hold_lock
lock = hold_lock(Path(sys.argv[1]) / AGENT_LOCK)
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert [(one.rank, one.pid) for one in find_holders(tmp_path)] == [(None, process.pid)]
            process.kill()
            process.wait()
            assert find_holders(tmp_path) == [] and (tmp_path / AGENT_LOCK).exists()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_file_system_without_locks_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none here: the call answers as it does on Lustre without `flock`."""
    require_locks(tmp_path)
    assert list(tmp_path.iterdir()) == []

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(ConfigurationError, match=rf"Files in {tmp_path} cannot be locked \(Function not implemented\)"):
        require_locks(tmp_path)
    with pytest.raises(FileNotFoundError):
        require_locks(tmp_path / "nowhere")
