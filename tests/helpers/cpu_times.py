"""Processor time of each file of tests, with all processes that it started: a plugin of pytest.

Invariant: what is started once for all tests belongs to no file: the shared Prefect server, and what the servers of
commands and of ranks fork. A process that outlives its parent is not seen. Measured once for each file: to look at all
processes takes milliseconds.
"""

import os
import resource
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

NUM_SHOWN = 10
LIST = Path("build") / "cpu-times.txt"


class CpuTimes:
    """Adds up seconds by file, in this process or, where xdist has workers, in all of them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._before = measure()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        done = yield
        if nextitem is None or nextitem.path != item.path:
            now = measure()
            self.seconds[item.path.relative_to(item.config.rootpath).as_posix()] += now - self._before
            self._before = now
        return done

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        now = measure()
        self.seconds["collection"] += now - self._before
        self._before = now

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu_times"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, seconds in getattr(node, "workeroutput", {}).get("cpu_times", {}).items():
            self.seconds[name] += seconds

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if getattr(config, "workerinput", None) is not None or len(self.seconds) <= NUM_SHOWN:
            return
        most_first = sorted(self.seconds.items(), key=lambda item: -item[1])
        lines = [f"{seconds:8.1f}  {name}" for name, seconds in most_first]
        path = config.rootpath / LIST
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        terminalreporter.write_sep("=", f"seconds of processor time, children included; all files: {LIST}")
        terminalreporter.write_line("\n".join(lines[: NUM_SHOWN + 1]))
        terminalreporter.write_line(f"{sum(self.seconds.values()):8.1f}  together")


def measure() -> float:
    """Seconds of processor time of this process, of its children that have ended, and of those that live."""
    times, ended = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = times.user + times.system + ended.ru_utime + ended.ru_stime
    return seconds + sum(map(_seconds_of, psutil.Process().children(recursive=True)))


def measure_family(root: psutil.Process) -> float:
    """Seconds of processor time of a process and all below it, of those that have ended too."""
    return sum(map(_seconds_of, [root, *root.children(recursive=True)]))


def _seconds_of(process: psutil.Process) -> float:
    """Of the process, and of its children that have ended; 0 if it has just ended itself."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
