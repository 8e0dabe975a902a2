"""An advice rests on what the run measured, says what it assumed, and recommends what its own figures bear out."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flows.commands.advise import advise_run, render_advice
from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from storage.runs.figures import read_figures
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState, SegmentRecord
from tasks.advice.basis import LITERATURE_PER_GPU_HOUR, AdviceOptions, crash_confidence
from tasks.advice.cadence_words import brief, dollars, how_often, in_seconds, percent
from tasks.advice.description import describe_advice
from tasks.advice.measured import INDIFFERENT_SHARE, Advice, advise
from tasks.advice.page import render_advice_page
from tasks.advice.storage_cost import StoragePrices
from tasks.advice.words import advice_verdict, list_assumptions
from tests.helpers.finished_runs import measured_run, segments_of, state_of
from training.configuration import LONGEST_EVERY_SECONDS, CheckpointConfig

DAY = 86_400.0
PRICES = StoragePrices(0.023, 0.005)


@cache
def measured_advice() -> Advice:
    return advised()


def advised(state: RunState | None = None, policy: dict[str, Any] | None = None, **options: Any) -> Advice:
    chosen = AdviceOptions(**options)
    return advise(state or measured_run(), CheckpointConfig(**(policy or {})), chosen, PRICES)


def with_segments(change: dict[str, Any], *indices: int) -> RunState:
    """The measured run with changed segments; all of them if none is named."""
    state = measured_run()
    segments = [
        segment.model_copy(update=change) if index in indices or not indices else segment
        for index, segment in enumerate(state.segments)
    ]
    return state.model_copy(update={"segments": segments})


def counts(segment: dict[str, Any]) -> tuple[int, int]:
    """Crashes and notices of a run of one segment that ended so."""
    values = segments_of([("completed", "", 100, 0)])[0].model_dump() | segment
    figures = read_figures(state_of("r", 100, [SegmentRecord.model_validate(values)]))
    return figures.num_crashes, figures.num_notices


def sources(advice: Advice) -> dict[str, str]:
    return {source.name: f"{source.value}, {source.origin}" for source in advice.basis.sources}


def test_what_segments_measured_is_averaged() -> None:
    figures = read_figures(measured_run())
    assert (figures.num_segments, figures.num_crashes, figures.num_notices) == (6, 3, 2)
    assert figures.seconds == pytest.approx(100_000)
    assert (figures.num_saves, figures.checkpoint_bytes) == (160, 1_490_000_000)
    assert figures.stall_seconds == pytest.approx(0.3) and figures.durable_seconds == pytest.approx(11)
    # Start and restore of the three resumed segments that lived to tell.
    assert figures.num_restarts == 3 and figures.restart_seconds == pytest.approx(6.5 + 0.9)
    assert figures.step_seconds == pytest.approx(0.5)
    assert figures.spent_stalled == pytest.approx(48)
    assert figures.spent_on_lost_steps == pytest.approx(1_500)


def test_a_crash_is_what_came_by_chance_and_left_no_time() -> None:
    assert counts({"outcome": "lost"}) == counts({"outcome": "failed"}) == (1, 0)
    assert counts({"outcome": "preempted"}) == (0, 1)
    assert counts({"outcome": "preempted", "steps_lost": 3}) == (1, 0)
    assert counts({"outcome": "preempted", "is_abandoned": True}) == (1, 0)
    assert counts({"outcome": "failed", "is_final": True}) == (0, 0)
    for outcome in ("completed", "budget", "diverged"):
        assert counts({"outcome": outcome}) == (0, 0)


def test_the_time_of_a_step_is_that_of_the_newest_number_of_ranks() -> None:
    state = with_segments({"world_size": 8}, 4, 5)
    slow = state.segments[0].model_copy(update={"world_size": 1, "phases": {"train": 1e6}})
    figures = read_figures(state.model_copy(update={"segments": [slow, *state.segments[1:]]}))
    assert figures.world_size == 8 and figures.step_seconds == pytest.approx(0.5)


def test_the_recommendation_is_the_best_interval_in_seconds_and_in_steps() -> None:
    advice = measured_advice()
    # Three crashes in 100,000 s: sqrt(2 * 0.3 * 33,333) = 141 s.
    assert advice.best_seconds == pytest.approx(141.4 + 0.3, rel=0.02)
    assert (advice.recommended.every_seconds, advice.recommended.every_steps) == (140, 280)
    best = min(one.forecast.overhead for one in advice.intervals)
    assert advice.at(advice.recommended).forecast.overhead == pytest.approx(best, rel=1e-3)
    low, high = advice.indifferent_range
    assert low < advice.recommended.interval_seconds < high
    within = [one for one in advice.intervals if low <= one.forecast.interval_seconds <= high]
    assert all(one.forecast.overhead <= best + INDIFFERENT_SHARE + 1e-6 for one in within)


@pytest.mark.parametrize(
    ("policy", "interval"),
    [({}, 600), ({"every_steps": 400}, 200.3), ({"every_seconds": 150}, 150), ({"every_seconds": 2}, 11.3)],
)
def test_the_configured_interval_is_what_comes_first_and_never_overtakes_a_save(
    policy: dict[str, Any], interval: float
) -> None:
    assert advised(policy=policy).configured.interval_seconds == pytest.approx(interval)


def test_what_is_configured_well_is_left_alone_and_what_is_not_is_changed() -> None:
    verdict = advice_verdict(measured_advice())
    assert verdict.badge == "Change recommended"
    assert verdict.headline.startswith("Save every 140 s, or 280 steps: saving and interruptions then take 0.5")
    assert "As configured, with a save every 600 s, they take 1.0 %." in verdict.headline
    assert verdict.settings == "--set checkpoint.every_seconds=140 --set checkpoint.every_steps=280"
    verdict = advice_verdict(advised(policy={"every_steps": 400}))
    assert verdict.badge == "Keep as configured"
    assert verdict.headline.startswith("Keep the configured interval: with a save every 200 s (400 steps),")


def test_no_crash_takes_more_than_the_interval_and_the_time_until_a_save_is_durable() -> None:
    advice = measured_advice()
    for one in advice.intervals:
        forecast = one.forecast
        assert forecast.bound_lost_seconds == pytest.approx(forecast.interval_seconds + 11.3)
        assert forecast.mean_lost_seconds < forecast.p95_lost_seconds < forecast.bound_lost_seconds
    assert "never more than 2 min 31 s" in " ".join(advice_verdict(advice).remarks)


def test_of_few_crashes_the_advice_says_how_little_they_tell() -> None:
    advice = measured_advice()
    # Garwood's interval for three events: 0.619 to 8.767.
    low, high = crash_confidence(3, 100_000)
    assert low * 1e5 == pytest.approx(0.6187, abs=1e-4)
    assert high * 1e5 == pytest.approx(8.7673, abs=1e-4)
    assert advice.uncertain_range is not None
    assert advice.uncertain_range[0] == pytest.approx((2 * 0.3 / high) ** 0.5, rel=0.03)
    assert advice.uncertain_range[1] == pytest.approx((2 * 0.3 / low) ** 0.5, rel=0.03)
    remarks = " ".join(advice_verdict(advice).remarks)
    assert "Counted from 3 crashes, the true rate may be anything from one in 1 d 20 h to 7.6 a day (95 %)" in remarks
    assert "measured: 3 in 1 d 3 h" in sources(advice)["Crashes"]


def test_without_a_crash_a_published_rate_is_assumed_and_said_to_be() -> None:
    advice = advised(with_segments({"outcome": "budget", "world_size": 8}))
    assert advice.basis.rates.crashes_per_second == pytest.approx(8 * LITERATURE_PER_GPU_HOUR / 3600)
    assert advice.basis.rates.notices_per_second == 0 and advice.uncertain_range is None
    told = sources(advice)["Crashes"]
    assert "assumed: 2e-05 per GPU-hour for 8 ranks" in told
    # -ln(0.05) in 100,000 s.
    assert "none in 1 d 3 h so far, which alone rules out no more than 2.6 a day (95 %)" in told
    assert "arXiv:2407.21783" in " ".join(list_assumptions(advice))


def test_the_published_rate_is_one_interruption_in_three_hours_on_16384_gpus() -> None:
    largest = measured_advice().scales[-1]
    assert largest.num_gpus == 16_384
    assert largest.seconds_between_crashes == pytest.approx(54 * DAY / 419)


def test_more_gpus_ask_for_more_saves() -> None:
    scales = measured_advice().scales
    assert [scale.num_gpus for scale in scales] == [8, 64, 512, 16_384]
    best = [scale.best.interval_seconds for scale in scales]
    assert best == sorted(best, reverse=True) and best[0] == LONGEST_EVERY_SECONDS
    assert [scale.best.overhead for scale in scales] == sorted(scale.best.overhead for scale in scales)
    assert all(scale.best.overhead <= scale.configured.overhead for scale in scales)


def test_given_figures_come_before_measured_ones() -> None:
    advice = advised(failures_per_day=24, stall_seconds=2, durable_seconds=5, restart_seconds=60)
    assert advice.basis.rates.crashes_per_second == pytest.approx(24 / DAY)
    costs = advice.basis.costs
    assert (costs.stall_seconds, costs.durable_seconds, costs.restart_seconds) == (2, 5, 60)
    assert advice.best_seconds == pytest.approx((2 * 2 * 3600) ** 0.5 + 2, rel=0.03)
    told = sources(advice)
    for name in ("Crashes", "Stall of a save", "From there until durable", "Restart"):
        assert told[name].endswith(", given")


def test_a_run_that_measured_nothing_is_told_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="0 segments ended, with 0 saves that could be counted") as caught:
        advised(state_of("new", 100, []))
    assert "--stall-seconds, --durable-seconds, --restart-seconds." in str(caught.value)
    assert "counted: not the one with which a segment ends. Let a segment that saves while it trains" in str(
        caught.value
    )
    with pytest.raises(ConfigurationError, match=r"give the figures: --stall-seconds, --durable-seconds\."):
        advised(with_segments({"saves": None}))


def test_with_everything_given_a_run_that_measured_nothing_has_an_advice() -> None:
    given: dict[str, Any] = {"stall_seconds": 1, "durable_seconds": 10, "restart_seconds": 30}
    advice = advised(state_of("new", 100, []), **given)
    assert advice.recommended.every_steps is None and advice.storage is None
    assert advice_verdict(advice).settings == f"--set checkpoint.every_seconds={advice.recommended.every_seconds:g}"
    assert "How large a checkpoint is was not measured yet" in " ".join(list_assumptions(advice))
    assert "how often to save" in render_advice_page(advice, "")


def test_an_interval_is_never_longer_than_the_configuration_allows() -> None:
    advice = advised(failures_per_day=0.001)
    assert advice.recommended.every_seconds == LONGEST_EVERY_SECONDS
    CheckpointConfig(every_seconds=advice.recommended.every_seconds)
    assert "stops at 900" in " ".join(advice_verdict(advice).remarks)


def test_an_interval_is_never_shorter_than_a_save_takes() -> None:
    advice = advised(failures_per_day=1000, stall_seconds=0.001, durable_seconds=100, restart_seconds=1)
    assert advice.recommended.interval_seconds >= 100.001
    assert min(one.forecast.interval_seconds for one in advice.intervals) >= 100.001
    assert "the next one waits for it" in " ".join(advice_verdict(advice).remarks)


def test_a_save_lies_a_step_apart_from_the_next_at_least() -> None:
    slow = with_segments({"phases": {"start": 5.0, "restore": 1.0, "train": 1e7}})
    advice = advised(slow, failures_per_day=100)
    step = advice.basis.step_seconds
    assert step is not None and step > 60
    assert advice.recommended.interval_seconds >= step


def test_a_store_too_slow_for_the_bound_is_said_to_be() -> None:
    advice = advised(durable_seconds=2000)
    assert advice.recommended.every_seconds == LONGEST_EVERY_SECONDS
    assert advice.recommended.interval_seconds == pytest.approx(2000.3)
    verdict = advice_verdict(advice)
    assert "a crash may cost more than 15 min" in " ".join(verdict.remarks)
    page = render_advice_page(advice, "")
    assert "only one interval is possible" in page


def test_where_no_restart_would_end_that_is_said() -> None:
    with pytest.raises(ConfigurationError, match="no restart would finish"):
        advised(failures_per_day=1440, restart_seconds=3600)


@pytest.mark.parametrize(
    "options",
    [{"failures_per_day": 0}, {"failures_per_day": 1e9}, {"stall_seconds": -1}, {"price_per_gb_month": -1}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Manifest(store, "quality").create(measured_run())
    with pytest.raises(ConfigurationError, match=f"The set of options is wrong:\n  {next(iter(options))}: must be"):
        advise_run(store, "quality", [], options)
    assert not (tmp_path / "runs/quality/advice.html").exists()


def test_extreme_figures_have_an_advice_too() -> None:
    for options in (
        {"failures_per_gpu_hour": 1},
        {"failures_per_day": 1e-6},
        {"stall_seconds": 1e-9, "durable_seconds": 0},
        {"stall_seconds": 1500},
    ):
        advice = advised(**options)
        json.dumps(describe_advice(advice), allow_nan=False)
    # The last one has the most to say, and the smallest range to draw.
    assert advice_verdict(advice).headline in render_advice_page(advice, "").replace("&#39;", "'")


def test_gpu_time_that_makes_no_progress_has_its_price_beside_storage() -> None:
    cheap, dear = advised(price_per_gpu_hour=1), advised(price_per_gpu_hour=3)
    hours = cheap.figures.world_size * 365.25 / 12 * 24
    for one, other in zip(cheap.intervals, dear.intervals, strict=True):
        assert one.gpu_dollars == pytest.approx(one.forecast.overhead * hours)
        assert other.gpu_dollars == pytest.approx(3 * one.gpu_dollars)
    page = render_advice_page(dear, "")
    assert "GPU time" in page and "at $3 an hour" in page


def test_the_page_shows_every_interval_and_assumption_and_is_the_same_each_time() -> None:
    advice = measured_advice()
    page = render_advice_page(advice, "holdfast advise /store/runs/quality")
    for one in advice.intervals:
        assert in_seconds(one.forecast.interval_seconds) in page and percent(one.forecast.overhead) in page
    for assumption in list_assumptions(advice):
        assert assumption in page
    assert "holdfast advise /store/runs/quality" in page
    assert page == render_advice_page(advised(), "holdfast advise /store/runs/quality")


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    hostile = "<script>alert(1)</script>"
    page = render_advice_page(advised(measured_run(hostile)), hostile)
    assert not re.search(r"<(script|link|iframe|object|base)\b", page) and " href=" not in page
    assert not re.findall(r"(?:https?:)?//\w", page) and "url(" not in page and "@import" not in page
    assert re.findall(r'<img src="([^:]*:[^;]*;base64),', page) == ["data:image/svg+xml;base64"]


def test_the_result_has_what_other_programs_rely_on(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Manifest(store, "quality").create(measured_run())
    result = json.loads(json.dumps(advise_run(store, "quality", ["checkpoint.every_seconds=300"], {})))
    assert result["configured"]["every_seconds"] == 300 and result["recommended"]["every_seconds"] == 140
    assert result["verdict"]["settings"] == "--set checkpoint.every_seconds=140 --set checkpoint.every_steps=280"
    assert result["measured"]["num_crashes"] == 3
    marked = {mark: one for one in result["intervals"] for mark in one["marks"]}
    assert marked["recommended"]["overhead"] == result["recommended"]["overhead"] < marked["configured"]["overhead"]
    assert result["page"] == f"{store.address}/runs/quality/advice.html"
    assert "checkpoint.every_seconds=300" in (tmp_path / "runs/quality/advice.html").read_text()
    assert Manifest(store, "quality").load_head().generation == 1
    assert render_advice(result)


def test_figures_are_said_in_as_many_digits_as_they_are_worth() -> None:
    assert [brief(s) for s in (0, 0.00012, 0.0434, 0.3, 0.9999, 2.54, 75)] == [
        "0.0 s", "0.12 ms", "43 ms", "300 ms", "1.0 s", "2.5 s", "1 min 15 s",
    ]  # fmt: skip
    assert [in_seconds(s) for s in (0.02, 3.14, 9.96, 81.4, 1200)] == ["20 ms", "3.1 s", "10 s", "81 s", "1,200 s"]
    assert [percent(f) for f in (0, 1e-7, 0.00041, 0.0009949, 0.0312, 0.27, 1)] == [
        "0 %", "0 %", "0.041 %", "0.099 %", "3.1 %", "27 %", "100 %",
    ]  # fmt: skip
    assert [how_often(n / DAY) for n in (0, 1e-4, 0.5, 5.1, 240)] == [
        "never", "one in 27.4 years", "one in 2 d", "5.1 a day", "240 a day",
    ]  # fmt: skip
    assert [dollars(d) for d in (0, 0.004, 0.123, 9.999, 1204)] == ["$0.00", "<$0.01", "$0.12", "$10", "$1,204"]
