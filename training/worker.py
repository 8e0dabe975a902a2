"""Entry point of a rank: `torchrun ... -m training.worker SPECIFICATION`, or without torchrun where it is the only one.

Invariant: a request to stop is heard from the first moment on, before the heavy libraries are loaded; and the process
ends by leaving, never by taking itself apart. Taking a Gloo process group apart joins its thread while holding Python's
lock, for which that thread may be waiting: with torch 2.13, ranks whose work was done were seen to hang there for ever.
"""

import faulthandler
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from training.metrics.rank_lines import name_own_lines
from training.stopping import GRACE_VARIABLE, StopFlag, end_after_parent, follow_parent, stacks_file


def main() -> NoReturn:
    """Do the work of the specification in the file; never returns."""
    flag = StopFlag()
    flag.listen()
    follow_parent()
    end_after_parent(float(os.environ[GRACE_VARIABLE]))
    specification, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    name_own_lines(rank)
    stacks = stacks_file(specification.parent, rank).open("w")
    # From C, whatever Python is at: for the supervisor, which asks a rank without progress for its stacks.
    faulthandler.register(signal.SIGQUIT, stacks, all_threads=True)
    try:
        kept = _work(specification, flag)
    except BaseException:  # noqa: BLE001 - whatever it was, the process reports it and leaves
        traceback.print_exc()
        _leave(1)
    _leave(0, kept)


def _work(path: Path, flag: StopFlag) -> object:
    """Train or evaluate; returns whatever must live until the process has left."""
    # Loading torch takes seconds, in which a SIGTERM must not kill this rank: hence these imports come after listening.
    # What an evaluation needs takes as long again.
    from training.spec import SegmentSpec
    from training.world import read_world

    world = read_world()
    world.rank_status.begin(path.parent, world.rank)
    spec = SegmentSpec.model_validate_json(path.read_bytes())
    if spec.work == "evaluate":
        # Only one of the two: each would load the libraries of the other's work.
        from training.evaluation import evaluate

        evaluate(spec, world, flag)
        return None
    from training.segment import run_segment

    return run_segment(spec, world, flag)


def _leave(exit_code: int, _kept: object = None) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
