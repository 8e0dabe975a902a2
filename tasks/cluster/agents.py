"""The agents of this machine: begun for one order, or once for all that a flow's process will give.

Invariant: environment decides bits, so an agent that is kept works on an order only if it was begun with the
environment that the order's ranks are to have; and none outlives the block in which it is kept.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from tasks.cluster.processes import KILLED_SECONDS
from tasks.cluster.rank_environment import environment_of_ranks
from tasks.configuration.cluster import ClusterConfig
from training.agents.talk import Answer, Talk
from training.configuration import TrainConfig
from training.model_configuration import ModelConfig
from training.stopping import follow_parent

AGENT_MODULE = "training.agents.agent"
# A process shows its title where its arguments were: with so many bytes beside them the folder of a segment has room.
ROOM = 256


class AgentProcess:
    """An agent that was begun by this process, and ends with it. It works on one order at a time.

    With `model`, a kind of model, it loads the libraries of training before the first order comes. `descriptors` are
    what its ranks inherit.
    """

    def __init__(self, environment: Mapping[str, str], model: str = "", descriptors: tuple[int, ...] = ()) -> None:
        self.environment = environment
        self.has_taken = False
        self._is_at_work = False
        self._log: Path | None = None
        self._read = 0
        self._talk, other = Talk.pair()
        # In memory: before the first order there is no folder to write to.
        self._said = os.memfd_create("agent")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", AGENT_MODULE, str(other.descriptor), model, " " * ROOM],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the flow alone, which passes it on once
                preexec_fn=partial(follow_parent, os.getpid()),
                pass_fds=(other.descriptor, *descriptors),
            )
        finally:
            other.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it lives and can be given an order."""
        return not self._is_at_work and self._process.poll() is None

    def give(self, order: Path, log: Path) -> None:
        """Have it work on the order in this file. What it prints goes to the log."""
        self.has_taken, self._is_at_work, self._log = False, True, log
        with suppress(OSError):  # it is gone, which is heard next
            self._talk.say(str(order))

    def is_at_work(self, wait_seconds: float) -> bool:
        """Wait a moment for the end of the order; whether it goes on. It ends, too, when the agent does."""
        if not self._is_at_work:
            return False
        try:
            answer = self._talk.hear(wait_seconds)
        except EOFError:
            self.wait(KILLED_SECONDS)
            self._note_end()
            return False
        self.has_taken = self.has_taken or answer is not None
        if answer == Answer.ENDED:
            self._note_end()
        return self._is_at_work

    def ask_to_leave(self) -> None:
        """Its ranks are to save and leave: the agent passes it on."""
        if self._is_at_work:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Whether the process ends within this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """End it, whatever it is at."""
        self._process.kill()
        self.wait(KILLED_SECONDS)
        self._talk.close()
        os.close(self._said)

    def _note_end(self) -> None:
        """What it said before it wrote to the log itself is put there, too."""
        self._is_at_work = False
        said = os.pread(self._said, os.fstat(self._said).st_size, self._read)
        self._read += len(said)
        if said and self._log is not None:
            with suppress(OSError), self._log.open("ab") as log:
                log.write(said)


class KeptAgent:
    """An agent for one order after another; begun anew where the one at hand will not do.

    All get what this process inherited: what libraries set in its environment later does not reach ranks.
    """

    def __init__(self) -> None:
        self._agent: AgentProcess | None = None
        self._inherited = dict(os.environ)
        # Linux tells a child when the thread that began it ends: this one lives as long as the agent is kept.
        self._launcher = ThreadPoolExecutor(1, "agent launcher")

    @property
    def pid(self) -> int | None:
        """Of the agent at hand."""
        return None if self._agent is None else self._agent.pid

    def begin(self, train: TrainConfig, model: str) -> AgentProcess:
        """Begin one that loads libraries now. Raises `OSError` where the system has no process to give."""
        self._end()
        self._agent = self._launcher.submit(AgentProcess, self._environment(train), model).result()
        return self._agent

    def take(self, train: TrainConfig, model: str) -> AgentProcess:
        """An idle agent with the environment of these ranks. Raises as `begin`."""
        agent = self._agent
        if agent is not None and agent.is_idle and agent.environment == self._environment(train):
            return agent
        return self.begin(train, model)

    def close(self) -> None:
        """End it. One that the kernel holds is left alone: see `ranks.py`."""
        self._end()
        self._launcher.shutdown()

    def _environment(self, train: TrainConfig) -> dict[str, str]:
        return environment_of_ranks(train, inherited=self._inherited)

    def _end(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None


# Prefect calls a flow, calls it again, and calls its steps, all with values that it can write down: an agent is none,
# and cannot be handed through.
_kept: ContextVar[KeptAgent | None] = ContextVar("kept agent", default=None)


@contextmanager
def keeping_agent(
    cluster: ClusterConfig, train: TrainConfig, model: ModelConfig, is_likely: bool = True
) -> Iterator[None]:
    """Within the block an agent is kept for the run's orders on this machine.

    It loads libraries from now on; if an order is not likely, from the first one.
    """
    if cluster.kind != "local":
        yield
        return
    kept = KeptAgent()
    token = _kept.set(kept)
    try:
        if is_likely:
            with suppress(OSError):  # whoever gives the first order meets it again
                kept.begin(train, model.kind)
        yield
    finally:
        _kept.reset(token)
        kept.close()


def kept_agent() -> KeptAgent | None:
    """The agent of the block that this is called in."""
    return _kept.get()
