"""The alpha-beta model of `make scaling`: its arithmetic, by hand."""

from dataclasses import replace

import pytest

from tests.benchmarks.scaling.model import Link, Work

FREE = Link(latency=0, bytes_per_second=1)


def test_a_ring_sends_an_nth_of_the_bytes_in_each_of_its_messages() -> None:
    link = Link(latency=0.001, bytes_per_second=1000)
    assert link.sum_over(400, 2) == pytest.approx(2 * (0.001 + 0.2))
    assert link.sum_over(400, 4) == pytest.approx(6 * (0.001 + 0.1))


def test_a_decision_goes_up_a_tree_and_down_again() -> None:
    link = Link(latency=0.001, bytes_per_second=1000)
    assert [link.agree(ranks) for ranks in (1, 2, 4, 5, 1024)] == pytest.approx([0, 0.002, 0.004, 0.006, 0.02])


def test_a_step_waits_for_the_rank_with_most_leaves() -> None:
    work = Work(num_microbatches=6, device_seconds=1.0, num_values=0)
    assert [work.step_seconds(ranks, FREE) for ranks in (1, 2, 4, 6)] == pytest.approx([6, 3, 2, 1])
    assert work.efficiency(4, FREE) == pytest.approx(6 / (4 * 2))


def test_processors_that_all_ranks_share_are_shared() -> None:
    work = Work(num_microbatches=8, device_seconds=0, num_values=0, host_seconds=0.5, num_cores=2)
    assert [work.step_seconds(ranks, FREE) for ranks in (1, 2, 8)] == pytest.approx([4, 2, 2])
    exchanging = replace(work, rank_seconds=0.25)
    assert [exchanging.step_seconds(ranks, FREE) for ranks in (1, 2, 8)] == pytest.approx([4, 2.25, 3])


def test_the_exact_sum_sends_twice_the_bytes_of_the_fast_one() -> None:
    work = Work(num_microbatches=2, device_seconds=1, num_values=100)
    wide = Link(latency=0, bytes_per_second=1000)
    exact, fast = (work.step_seconds(2, wide, kind) - 1 for kind in ("exact", "fast"))
    assert (exact, fast) == pytest.approx((0.8, 0.4))
