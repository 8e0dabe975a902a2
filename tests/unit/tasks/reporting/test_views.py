"""What a segment's record says of ranks that died while the others trained on, in words."""

from storage.runs.run_records import ViewRecord
from tasks.reporting.views import describe_views


def died(rank: int, step: int, seconds: float = 0.2) -> ViewRecord:
    return ViewRecord(step=step, lost=[rank], causes=["SIGKILL"], num_ranks=3, seconds=seconds)


def test_nothing_is_said_where_nobody_died() -> None:
    assert describe_views([]) is None
    assert describe_views([ViewRecord(step=3, joined=[1], num_ranks=4, seconds=0.1)]) is None


def test_who_died_at_which_step_and_for_how_long_the_others_paused_is_said() -> None:
    both = ViewRecord(step=1_200, lost=[0, 2], causes=["SIGKILL", "SIGSEGV"], num_ranks=2, seconds=1.04)
    joined = ViewRecord(step=1_250, joined=[0], num_ranks=3, seconds=9.0)
    assert describe_views([died(1, 7), both, joined]) == (
        "3 ranks died and the others trained on from the same step: rank 1 (SIGKILL) at step 7 and rank 0 (SIGKILL) "
        "and rank 2 (SIGSEGV) at step 1,200; the longest pause was 1.0 s. 1 rank joined in their place."
    )


def test_of_many_deaths_the_first_are_named() -> None:
    words = describe_views([died(1, step) for step in range(1, 2_002)])
    assert words is not None and words.startswith("2,001 ranks died")
    assert "at step 3 and 1,998 times more; the longest" in words
