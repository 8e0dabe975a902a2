"""Commands in processes that are forked from one with the libraries loaded: to load them takes a command seconds.

A forked command has memory, environment, output, signals and an exit code of its own, and ends as the program does. It
works in the project's folder, reads nothing from stdin, has no command line of its own in /proc, and is no child of the
test. `Runner` has commands forked where the Prefect server of all tests is used; what is looked for by its command line
is started as a user starts it.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import flows.cli as cli
from flows.prefect_server import SETTINGS
from tasks.cluster.agents import ROOM
from tests.helpers.fault_plans import FOLDER_VARIABLE, ClockFault, HostFault, read_plan
from tests.helpers.forked_agents import Nursery, environment_of_server
from tests.helpers.injected_process import take_up_plan
from tests.helpers.prefect_server import running

ROOT = Path(__file__).parents[2]
# In the environment of all tests' Prefect server: the socket. Beside it lies the environment that it was started with.
ADDRESS = "HOLDFAST_TESTS_COMMANDS"
STARTED_WITH = ".json"
# Read when it is used, by libraries that have long been loaded.
READ_LATE = ("AWS_",)
# With a plan of faults, which the command's own processes take up when they start.
OF_A_PLAN = (FOLDER_VARIABLE, "PYTHONPATH")
REQUEST_BYTES = 200_000
# Of Arrow's allocator, which handles forks by itself.
FORK_SAFE_THREAD = "jemalloc_bg_thd"


@contextmanager
def running_command_server(folder: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment with which commands are forked, for as long as the block: that one, and where the server is."""
    address = folder / "commands"
    given = {**environment, ADDRESS: str(address)}
    address.with_suffix(STARTED_WITH).write_text(json.dumps(given))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen()
        # An agent shows its title where the server's arguments are.
        command = [sys.executable, "-m", "tests.helpers.command_server", str(listener.fileno()), " " * ROOM]
        with running(
            command, environment_of_server(given), address.with_suffix(".log"), ROOT, pass_fds=(listener.fileno(),)
        ):
            listener.close()  # or commands would wait for a server that has failed
            yield given


def is_forked(environment: Mapping[str, str]) -> bool:
    """Whether a command with this environment can be forked: what is read while libraries load is the server's."""
    if (address := environment.get(ADDRESS)) is None:
        return False
    started_with: dict[str, str] = json.loads(Path(address).with_suffix(STARTED_WITH).read_text())
    folder = environment.get(FOLDER_VARIABLE)
    if folder is not None and _is_heard_of_early(Path(folder)):
        return False
    without = OF_A_PLAN if folder is not None else ()
    return _read_early(environment, without) == _read_early(started_with, without)


def _is_heard_of_early(folder: Path) -> bool:
    """Whether a plan changes what may be looked at while libraries load: the clock, or the machine's name."""
    _, plan = read_plan(folder)
    return any(isinstance(fault, ClockFault | HostFault) for fault in plan.faults)


def _read_early(environment: Mapping[str, str], without: Sequence[str]) -> dict[str, str]:
    early = {name: value for name, value in environment.items() if not name.startswith(READ_LATE)}
    return {name: value for name, value in early.items() if name not in without}


class ForkedCommand:
    """A command that was forked, as far as `subprocess.Popen` gives it: a `StartedCommand`. `files` are its output."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[Any], in_own_session: bool
    ) -> None:
        request = {"arguments": arguments, "environment": dict(environment), "in_own_session": in_own_session}
        self._arguments = list(arguments)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(environment[ADDRESS])
        socket.send_fds(self._connection, [json.dumps(request).encode()], [file.fileno() for file in files])
        self.pid = int(self._connection.recv(REQUEST_BYTES))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self._hear_of_end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code when it has ended. Raises `subprocess.TimeoutExpired` after so many seconds."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
            self._hear_of_end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear_of_end(self) -> None:
        self.returncode = int(self._connection.recv(REQUEST_BYTES))
        self._connection.close()


def call_forked(
    arguments: Sequence[str], environment: Mapping[str, str], seconds: float
) -> "subprocess.CompletedProcess[str]":
    """A command to its end, as `subprocess.run` returns it. Raises as `ForkedCommand.wait`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        exit_code = ForkedCommand(arguments, environment, (out, err), in_own_session=False).wait(seconds)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(list(arguments), exit_code, out.read(), err.read())


def serve(listener: socket.socket) -> None:
    """Fork a process for each request; returns in these alone, once they are what was asked for."""
    while True:
        connection, _ = listener.accept()
        request, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 2)
        if os.fork() == 0:
            listener.close()
            _wait_for_command(connection)
            connection.close()
            _become(json.loads(request), descriptors)
            return
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        _forget_ended()


def _wait_for_command(connection: socket.socket) -> None:
    """Return in the command alone; the process between it and the server reports its number, and its exit code."""
    if (pid := os.fork()) == 0:
        return
    with suppress(OSError):  # nobody may wait for it any more
        connection.sendall(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _forget_ended() -> None:
    """Take note of the processes between that have ended: until then Linux keeps them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there is none
        return


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Have this process be as if the program had just been started by `subprocess.run`."""
    for number, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["in_own_session"]:
        os.setsid()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]


def load_libraries() -> None:
    """Load all that a command needs: here, since Prefect looks at its settings when it is loaded."""
    # In this order: some of them are imported by those after them to be executed on first use, in each process anew.
    # isort: off
    import training.targets.classification
    import training.models.encoder.network
    import pyarrow.compute  # noqa: F401
    import numpy.ma  # noqa: F401
    import training.evaluation
    import training.segment  # noqa: F401
    import tasks.reporting.run_page
    import tasks.reporting.written
    import tasks.data.expectations.validation
    import tasks.data.pipeline  # noqa: F401
    import flows.train
    import flows.prefect_server
    import flows.commands.run  # noqa: F401
    # isort: on


def require_forkable() -> None:
    """Have what is loaded shared with all that is forked. Raises `RuntimeError` if this process has more threads."""
    gc.collect()
    gc.freeze()  # or the first collection in each process would copy all of it
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if len([name for name in threads if name != FORK_SAFE_THREAD]) != 1:
        raise RuntimeError(f"expected one thread, for a fork copies no other, found {threads}")


def main() -> None:
    """Be a server of commands, with what they need loaded; and in each process that was forked, the command."""
    exit_code = 1
    # As the program does: before Prefect is loaded, so that it is called last.
    atexit.register(lambda: cli._leave(exit_code))
    started_with = dict(os.environ)
    os.environ.update(SETTINGS | os.environ)
    load_libraries()
    require_forkable()
    serve(socket.socket(fileno=int(sys.argv[1])))
    Nursery(started_with).use()
    if FOLDER_VARIABLE in os.environ:
        take_up_plan([cli.__name__], os.environ)
    exit_code = cli.execute(sys.argv[1:])


if __name__ == "__main__":
    main()
