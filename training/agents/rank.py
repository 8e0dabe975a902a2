"""One rank, forked by its agent, or begun by it: `python -m training.agents.rank ORDER LIFE PLACES RANK`.

Invariant: a request to stop is heard from the first moment on: signals are blocked when this begins, and are let in
when somebody listens. The process ends by leaving, never by taking itself apart. Taking a Gloo process group apart
joins its thread while holding Python's lock, for which that thread may be waiting: with torch 2.13, ranks whose work
was done were seen to hang there for ever.
"""

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from training.agents.ends import write_failure
from training.agents.locks import hold_lock, rank_lock
from training.agents.order import AgentOrder
from training.metrics.rank_lines import name_own_lines
from training.places import Place, Places
from training.stopping import StopFlag, end_after_parent, follow_parent, stacks_file
from training.titles import name_process
from training.world import World

# What an agent waits for, and a rank listens to.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
# What all that a rank is found by begins with: `ps`, /proc/PID/cmdline.
TITLE = "holdfast rank"


def be_a_rank(order: AgentOrder, local_rank: int, life: int, place: Place) -> NoReturn:
    """Do the rank's part of the order's work; never returns. From its second `life` on it joins those that work.

    What it computes it says in its `place`.
    """
    flag = StopFlag()
    flag.listen()
    follow_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    world, folder = order.world_of(local_rank, life), order.folder
    world.place = place
    # Where torch's compiler keeps what it makes, which a count of a model's memory loads too.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiler"))
    name_process(f"hf-rank-{world.slot}", f"{TITLE} {world.slot} {folder}")
    name_own_lines(world.slot)
    try:
        lock = hold_lock(rank_lock(folder, world.slot))
        work = _find_work(order.specification, world, flag)
        end_after_parent(order.grace_seconds)
        world.rank_status.begin(folder, world.slot)
        stacks = stacks_file(folder, world.slot).open("w")
        # From C, whatever Python is at: for the supervisor, which asks a rank without progress for its stacks.
        faulthandler.register(signal.SIGQUIT, stacks, all_threads=True)
        kept = work()
    except BaseException as error:  # noqa: BLE001 - whatever it was, the process reports it and leaves
        traceback.print_exc()
        with suppress(OSError):  # on a full disk the exit code alone tells
            write_failure(folder, world.slot, error)
        _leave(1)
    _leave(0, (kept, lock))


def _find_work(path: Path, world: World, flag: StopFlag) -> Callable[[], object]:
    """To train or to evaluate; what is called returns whatever must live until the process has left.

    Called before this process has a second thread: the one that assembles input is forked from it.
    """
    # Loading torch takes seconds, in which a SIGTERM must not kill this rank: hence these imports come after listening.
    # What an evaluation needs takes as long again. A rank that was forked has them.
    from training.spec import SegmentSpec

    spec = SegmentSpec.model_validate_json(path.read_bytes())
    if spec.work == "evaluate":
        # Only one of the two: each would load the libraries of the other's work.
        from training.evaluation import evaluate

        return partial(evaluate, spec, world, flag)
    from training.agents.forks import why_not_fork
    from training.batches.ahead import AssemblingAhead
    from training.segment import run_segment

    ahead = AssemblingAhead(can_fork=why_not_fork() is None, is_first=world.local_rank == 0)
    return partial(run_segment, spec, world, flag, ahead)


def _leave(exit_code: int, _kept: object = None) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def main() -> NoReturn:
    """A rank that could not be forked."""
    path, *numbers = sys.argv[1:]
    order = AgentOrder.model_validate_json(Path(path).read_bytes())
    life, descriptor, local_rank = map(int, numbers)
    be_a_rank(order, local_rank, life, Places(descriptor).of(local_rank, life))


if __name__ == "__main__":
    main()
