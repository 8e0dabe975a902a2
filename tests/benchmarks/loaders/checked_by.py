"""What row groups are compared with in a measurement: their hashes, as in the product, or something else.

As a module it is the process that assembles ahead, for a loader that is measured so: `python -m ... pages`.
"""

import sys

from training.batches import ahead
from training.data import row_groups

HASHES, PAGES, NOTHING = "hashes", "pages", "nothing"


def check_by(what: str) -> None:
    """Read in this process as the version before did, by the checksums of pages, or without any comparison."""
    if what == HASHES:
        return
    setattr(row_groups, "require_same", lambda *_: None)  # noqa: B010 - the name is imported there
    row_groups.READ_OPTIONS["page_checksum_verification"] = what == PAGES


class AssemblingAhead(ahead.AssemblingAhead):
    """The product's, whose process compares what `what` says."""

    def __init__(self, what: str) -> None:
        self.command = (sys.executable, "-m", __spec__.name, what)
        super().__init__()


if __name__ == "__main__":
    check_by(sys.argv[1])
    ahead.work_and_leave(sys.stdin.fileno())
