"""What a cadence costs: the formulas agree with Young and Daly, with each other, and with the simulation."""

from dataclasses import replace
from math import exp, expm1, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.advice.cadence import (
    Costs,
    Rates,
    find_best_interval,
    forecast_cadence,
    lost_quantile,
    seconds_trained,
)
from tasks.advice.storage_cost import StoragePrices, find_prices, plan_storage, puts_of_save
from tests.helpers.cadence_simulation import MIN_CRASHES, daly_seconds, simulate_cadence, young_seconds
from training.configuration import CheckpointConfig

HOUR = 3600.0
# Stall, background, restart; crashes and notices per hour; interval.
CASES = {
    "saves that block": (Costs(20, 0, 60), Rates(2 / HOUR), 300),
    "saves in the background": (Costs(0.05, 20, 60), Rates(1 / HOUR), 60),
    "mostly notices": (Costs(0.5, 30, 90), Rates(0.5 / HOUR, 1 / HOUR), 120),
    "a slow store": (Costs(1, 290, 30), Rates(3 / HOUR), 300),
    "crash upon crash": (Costs(2, 10, 120), Rates(30 / HOUR, 10 / HOUR), 40),
}
costs_drawn = st.builds(
    Costs,
    stall_seconds=st.floats(0.001, 30),
    durable_seconds=st.floats(0, 120),
    restart_seconds=st.floats(0, 600),
)
rates_drawn = st.builds(
    Rates, crashes_per_second=st.floats(1e-8, 1 / 600), notices_per_second=st.floats(0, 1 / 600)
)  # fmt: skip
room_drawn = st.floats(0.01, 900)


@pytest.mark.parametrize("name", CASES)
def test_formulas_and_simulation_agree(name: str) -> None:
    costs, rates, interval = CASES[name]
    forecast = forecast_cadence(interval, costs, rates)
    played = simulate_cadence(interval, costs, rates, num_runs=2_000, seed=11)
    # Some 600,000 interruptions: the counted ones scatter by 0.13 %, so 1 % is far outside of chance.
    assert played.stall_share == pytest.approx(forecast.stall_share, rel=0.01)
    assert played.lost_share == pytest.approx(forecast.lost_share, rel=0.01)
    assert played.restart_share == pytest.approx(forecast.restart_share, rel=0.01)
    assert played.mean_lost_seconds == pytest.approx(forecast.mean_lost_seconds, rel=0.01)
    assert played.p95_lost_seconds == pytest.approx(forecast.p95_lost_seconds, rel=0.02)
    low, high = played.overhead_range
    assert low < forecast.overhead < high


def test_an_error_in_the_formulas_would_be_noticed() -> None:
    """What the test above allows is less than any part of the model is worth."""
    costs, rates, interval = CASES["mostly notices"]
    right = forecast_cadence(interval, costs, rates)
    for wrong in (
        forecast_cadence(interval, replace(costs, durable_seconds=27), rates),
        forecast_cadence(interval, replace(costs, restart_seconds=87), rates),
        forecast_cadence(interval, costs, Rates(0.52 / HOUR, 0.98 / HOUR)),
    ):
        parts = zip(
            (right.stall_share, right.lost_share, right.restart_share),
            (wrong.stall_share, wrong.lost_share, wrong.restart_share),
            strict=True,
        )
        assert any(abs(ours - theirs) > 0.02 * ours for ours, theirs in parts)


def test_the_simulation_follows_from_its_seed() -> None:
    costs, rates, interval = CASES["saves that block"]
    one, again, other = (simulate_cadence(interval, costs, rates, 50, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_of_too_few_crashes_the_simulation_says_no_mean() -> None:
    costs = Costs(1, 5, 30)
    played = simulate_cadence(300, costs, Rates(1 / (1000 * 86_400)), num_runs=100, seed=0)
    assert played.mean_lost_seconds is None and played.p95_lost_seconds is None
    assert played.stall_share == pytest.approx(1 / 300, rel=1e-3)
    often = simulate_cadence(300, costs, Rates(1 / HOUR), num_runs=MIN_CRASHES, seed=0)
    assert often.mean_lost_seconds is not None


@given(st.floats(1, 60), st.floats(600, 1e6), st.floats(0, 600), room_drawn)
def test_without_background_and_notices_it_is_dalys_complete_model(
    stall: float, between: float, restart: float, trained: float
) -> None:
    """Daly's expected time for a second of work: M e^(R/M) (e^((tau + delta)/M) - 1) / tau."""
    forecast = forecast_cadence(trained + stall, Costs(stall, 0, restart), Rates(1 / between))
    expected = between * exp(restart / between) * expm1((trained + stall) / between) / trained
    assert 1 - forecast.overhead == pytest.approx(1 / expected, rel=1e-6)


@given(st.floats(0.01, 60), st.floats(10, 1e5))
def test_the_best_interval_is_dalys_and_for_short_stalls_youngs(stall: float, times: float) -> None:
    between = stall * times
    best = find_best_interval(Costs(stall, 0, 0), Rates(1 / between), stall * 1.001, 100 * between) - stall
    assert best == pytest.approx(daly_seconds(stall, between), rel=0.01)
    assert best == pytest.approx(young_seconds(stall, between), rel=sqrt(stall / between))


def test_youngs_and_dalys_own_examples() -> None:
    """Daly's figures 3 to 5: a dump of 5 minutes, and failures every 24 hours, 6 hours and 15 minutes."""
    minutes = [daly_seconds(300, between) / 60 for between in (24 * HOUR, 6 * HOUR, 900)]
    assert [round(minutes[0]), round(minutes[1]), round(minutes[2], 1)] == [117, 57, 9.1]
    assert young_seconds(300, 24 * HOUR) == 7200
    assert daly_seconds(300, 100) == 100  # a dump longer than twice the time between failures


@settings(deadline=None)
@given(costs_drawn, rates_drawn, room_drawn)
def test_what_is_lost_is_ordered_and_bounded(costs: Costs, rates: Rates, room: float) -> None:
    interval = max(costs.to_durable_seconds, costs.stall_seconds + room)
    forecast = forecast_cadence(interval, costs, rates)
    assert 0 < forecast.overhead < 1
    assert min(forecast.stall_share, forecast.lost_share, forecast.restart_share) >= 0
    assert forecast.mean_lost_seconds <= forecast.bound_lost_seconds
    quantiles = [lost_quantile(share, interval, costs, rates) for share in (0, 0.1, 0.5, 0.95, 0.999_999)]
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] <= forecast.bound_lost_seconds and forecast.p95_lost_seconds == quantiles[3]


@settings(deadline=None)
@given(costs_drawn, rates_drawn, st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_no_interval_within_the_bounds_is_better_than_the_best(costs: Costs, rates: Rates, places: list[float]) -> None:
    shortest = max(costs.to_durable_seconds, costs.stall_seconds + 0.1)
    best = find_best_interval(costs, rates, shortest, 900)
    assert shortest <= best <= 900
    lowest = forecast_cadence(best, costs, rates).overhead
    for place in places:
        other = shortest * (900 / shortest) ** place
        assert lowest <= forecast_cadence(other, costs, rates).overhead * (1 + 1e-6)


@settings(deadline=None)
@given(costs_drawn, rates_drawn)
def test_more_crashes_ask_for_more_saves(costs: Costs, rates: Rates) -> None:
    often = replace(rates, crashes_per_second=4 * rates.crashes_per_second)
    shortest = max(costs.to_durable_seconds, costs.stall_seconds + 0.1)
    rare_best, often_best = (find_best_interval(costs, one, shortest, 900) for one in (rates, often))
    assert often_best <= rare_best * 1.001


def test_where_nothing_ever_gets_done_the_overhead_is_all_the_time() -> None:
    forecast = forecast_cadence(900, Costs(1, 10, 36_000), Rates(5.0))
    assert forecast.overhead == pytest.approx(1) and forecast.restart_share == pytest.approx(1)


def test_where_one_interval_alone_is_possible_it_is_the_best() -> None:
    assert find_best_interval(Costs(1, 1000, 30), Rates(1e-4), 1001, 900) == 1001


def test_an_interval_without_room_for_training_is_refused() -> None:
    with pytest.raises(ValueError, match="5 s between two saves leave nothing beside 5 s"):
        forecast_cadence(5, Costs(5, 0, 30), Rates(1e-4))


def test_training_stands_still_at_the_end_of_each_interval() -> None:
    assert [seconds_trained(s, 10, 2) for s in (0, 7, 8, 9.5, 10, 13, 29)] == [0, 7, 8, 8, 8, 11, 24]


def test_storage_is_what_the_policy_keeps_and_what_the_saves_ask_for() -> None:
    prices = StoragePrices(per_gb_month=0.02, per_1000_puts=0.005)
    size = 1_490_000_000
    use = plan_storage(size, CheckpointConfig(keep=3, keep_best=1, keep_every_steps=10_000), 25_000, prices)
    assert use.kept_bytes == (3 + 1 + 2 + 1) * size
    assert puts_of_save(size) == 89 + 8
    # 30.4375 days of a save every 100 s.
    assert use.dollars_per_month(100) == pytest.approx(7 * 1.49 * 0.02 + 26_298 * 97 / 1000 * 0.005)
    assert use.dollars_per_month(100) > use.dollars_per_month(200) > 7 * 1.49 * 0.02


def test_a_byte_budget_bounds_what_is_kept_but_not_below_three() -> None:
    prices = StoragePrices(0.02, 0)
    kept = [plan_storage(100, CheckpointConfig(keep_bytes=budget), 10, prices).kept_bytes for budget in (1, 350, 9999)]
    assert kept == [400, 450, 500]


def test_requests_cost_in_a_bucket_and_not_in_a_folder_unless_said_otherwise() -> None:
    assert find_prices("s3://bucket/runs", 0.023, None).per_1000_puts == 0.005
    assert find_prices("/mnt/s3/runs", 0.023, None).per_1000_puts == 0
    assert find_prices("/mnt/s3/runs", 0.023, 0.01).per_1000_puts == 0.01
