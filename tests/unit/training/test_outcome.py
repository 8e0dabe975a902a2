"""Why a segment failed, in words that say what happened."""

import socket

from training.outcome import describe_failure
from training.world import World

OF_GLOO = RuntimeError(
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:3503: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application."
)


def test_a_broken_connection_is_told_as_one_with_the_address_of_the_other_side() -> None:
    told = describe_failure(OF_GLOO)
    assert told.startswith("the connection to another rank broke: ")
    assert "[10.0.0.2]:3503: Connection reset by peer" in told and "typically" not in told


def test_any_other_error_is_told_as_it_is() -> None:
    assert describe_failure(ValueError("no such column")) == "ValueError: no such column"


def test_a_rank_is_named_with_its_machine_where_there_are_several() -> None:
    assert World(3, 4, 3, 4).label == "rank 3"
    assert World(3, 4, 1, 2).label == f"rank 3 on {socket.gethostname()}"
