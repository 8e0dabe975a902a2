"""What ranks agree on at a step boundary, and how many messages that takes."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from training.agreement import Agreement, BoundaryDecision, children_of, parent_of
from training.checkpointing.writer import Writing
from training.stopping import StopFlag, StopReason
from training.world import World

LONGEST_SECONDS = 60


class Network:
    """Carries what threads send that are ranks, and counts it.

    A rank's clock is the length of the longest chain of messages that led to where it is (Lamport, 1978).
    """

    def __init__(self) -> None:
        self.num_messages = 0
        self._links: defaultdict[tuple[int, int], queue.Queue[tuple[torch.Tensor, int]]] = defaultdict(queue.Queue)
        self._lock = threading.Lock()
        self._own = threading.local()

    def enter(self, rank: int) -> None:
        self._own.rank, self._own.clock = rank, 0

    @property
    def clock(self) -> int:
        return int(self._own.clock)

    def wait(self) -> None:
        """What is sent or received has been, when the call returns."""

    def send(self, sent: list[torch.Tensor], receiver: int, _tag: int) -> "Network":
        (words,) = sent
        with self._lock:
            self.num_messages += 1
            link = self._links[self._own.rank, receiver]
        link.put((words.clone(), self._own.clock + 1))
        return self

    def recv(self, received: list[torch.Tensor], sender: int, _tag: int) -> "Network":
        (words,) = received
        with self._lock:
            link = self._links[sender, self._own.rank]
        sent, clock = link.get(timeout=LONGEST_SECONDS)
        words.copy_(sent)
        self._own.clock = max(self._own.clock, clock)
        return self


class Flag(StopFlag):
    """Says what it is told to say."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__()
        self._said = reason

    def reason(self) -> StopReason:
        return self._said


def only(rank: int, reason: StopReason) -> Callable[[int], StopReason]:
    """One rank has a reason to stop."""
    return lambda other: reason if other == rank else StopReason.NONE


def decide(
    size: int, flag_of: Callable[[int], StopReason], **words_of: Callable[[int], Any]
) -> tuple[list[BoundaryDecision], Network, int]:
    """What each of the ranks decides, the network, and the longest chain of messages."""
    network = Network()
    decisions: dict[int, BoundaryDecision] = {}
    clocks: list[int] = []

    def be(rank: int) -> None:
        network.enter(rank)
        words = {name: of(rank) for name, of in words_of.items()}
        decisions[rank] = Agreement(World(rank, size, rank, size, group=network), Flag(flag_of(rank))).decide(**words)
        clocks.append(network.clock)

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_SECONDS)
    return [decisions[rank] for rank in range(size)], network, max(clocks)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_all_ranks_decide_the_same_whichever_of_them_is_asked_to_stop(size: int) -> None:
    for asked in range(size):
        decisions, _, _ = decide(size, only(asked, StopReason.PREEMPTED))
        assert set(decisions) == {BoundaryDecision(StopReason.PREEMPTED, False, Writing.DONE)}


def test_the_first_ranks_clock_alone_decides_about_time() -> None:
    of_last, _, _ = decide(4, only(3, StopReason.BUDGET), save_is_due=lambda rank: rank == 3)
    assert set(of_last) == {BoundaryDecision(StopReason.NONE, False, Writing.DONE)}
    of_first, _, _ = decide(4, only(0, StopReason.BUDGET), save_is_due=lambda rank: rank == 0)
    assert set(of_first) == {BoundaryDecision(StopReason.BUDGET, True, Writing.DONE)}


def test_512_ranks_agree_over_a_tree_of_messages() -> None:
    decisions, network, longest = decide(512, only(511, StopReason.PREEMPTED))
    assert set(decisions) == {BoundaryDecision(StopReason.PREEMPTED, False, Writing.DONE)}
    assert network.num_messages == 2 * 511
    assert longest == 18  # a ring has 1,022


@pytest.mark.parametrize("size", [1, 2, 6, 7, 64, 100])
def test_every_rank_but_the_first_is_the_child_of_its_parent(size: int) -> None:
    found = {child: rank for rank in range(size) for child in children_of(rank, size)}
    assert found == {rank: parent_of(rank) for rank in range(1, size)}


def test_of_the_ranks_of_a_machine_one_alone_has_its_parent_elsewhere() -> None:
    away = [rank for rank in range(8, 16) if parent_of(rank) not in range(8, 16)]
    assert away == [8]
