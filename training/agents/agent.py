"""The agent of a node: `python -m training.agents.agent SOCKET MODEL ROOM`. It takes orders, one after another.

MODEL is the kind of model whose libraries it loads before the first order comes, or empty; ROOM is for its title.
Invariant: it loads what ranks need and computes nothing, so it has one thread and can be forked, and a rank of a later
order begins as one of the first. While it works on an order it holds the lock in the order's folder. It ends when the
process that began it has ended; if it dies itself, Linux has its ranks save and leave.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.loading import loading_libraries
from storage.logs import LOG_NAME
from storage.runs.code_version import own_version
from training.agents.locks import AGENT_LOCK, hold_lock
from training.agents.order import AgentOrder
from training.agents.rank import SIGNALS
from training.agents.talk import Answer, Talk
from training.model_configuration import PretrainedConfig
from training.places import Places
from training.spec import SegmentSpec
from training.stopping import SUPERVISOR_VARIABLE
from training.titles import name_process

NAME, TITLE = "holdfast-agent", "holdfast agent"
IDLE_SECONDS = 1.0  # to see a request to leave; an order, and the end of the supervisor, are heard at once
TO_LEAVE = (signal.SIGTERM, signal.SIGINT)
OUTPUT = (1, 2)


def _load_libraries(work: str, model: str) -> None:
    """Load what ranks will use, what was not loaded before, and call nothing of it."""
    with loading_libraries():
        # Seconds: only now, when signals wait. And only one of the two, until the other is asked for.
        if work == "evaluate":
            import training.evaluation
        else:
            import training.segment  # noqa: F401
        if model == "pretrained":
            from training.models.pretrained.network import PretrainedClassifier  # noqa: F401 - a name, or it loads later


def _load_encoder(model: PretrainedConfig) -> None:
    """Load the module of its architecture: seconds, which else each rank spends."""
    from training.models.pretrained.network import load_encoder

    with loading_libraries():
        load_encoder(model)


def _next_order(supervisor: Talk) -> Path | None:
    """The file of the next order; None if there will be none: the supervisor is gone, or somebody asks to leave."""
    with suppress(EOFError):
        while True:
            order = supervisor.hear(IDLE_SECONDS)
            if order is not None:
                return Path(order)
            if signal.sigtimedwait(TO_LEAVE, 0) is not None:
                return None
    return None


def _work_on(path: Path, supervisor: Talk) -> None:
    """Returns when all ranks of the order have ended, or when its supervisor is gone before it began them."""
    from training.agents.watched import WatchedRanks  # loads torch

    with _speaking_in(path.parent / LOG_NAME):
        lock = hold_lock(path.parent / AGENT_LOCK)
        if str(os.getppid()) != os.environ[SUPERVISOR_VARIABLE] or supervisor.is_over():
            raise SystemExit("What launched this agent was killed before it could begin.")
        name_process(NAME, f"{TITLE} {path}")
        supervisor.say(Answer.TAKEN)
        order = AgentOrder.model_validate_json(path.read_bytes())
        spec = SegmentSpec.model_validate_json(order.specification.read_bytes())
        _load_libraries(spec.work, spec.model.kind)
        if isinstance(spec.model, PretrainedConfig):
            _load_encoder(spec.model)
        places = Places.make(order.local_size, spec.train.microbatches, spec.train.batch_size)
        WatchedRanks(path, order, supervisor, places).run()
        places.close()
        name_process(NAME, TITLE)
        lock.close()


@contextmanager
def _speaking_in(log: Path) -> Iterator[None]:
    """What this process and its ranks print goes there, and afterwards nowhere: the folder may be put away."""
    _print_to(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666))
    yield
    _print_to(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))


def _print_to(descriptor: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for output in OUTPUT:
        os.dup2(descriptor, output)
    os.close(descriptor)


def main() -> None:
    """Work on orders until none will come any more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    supervisor = Talk.passed_on(int(sys.argv[1]))
    name_process(NAME, TITLE)
    own_version()  # each rank has it from here: the files may be changed while its code is in memory
    if model := sys.argv[2]:
        _load_libraries("train", model)
    while (order := _next_order(supervisor)) is not None:
        _work_on(order, supervisor)
        with suppress(OSError):  # it is gone, which is heard next
            supervisor.say(Answer.ENDED)
    os._exit(0)  # as a rank leaves


if __name__ == "__main__":
    main()
