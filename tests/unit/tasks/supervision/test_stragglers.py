"""A rank that makes the others wait, and a network that does, are told apart, and said once."""

from collections.abc import Mapping

from tasks.supervision.stragglers import Stragglers
from training.rank_status import Phase, RankStatus

STEPS = 100


class Ranks:
    """Four ranks that compute two microbatches in each step; a step takes as long as the slowest, and the messages."""

    def __init__(self) -> None:
        self.stragglers = Stragglers()
        self.steps = 0
        self.computed = dict.fromkeys(range(4), 0.0)
        self.waited = dict.fromkeys(range(4), 0.0)
        self.stragglers.look(self.rank_statuses())

    def train(self, transfer: float, slow: Mapping[int, float] | None = None) -> list[str]:
        """A window of steps of 0.1 s, and of `slow` ranks of so many more; what is said of it."""
        seconds = {rank: 0.1 + (slow or {}).get(rank, 0.0) for rank in self.computed}
        for rank, own in seconds.items():
            self.computed[rank] += STEPS * own
            self.waited[rank] += STEPS * (max(seconds.values()) - own + transfer)
        self.steps += STEPS
        return self.stragglers.look(self.rank_statuses())

    def rank_statuses(self) -> list[RankStatus]:
        return [
            RankStatus(
                rank=rank, host=f"n{rank // 2}", beat=self.steps, step=self.steps, phase=Phase.COMPUTING, seconds=0,
                microbatches=2 * self.steps,
                spent={Phase.COMPUTING: self.computed[rank], Phase.OTHERS: self.waited[rank]},
            )
            for rank in self.computed
        ]  # fmt: skip


def test_a_slow_rank_is_named_once_with_how_slow_it_is() -> None:
    ranks = Ranks()
    assert ranks.train(transfer=0.01) == []
    (said,) = ranks.train(transfer=0.01, slow={3: 0.1})
    assert said.startswith(
        "Rank 3 on n1 is slower than the others: it computes a microbatch in 0.1 s, the rank in the middle "
    )
    assert "middle in 0.05 s. The others wait for 52% of their time." in said
    assert ranks.train(transfer=0.01, slow={3: 0.1}) == []


def test_a_network_that_has_become_slow_is_no_rank_s_fault_and_not_called_broken() -> None:
    ranks = Ranks()
    assert ranks.train(transfer=0.01) == []
    (said,) = ranks.train(transfer=0.1)
    assert said.startswith("What the ranks send each other takes 0.1 s of each step, 50% of the time; earlier in this ")
    assert "it was 0.01 s. The network between n0 and n1 has become slower; it is not broken." in said
    assert ranks.train(transfer=0.2) == []


def test_small_differences_are_not_worth_a_word() -> None:
    ranks = Ranks()
    assert ranks.train(transfer=0.001) == []
    assert ranks.train(transfer=0.02, slow={1: 0.02}) == []


def test_of_a_rank_alone_or_of_no_steps_nothing_is_said() -> None:
    ranks = Ranks()
    assert ranks.stragglers.look(ranks.rank_statuses()) == []
    alone = Stragglers()
    assert alone.look(ranks.rank_statuses()[:1]) == []
    ranks.train(transfer=1.0)
    assert alone.look(ranks.rank_statuses()[:1]) == []
