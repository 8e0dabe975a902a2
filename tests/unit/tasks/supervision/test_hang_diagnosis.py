"""Why ranks make no step is told from what each says of itself, and only what is certain ends them early."""

import pytest

from tasks.supervision import hang
from tasks.supervision import hang_diagnosis as diagnosis
from tasks.supervision.hang import LEAST_LOST_SECONDS, LOST_STEPS, SILENT_SECONDS, HangWatch
from tasks.supervision.hang_diagnosis import HangDiagnosis
from training.metrics.reporter import Report
from training.rank_status import Collective, Phase, RankStatus

HOSTS = ("n1", "n1", "n2", "n2")
COLLECTIVES = (Collective.GRADIENTS, Collective.GRADIENTS, Collective.GRADIENTS, Collective.BOUNDARY)
HANG_SECONDS = 900.0
POLL_SECONDS = 2.0


class Clock:
    """Stands for the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (hang, diagnosis):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Ranks:
    """Four ranks on two machines, each of which beats as long as it is not silent."""

    def __init__(self, clock: Clock, watch: HangWatch) -> None:
        self.clock, self.watch = clock, watch
        self.phases = dict.fromkeys(range(len(HOSTS)), Phase.OTHERS)
        self.since = dict.fromkeys(range(len(HOSTS)), clock.now)
        self.silent: dict[int, RankStatus] = {}
        self.gone: set[int] = set()
        self.step = 17

    def rank_status(self, rank: int) -> RankStatus:
        return self.silent.get(rank) or RankStatus(
            rank=rank, host=HOSTS[rank], beat=int(self.clock.now), step=self.step, phase=self.phases[rank],
            collective=COLLECTIVES[rank] if self.phases[rank] is Phase.OTHERS else None,
            seconds=self.clock.now - self.since[rank], microbatches=0, spent={},
        )  # fmt: skip

    def silence(self, *ranks: int) -> None:
        self.silent |= {rank: self.rank_status(rank) for rank in ranks}

    def pass_time(self, seconds: float) -> bool:
        """Whether they are taken to hang within so many seconds."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += POLL_SECONDS
            if self.watch.wants_statuses():
                self.watch.look([self.rank_status(rank) for rank in range(len(HOSTS)) if rank not in self.gone])
            if self.watch.is_hung():
                return True
        return False


@pytest.fixture
def ranks(clock: Clock) -> Ranks:
    """Ranks that have made steps of a second until now."""
    watch = HangWatch(HANG_SECONDS)
    watch.heard(Report(phase="train", step=17, longest_step_seconds=1.0))
    return Ranks(clock, watch)


def test_ranks_on_a_machine_that_is_not_heard_of_are_named_and_not_waited_for_until_hang_seconds(ranks: Ranks) -> None:
    ranks.silence(2, 3)
    assert not ranks.pass_time(LEAST_LOST_SECONDS - POLL_SECONDS)
    assert ranks.pass_time(2 * POLL_SECONDS)
    cause = ranks.watch.cause
    assert cause.startswith("Rank 2 on n2 and rank 3 on n2 have not been heard of for ")
    assert "2 other ranks wait at step 17 for the sum of the gradients: the machine vanished or stands still, " in cause
    assert "reported nothing for 60 s (20 times their longest step of late, and at least 60 s)" in cause


def test_a_silent_rank_whose_machine_is_heard_of_is_called_a_process_that_stands_still(ranks: Ranks) -> None:
    ranks.silence(3)
    assert ranks.pass_time(LEAST_LOST_SECONDS + POLL_SECONDS)
    assert ranks.watch.cause.startswith("Rank 3 on n2 has not been heard of")
    assert "the process stands still, while others of its machine do not." in ranks.watch.cause


def test_a_silent_rank_that_holds_the_samples_of_another_one_is_named_and_not_the_one_that_waits(ranks: Ranks) -> None:
    ranks.phases[2] = Phase.SHARED
    ranks.silence(3)
    assert not ranks.pass_time(LEAST_LOST_SECONDS - POLL_SECONDS)
    assert ranks.pass_time(2 * POLL_SECONDS)
    assert ranks.watch.cause.startswith("Rank 3 on n2 has not been heard of for ")
    assert "samples that another process of its machine decodes" in ranks.watch.cause


def test_ranks_that_wait_for_samples_of_no_rank_are_not_called_cut_off(ranks: Ranks) -> None:
    """A process that works ahead for all of them decodes for long."""
    ranks.phases = dict.fromkeys(ranks.phases, Phase.SHARED)
    assert not ranks.pass_time(HANG_SECONDS - POLL_SECONDS)
    assert ranks.pass_time(2 * POLL_SECONDS)
    assert "it has waited for samples that another process of its machine decodes" in ranks.watch.cause


def test_ranks_that_all_run_and_wait_for_each_other_have_a_broken_network(ranks: Ranks) -> None:
    assert ranks.pass_time(LEAST_LOST_SECONDS + POLL_SECONDS)
    assert ranks.watch.cause.startswith("All ranks run, and have waited for each other for 6")
    assert "at step 17 for the decision at the step's boundary and the sum of the gradients: " in ranks.watch.cause
    assert "The network between n1 and n2 is broken." in ranks.watch.cause


def test_a_rank_that_died_and_stays_out_is_not_what_the_others_wait_for(ranks: Ranks) -> None:
    ranks.phases[2] = Phase.COMPUTING
    assert not ranks.pass_time(LEAST_LOST_SECONDS - POLL_SECONDS)
    ranks.gone = {3}
    assert not ranks.pass_time(HANG_SECONDS - LEAST_LOST_SECONDS - POLL_SECONDS)
    assert ranks.pass_time(4 * POLL_SECONDS)
    assert ranks.watch.cause.startswith("Rank 2 on n2 did not come to where 2 other ranks wait for ")


def test_a_rank_in_place_of_one_that_died_is_heard_of_however_its_beats_are_counted() -> None:
    found = HangDiagnosis()
    status = RankStatus(
        rank=1, host="n1", pid=7, beat=1, step=5, phase=Phase.COMPUTING, seconds=1, microbatches=0, spent={}
    )
    assert not found.look([status])
    assert found.look([status.model_copy(update={"pid": 8, "step": 6})])


def test_long_steps_are_given_more_time(ranks: Ranks) -> None:
    ranks.watch.heard(Report(phase="train", step=17, longest_step_seconds=10.0))
    assert not ranks.pass_time(10.0 * LOST_STEPS - POLL_SECONDS)
    assert ranks.pass_time(2 * POLL_SECONDS)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase.COMPUTING, "it has been computing for "),
        (Phase.INPUT, "it has waited for samples for "),
        (Phase.SAVING, "it has been saving for "),
        (Phase.SHARED, "it has waited for samples that another process of its machine decodes for "),
    ],
)
def test_a_rank_that_is_busy_may_get_on_and_has_until_hang_seconds(ranks: Ranks, phase: Phase, words: str) -> None:
    ranks.phases[2] = phase
    assert not ranks.pass_time(HANG_SECONDS - POLL_SECONDS)
    assert ranks.pass_time(2 * POLL_SECONDS)
    assert ranks.watch.cause.startswith(
        "Rank 2 on n2 did not come to where 3 other ranks wait for the decision at the step's boundary and the sum of "
        "the gradients: " + words
    )
    assert "reported nothing for 900 s (segment.hang_seconds)" in ranks.watch.cause


def test_while_one_is_busy_a_silent_one_is_named_and_waited_for(ranks: Ranks) -> None:
    ranks.phases[2] = Phase.INPUT
    ranks.silence(3)
    assert not ranks.pass_time(HANG_SECONDS - POLL_SECONDS)
    assert ranks.pass_time(2 * POLL_SECONDS)
    assert ranks.watch.cause.startswith("Rank 3 on n2 has not been heard of")


def test_steps_count_though_the_rank_that_reports_them_is_not_heard_of(ranks: Ranks) -> None:
    ranks.silence(0, 1)
    for _ in range(10):
        assert not ranks.pass_time(LEAST_LOST_SECONDS - 5 * POLL_SECONDS)
        ranks.step += 1


def test_who_cannot_hear_anybody_accuses_nobody(ranks: Ranks) -> None:
    ranks.silence(2, 3)
    assert not ranks.pass_time(LEAST_LOST_SECONDS - POLL_SECONDS)
    ranks.watch.cannot_hear()
    assert not ranks.pass_time(LEAST_LOST_SECONDS - POLL_SECONDS)
    assert ranks.pass_time(2 * POLL_SECONDS)


def test_who_stood_still_itself_does_not_take_the_ranks_to_hang(ranks: Ranks) -> None:
    ranks.silence(2, 3)
    ranks.clock.now += 10 * HANG_SECONDS
    assert not ranks.watch.is_hung()


def test_before_the_first_step_nothing_is_known_of_how_long_one_takes(clock: Clock) -> None:
    ranks = Ranks(clock, HangWatch(HANG_SECONDS))
    ranks.silence(2, 3)
    assert not ranks.pass_time(HANG_SECONDS - POLL_SECONDS)


def test_what_is_configured_counts_from_the_beginning(clock: Clock) -> None:
    ranks = Ranks(clock, HangWatch(HANG_SECONDS, lost_seconds=20))
    ranks.silence(2, 3)
    assert ranks.pass_time(20 + SILENT_SECONDS)
    assert "reported nothing for 20 s (segment.lost_seconds)" in ranks.watch.cause


def test_of_ranks_of_which_nothing_is_known_nothing_is_said() -> None:
    assert HangDiagnosis().explain(10, 10) is None
