"""Nodes whose ranks are begun again however often they die, to measure many deaths. As a program: one of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tasks.cluster.node import main
from tests.helpers import nodes
from tests.helpers.survivors import dying_often


@contextmanager
def dying_nodes() -> Iterator[None]:
    """Nodes that are started in the block are such ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "PROGRAM", "tests.helpers.dying_nodes")
        yield


if __name__ == "__main__":
    with dying_often():
        main()
