"""Agents of forked commands, forked too: from a child of the command that was forked with it, before it had threads.

An agent is the command's own child, as one that was started: Linux gives it to the command when the process between
them has ended. Its environment, output, session and signals are its own. What libraries read while they load is what
the server of commands was started with, so an agent that is to have other settings is started, as a user's is.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from tasks.cluster import agents
from tasks.cluster.agents import AGENT_MODULE
from tasks.cluster.rank_environment import environment_of_ranks
from tests.helpers.fault_plans import FOLDER_VARIABLE
from tests.helpers.injected_process import take_up_plan
from training.agents import agent
from training.configuration import TrainConfig
from training.stopping import follow_parent

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
REQUEST_BYTES = 200_000
POLL_SECONDS = 0.001
# Read when it is used, or by Python itself when it starts.
READ_LATE = ("AWS_", "PREFECT_", "HOLDFAST_", "PYTHON", "NO_PROXY", "no_proxy", "DO_NOT_TRACK")


def environment_of_server(given: Mapping[str, str]) -> dict[str, str]:
    """What a server has to be started with, so that agents of the usual settings can be forked below it."""
    of_ranks = environment_of_ranks(TrainConfig(steps=1), inherited=given)
    return {name: value for name, value in of_ranks.items() if not name.startswith(READ_LATE)} | dict(given)


@dataclass
class ForkedAgent:
    """What `subprocess.Popen` gives of a process, as far as an `AgentProcess` uses it."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(AGENT_MODULE, timeout)
            time.sleep(POLL_SECONDS)  # a wait with a limit, which waitpid(2) has not
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process from which this command's agents are forked. It ends when the command does.

    `started_with` is the environment with which the libraries were loaded.
    """

    def __init__(self, started_with: Mapping[str, str]) -> None:
        self._started_with = started_with
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._socket.close()
            _serve(other)
        other.close()

    def use(self) -> None:
        """Have this process's agents be forked."""
        forking = ModuleType("subprocess")
        vars(forking).update(vars(subprocess), Popen=self._begin)
        agents.subprocess = forking  # type: ignore[attr-defined]

    def _begin(self, command: Sequence[str], *, env: Mapping[str, str], stdout: int, **settings: Any) -> Any:
        """In place of `subprocess.Popen`. An agent whose ranks inherit a socket, as a node's do, is started."""
        *_, model, room = command
        talk, *others = settings["pass_fds"]
        if others or not self._has_settings(env):
            return subprocess.Popen(command, env=env, stdout=stdout, **settings)
        request = {"arguments": [model, room], "environment": dict(env), "supervisor": os.getpid()}
        _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [stdout, talk])
            return ForkedAgent(int(self._socket.recv(REQUEST_BYTES)))
        finally:
            _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _has_settings(self, environment: Mapping[str, str]) -> bool:
        return _read_early(environment) == _read_early(self._started_with)


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(READ_LATE)}


def _serve(command: socket.socket) -> NoReturn:
    """Fork an agent for each request of the command, until the command has ended."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(command, REQUEST_BYTES, 2)
        if not request:
            os._exit(0)
        if (pid := os.fork()) == 0:
            between = os.getpid()
            if os.fork() == 0:
                _become(json.loads(request), descriptors, command, between)
            os._exit(0)
        os.waitpid(pid, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: dict[str, Any], descriptors: list[int], command: socket.socket, between: int) -> NoReturn:
    """Have this process be as if the agent had just been started, by the command itself."""
    exit_code = 1
    try:
        os.setsid()
        output, talk = descriptors
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[1:] = [str(talk), *request["arguments"]]
        while os.getppid() == between:
            time.sleep(POLL_SECONDS)  # until the kernel has given this process to the command: nothing signals that
        follow_parent(request["supervisor"])
        command.send(str(os.getpid()).encode())
        command.close()
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        if FOLDER_VARIABLE in os.environ:
            take_up_plan([AGENT_MODULE], os.environ)
        agent.main()
    except SystemExit as error:
        print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - whatever it was, the process says it and leaves
        traceback.print_exc()
    finally:
        os._exit(exit_code)
