"""Entry point of a rank: `torchrun ... -m training.worker SPECIFICATION`.

Invariant: a request to stop is heard from the first moment on, before the heavy libraries are loaded.
"""

import sys
from pathlib import Path

from training.stopping import StopFlag, follow_parent


def main() -> None:
    """Train one segment as the specification in the file says."""
    flag = StopFlag()
    flag.listen()
    follow_parent()
    # Loading torch takes seconds, in which a SIGTERM must not kill this rank: hence these imports come after listening.
    from training.segment import run_segment
    from training.specification import SegmentSpec
    from training.world import read_world

    spec = SegmentSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    flag.set_budget(spec.budget_seconds)
    run_segment(spec, read_world(), flag)


if __name__ == "__main__":
    main()
