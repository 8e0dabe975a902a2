"""What is said of ranks that died while the others trained on, in words."""

from storage.runs.run_records import ViewRecord, ViewTotals
from tasks.reporting.views import describe_views


def died(rank: int, step: int, seconds: float = 0.2) -> ViewRecord:
    return ViewRecord(step=step, lost=[rank], causes=["SIGKILL"], num_ranks=3, seconds=seconds)


def totals(num_lost: int, num_joined: int = 0, stay_out: tuple[int, ...] = ()) -> ViewTotals:
    return ViewTotals(
        num_views=num_lost, num_lost=num_lost, num_joined=num_joined, longest_seconds=1.04, stay_out=list(stay_out)
    )


def test_nothing_is_said_where_nobody_died() -> None:
    assert describe_views([], None) is None
    assert describe_views([ViewRecord(step=3, joined=[1], num_ranks=4, seconds=0.1)], totals(0, 1)) is None


def test_who_died_at_which_step_and_for_how_long_the_others_paused_is_said() -> None:
    both = ViewRecord(step=1_200, lost=[0, 2], causes=["SIGKILL", "SIGSEGV"], num_ranks=2, seconds=1.04)
    joined = ViewRecord(step=1_250, joined=[0], num_ranks=3, seconds=9.0)
    assert describe_views([died(1, 7), both, joined], totals(3, 1)) == (
        "3 ranks died and the others trained on from the same step: rank 1 (SIGKILL) at step 7 and rank 0 (SIGKILL) "
        "and rank 2 (SIGSEGV) at step 1,200; the longest pause was 1.0 s. 1 rank joined in their place."
    )


def test_a_node_that_was_lost_came_back_and_another_one_joined() -> None:
    lost = ViewRecord(step=7, lost=[2], causes=["its node is lost"], lost_nodes=["n2"], num_ranks=2, seconds=0.2)
    back = ViewRecord(step=1_250, joined=[2], joined_nodes=["n2"], num_ranks=3, seconds=0.3)
    more = ViewRecord(step=1_300, joined=[3], joined_nodes=["n4"], num_ranks=4, seconds=0.3)
    words = describe_views([lost, back, more], totals(1, 2))
    assert words is not None and "rank 2 (its node is lost) at step 7" in words
    assert words.endswith(" Node n2 came back at step 1,250. Node n4 joined at step 1,300.")
    assert describe_views([more], totals(0, 1)) == "Node n4 joined at step 1,300."


def test_of_many_deaths_the_first_are_named_and_all_are_counted() -> None:
    words = describe_views([died(1, step) for step in range(1, 200)], totals(2_001))
    assert words is not None and words.startswith("2,001 ranks died")
    assert "at step 3 and 1,998 more deaths; the longest" in words
    assert words.endswith(" None joined in their place.")


def test_a_short_pause_is_not_called_none() -> None:
    words = describe_views([died(1, 7)], totals(1).model_copy(update={"longest_seconds": 0.02}))
    assert words is not None and "the longest pause was less than 0.1 s." in words


def test_who_stays_out_is_named() -> None:
    words = describe_views([died(1, 7)], totals(1, stay_out=(1,)))
    assert words is not None and words.endswith(
        " Rank 1 died so often that none was begun again: the rest trained with 1 rank fewer."
    )
    words = describe_views([died(1, 7)], totals(1, stay_out=(1, 3)))
    assert words is not None and " Ranks 1 and 3 died so often " in words
