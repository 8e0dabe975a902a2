"""Where a rank was when a signal ended it is known to its agent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from training.places import MicrobatchPlace, Place, Places

ROWS = np.array([7, 3, 11])
# A rank that was begun as a process of its own.
BEGUN = """
import os, signal, sys
import numpy as np
from training.places import Places

with Places(int(sys.argv[1])).of(1, 4).computing(5, 2, np.array([7, 3, 11])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def places() -> Iterator[Places]:
    made = Places.make(num_ranks=2, num_microbatches=3, batch_size=8)
    yield made
    made.close()


def compute_and_die(place: Place) -> None:
    """In a fork."""
    pid = os.fork()
    if pid == 0:
        with place.computing(5, 2, ROWS):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def require_place(found: MicrobatchPlace | None, since: float) -> None:
    assert found is not None
    assert (found.step, found.index, found.rows) == (5, 2, (7, 3, 11))
    assert since <= found.began_at <= time.monotonic()


def test_the_microbatch_of_a_rank_that_was_killed_is_known_and_that_of_no_other_process(places: Places) -> None:
    since = time.monotonic()
    assert places.find(1, 0) is None
    compute_and_die(places.of(1, life=4))
    found = places.find(1, 4)
    require_place(found, since)
    assert places.find(1, 5) is None and places.find(0, 4) is None
    assert found is not None and not places.has_been_computed(found)


def test_also_of_a_rank_that_was_not_forked(places: Places) -> None:
    since = time.monotonic()
    subprocess.run([sys.executable, "-c", BEGUN, str(places.descriptor)], pass_fds=[places.descriptor], check=False)
    require_place(places.find(1, 4), since)


def test_a_rank_between_two_microbatches_is_at_none_and_who_has_computed_one_is_known(places: Places) -> None:
    compute_and_die(places.of(0, life=0))
    died_at = places.find(0, 0)
    assert died_at is not None
    place = places.of(1, life=0)
    with pytest.raises(RuntimeError), place.computing(5, 2, ROWS):
        raise RuntimeError("Connection closed by peer")
    assert places.find(1, 0) is None and not places.has_been_computed(died_at)
    with place.computing(4, 2, ROWS):
        assert places.find(1, 0) is not None
    assert not places.has_been_computed(died_at)  # that was another step's
    with place.computing(5, 2, ROWS):
        pass
    assert places.find(1, 0) is None and places.has_been_computed(died_at)


def test_where_no_agent_looks_a_rank_says_nothing() -> None:
    computed = False
    with Place().computing(5, 2, ROWS):
        computed = True
    assert computed
