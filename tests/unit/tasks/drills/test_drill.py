"""The drill's verdict rests on what was compared, and its page says what the verdict says."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from storage.checkpoints.tensor_files import WeightsDistance, weights_distance
from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from storage.runs.ledger import LEDGER_SCHEMA, LedgerHeader, LedgerPart, write_ledger_part
from storage.runs.manifest import Manifest
from storage.runs.metric_values import MetricValue
from storage.runs.run_records import ChangeRecord
from tasks.drills.comparison import Comparison, Kill, describe_comparison, describe_run, find_hits
from tasks.drills.ledger_difference import LedgerDifference, compare_ledgers
from tasks.drills.page import render_drill_page
from tasks.drills.plan import DrillPlan, aim_kills, choose_world_sizes, take_number
from tasks.drills.rank_kills import RankKill
from tasks.drills.records import TrainedRun
from tasks.drills.words import drill_verdict, list_findings
from tasks.run_paths import RunPaths
from tasks.supervision.following import RunFollower
from tests.helpers.finished_runs import history_of, segments_of, state_of
from tests.helpers.runs import make_run
from training.metrics.reporter import Report

STEPS = 300
METRICS = {"accuracy": 0.91, "loss": 0.31, "macro_f1": 0.83}
PLAN = DrillPlan("intents", 1, seed=7, aims=(80, 190), last_aim=255, world_sizes=(2, 1))
NO_DISTANCE = WeightsDistance(0.0, 0.0, None)
SOME_DISTANCE = WeightsDistance(3.21e-7, 4.5e-6, "head.weight")
ENDS = {"straight": [("completed", "", STEPS, 0)]}
ENDS["interrupted"] = [("lost", "killed", 87, 37), ("lost", "killed", 192, 42), ("completed", "", STEPS, 0)]
HITS = [Kill(80, 85, 2, 2), Kill(190, 190, 1, 9)]


def trained(name: str, **changes: Any) -> TrainedRun:
    state = state_of(f"intents-drill-1-{name}", STEPS, segments_of(ENDS[name]), metrics=METRICS)
    audit = {"ok": True, "steps": STEPS, "samples": 64 * STEPS}
    run = TrainedRun(f"/store/runs/{state.run}", state, history_of(STEPS), audit, None, [Path("model.safetensors")])
    return replace(run, **changes)


def compared(**changes: Any) -> Comparison:
    same = Comparison(True, trained("straight"), trained("interrupted"), LedgerDifference(), NO_DISTANCE)
    return replace(same, **changes)


def with_state(**changes: Any) -> dict[str, Any]:
    """The interrupted run with another manifest."""
    run = trained("interrupted")
    return {"interrupted": replace(run, state=run.state.model_copy(update=changes))}


def with_weights(digest: str) -> dict[str, Any]:
    promoted = trained("interrupted").state.promoted
    assert promoted is not None
    changed = with_state(promoted=promoted.model_copy(update={"weights_sha256": digest}))
    return changed | {"distance": SOME_DISTANCE}


def with_validation(index: int, loss: MetricValue | None) -> dict[str, Any]:
    """The interrupted run with another loss, or none, in one validation."""
    history = history_of(STEPS)
    if loss is None:
        del history["validation"][index]
    else:
        history["validation"][index]["metrics"]["loss"] = loss
    return {"interrupted": trained("interrupted", history=history)}


def first_loss() -> float:
    return float(history_of(STEPS)["validation"][0]["metrics"]["loss"])


FORGED_SAMPLES: dict[str, dict[str, Any]] = {
    "another sample": {"ledgers": LedgerDifference(num_steps=1, first_step=17)},
    "no ledger": {"ledgers": LedgerDifference(problem="there is no ledger")},
    "audit fails": {"straight": trained("straight", audit={"ok": False, "steps": STEPS, "samples": 1})},
    "other data": with_state(dataset_digest="e" * 64),
}
FORGED_MODEL: dict[str, dict[str, Any]] = {
    "weights": with_weights("0" * 64),
    "last bit of a loss": with_validation(0, float(np.nextafter(first_loss(), 1))),
    "a validation less": with_validation(1, None),
    "a metric": with_state(metrics=METRICS | {"macro_f1": 0.8300000001}),
    "a loss that is not finite": with_validation(0, "nan"),
    "a metric that is not finite": with_state(metrics=METRICS | {"macro_f1": "nan"}),
    "a metric less": with_state(metrics={"loss": 0.31}),
}


def test_two_runs_that_are_the_same_hold() -> None:
    comparison = compared()
    assert comparison.holds
    verdict = drill_verdict(PLAN, comparison, HITS)
    assert verdict.badge == "Identical"
    assert verdict.headline == (
        "The run that was killed 2 times, on 1, 2 and 4 ranks, ended with the same model, bit for bit, as the run "
        "without interruptions."
    )
    assert verdict.remarks == ["After the kills at least 79 steps had to be trained again."]
    assert {finding.result for finding in list_findings(comparison)} == {"same"}


@pytest.mark.parametrize("name", FORGED_SAMPLES | FORGED_MODEL)
def test_a_forged_difference_turns_the_verdict(name: str) -> None:
    comparison = compared(**(FORGED_SAMPLES | FORGED_MODEL)[name])
    assert not comparison.holds
    assert "different" in {finding.result for finding in list_findings(comparison)}
    verdict = drill_verdict(PLAN, comparison, HITS)
    assert verdict.badge == "Different" and "is not the same as the run without interruptions." in verdict.headline


def test_the_page_has_the_verdict_on_a_forged_difference() -> None:
    page = render_drill_page(PLAN, compared(**FORGED_MODEL["weights"]), HITS, "holdfast drill")
    assert "Different" in page and "bit for bit" not in page


@pytest.mark.parametrize("name", FORGED_MODEL)
def test_with_fast_sums_the_model_may_be_another_one(name: str) -> None:
    comparison = compared(exact=False, **FORGED_MODEL[name])
    assert comparison.holds
    assert drill_verdict(PLAN, comparison, HITS).badge == "Same samples"
    assert {finding.result for finding in list_findings(comparison)} == {"same", "apart"}


@pytest.mark.parametrize("name", FORGED_SAMPLES)
def test_with_fast_sums_the_samples_may_not(name: str) -> None:
    assert not compared(exact=False, **FORGED_SAMPLES[name]).holds


def test_with_fast_sums_the_drill_says_how_far_apart_the_two_are() -> None:
    comparison = compared(exact=False, **with_weights("0" * 64))
    verdict = drill_verdict(PLAN, comparison, HITS)
    assert "used the same samples at every step" in verdict.headline
    for text in (" ".join(verdict.remarks), render_drill_page(PLAN, comparison, HITS, "")):
        assert "3.2e-07 apart (relative L2 distance)" in text and "4.5e-06, in head.weight" in text
    described = describe_comparison(comparison)
    assert described["distance"]["relative_l2"] == 3.21e-7
    assert described["weights_equal"] is False and described["samples_equal"] is True
    assert described["metrics"]["macro_f1"] == [0.83, 0.83]


def test_values_that_are_not_finite_are_compared_without_a_distance() -> None:
    diverged = compared(**with_state(metrics=METRICS | {"macro_f1": "nan"}), straight=trained("straight"))
    assert (diverged.metrics_equal, diverged.metrics_max_difference) == (False, None)
    (finding,) = [f for f in list_findings(diverged) if f.result != "same"]
    assert (finding.straight, finding.interrupted) == ("0.8300", "nan")
    assert finding.words == "not a finite number in one of them"
    loss = compared(**with_validation(0, "inf"))
    assert [f.words for f in list_findings(loss) if f.result != "same"] == ["not a finite number in one of them"]
    assert "nan" in render_drill_page(PLAN, diverged, HITS, "holdfast drill")


def test_two_runs_with_the_same_values_that_are_not_finite_hold() -> None:
    history = history_of(STEPS)
    history["validation"][1]["metrics"] = {"loss": "nan", "accuracy": "nan", "macro_f1": "nan"}
    runs = [trained(name, history=history) for name in ("straight", "interrupted")]
    runs = [replace(run, state=run.state.model_copy(update={"metrics": {"loss": "inf"}})) for run in runs]
    comparison = compared(straight=runs[0], interrupted=runs[1])
    assert comparison.holds and comparison.metrics_max_difference == 0
    assert comparison.validation_loss_max_difference == 0
    assert "inf" in render_drill_page(PLAN, comparison, HITS, "holdfast drill")


def test_kills_that_found_the_run_over_are_not_counted() -> None:
    run = trained("interrupted")
    assert find_hits([*HITS, Kill(250, 299, 1, run.segments[-1].fence)], run) == HITS
    remarks = drill_verdict(replace(PLAN, aims=(80, 190, 250)), compared(), HITS).remarks
    assert "2 of 3 kills took effect: the run ended before the others were due." in remarks


def test_a_run_that_began_again_at_step_0_is_said_to_have() -> None:
    segments = segments_of([("lost", "killed", 40, 40), ("completed", "", STEPS, 0)])
    remarks = drill_verdict(PLAN, compared(**with_state(segments=segments)), HITS[:1]).remarks
    assert "It started again from step 0 once, because there was no checkpoint yet." in remarks[-1]


def test_the_page_shows_both_curves_the_interruptions_and_every_figure() -> None:
    comparison = compared()
    page = render_drill_page(PLAN, comparison, HITS, "holdfast drill intents.toml --seed 7")
    assert "Losses of both runs at 30 steps: the same." in page
    assert "Interrupted at step 87 on 1 rank, step 192 on 2 ranks." in page
    assert comparison.straight.weights_sha256 in page and comparison.interrupted.address in page
    assert "holdfast drill intents.toml --seed 7" in page and "0.8300" in page
    assert render_drill_page(PLAN, comparison, HITS, "holdfast drill intents.toml --seed 7") == page


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = render_drill_page(PLAN, compared(), HITS, "holdfast drill <script>alert(1)</script>")
    assert not re.search(r"<(script|link|iframe|object|base)\b", page) and " href=" not in page
    assert not re.findall(r"(?:https?:)?//\w", page) and "url(" not in page and "@import" not in page
    assert re.findall(r'<img src="([^:]*:[^;]*;base64),', page) == ["data:image/svg+xml;base64"]


def test_a_run_too_short_for_a_curve_has_a_page() -> None:
    short: dict[str, Any] = {"history": {"loss": [], "validation": []}}
    comparison = compared(straight=trained("straight", **short), interrupted=trained("interrupted", **short))
    assert "too short for a point of the loss curve" in render_drill_page(PLAN, comparison, HITS, "")


@pytest.mark.parametrize(
    ("text", "ranks", "microbatches", "sizes"),
    [("2,3,1", 1, 4, [2, 3, 1]), (" 4 ", 2, 4, [4]), (None, 1, 4, [2, 1]), (None, 2, 8, [2, 1]), (None, 8, 8, [8, 4]),
     (None, 1, 1, [1]), (None, 3, 8, [3, 1])],
)  # fmt: skip
def test_world_sizes_are_taken_as_given_or_chosen(
    text: str | None, ranks: int, microbatches: int, sizes: list[int]
) -> None:
    assert choose_world_sizes(text, ranks, microbatches) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2,5", "5 ranks are too many. Give sizes from 1 to 4, or raise train.microbatches."),
        ("2,,1", "found '' in '2,,1'"),
     ("0", "found '0'"), ("two", "found 'two'"), ("-1", "found '-1'"), ("", "found ''")],
)  # fmt: skip
def test_world_sizes_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        choose_world_sizes(text, ranks=2, microbatches=4)


def test_kills_are_aimed_at_distinct_intervals_and_follow_from_the_seed() -> None:
    for seed in range(50):
        aims = aim_kills(1000, 5, seed)
        assert [(aim - 1) // 170 for aim in aims] == [0, 1, 2, 3, 4]
        assert aims == aim_kills(1000, 5, seed)
    assert aim_kills(1000, 5, 0) != aim_kills(1000, 5, 1)
    assert aim_kills(1, 1, 0) == [1]
    with pytest.raises(ConfigurationError, match=r"9 kills do not fit into train\.steps = 10: at most 8"):
        aim_kills(10, 9, 0)


def test_a_drill_takes_a_number_that_neither_of_its_runs_has(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert take_number(store, "r") == 1
    make_run(store, "r-drill-1-straight")
    make_run(store, "r-drill-2-interrupted")
    assert take_number(store, "r") == 3
    assert take_number(store, "r") == 4  # the third is being prepared, and has no run yet


def test_the_distance_of_weights_is_that_of_all_tensors_as_one_vector(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    ours: dict[str, NDArray[Any]] = {
        "a": random.normal(size=(40, 5)).astype(np.float32),
        "b": np.arange(7),
        "c": np.array([], np.float16),
    }
    theirs = ours | {"a": ours["a"] + np.float32(1e-3), "b": ours["b"] * 2}
    for name, tensors in (("ours", ours), ("theirs", theirs)):
        save_file(tensors, tmp_path / name)
    assert weights_distance([tmp_path / "ours"], [tmp_path / "ours"]) == NO_DISTANCE
    vectors = [np.concatenate([t[name].ravel().astype(float) for name in "abc"]) for t in (ours, theirs)]
    distance = weights_distance([tmp_path / "ours"], [tmp_path / "theirs"])
    expected = np.linalg.norm(vectors[0] - vectors[1]) / np.linalg.norm(vectors[1])
    assert distance.relative_l2 == pytest.approx(expected, rel=1e-12)
    assert (distance.largest_difference, distance.largest_in) == (6.0, "b")
    # A mask has no distance from itself.
    for name, tensors in (("ours", ours), ("theirs", theirs)):
        save_file(tensors | {"mask": np.array([-np.inf, 0.0])}, tmp_path / name)
    assert weights_distance([tmp_path / "ours"], [tmp_path / "theirs"]) == distance


def test_bf16_is_read_as_the_numbers_it_stands_for(tmp_path: Path) -> None:
    for name, bits in (("ours", 0x3F80), ("theirs", 0x4000)):  # 1.0 and 2.0
        header = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header + bits.to_bytes(2, "little"))
    assert weights_distance([tmp_path / "ours"], [tmp_path / "theirs"]) == WeightsDistance(0.5, 1.0, "w")


def test_models_of_different_tensors_have_no_distance(tmp_path: Path) -> None:
    for name, tensors in (
        ("one", {"a": np.zeros(3)}),
        ("two", {"a": np.zeros(4)}),
        ("more", {"a": np.zeros(3), "b": np.zeros(1)}),
    ):
        save_file(tensors, tmp_path / name)
    for other in ("two", "more"):
        with pytest.raises(ValueError, match="do not hold the same tensors"):
            weights_distance([tmp_path / "one"], [tmp_path / other])


def ledger_of(store: Store, folder: Path, run: str, borders: Sequence[int], changed: int | None = None) -> LedgerPart:
    """A chain of parts with these borders; its content follows from step and microbatch, but for one changed step."""
    part = None
    for first, end in pairwise(borders):
        rows = [
            {"step": step, "microbatch": microbatch,
             "rows": [8 * step + microbatch, 8 * step + microbatch + 2 + (step == changed)],
             "ids_md5": bytes([step % 256]) * 16}
            for step in range(first, end)
            for microbatch in range(2)
        ]  # fmt: skip
        header = LedgerHeader(
            run=run, fence=2, first_step=first, end_step=end, world_size=1, dataset_digest="d" * 64, previous=part
        )
        own_folder = folder / f"{run}-{first}"  # a store may keep the very file that it is given
        own_folder.mkdir()
        part = write_ledger_part(store, header, pa.Table.from_pylist(rows, LEDGER_SCHEMA), own_folder)
    assert part is not None
    return part


def test_ledgers_are_compared_by_content_however_they_were_cut(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")

    def difference(borders: Sequence[int], changed: int | None = None) -> LedgerDifference:
        run = f"{len(borders)}-{changed}"
        other = ledger_of(store, tmp_path, run, borders, changed)
        return compare_ledgers(store, straight, other, "100MB", tmp_path / "scratch")

    straight = ledger_of(store, tmp_path, "straight", [0, 20, 40, 50])
    assert difference([0, 3, 33, 49, 50]).is_none
    assert difference([0, 50], changed=31) == LedgerDifference(num_steps=1, first_step=31)
    assert difference([0, 10, 48]) == LedgerDifference(num_steps=2, first_step=48)
    without = compare_ledgers(store, straight, None, "100MB", tmp_path / "scratch")
    assert not without.is_none and without.problem == "there is no ledger"


def test_a_part_of_a_ledger_that_is_gone_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    ours, theirs = (ledger_of(store, tmp_path, run, [0, 5, 9]) for run in ("a", "b"))
    store.delete(f"runs/b/ledger/{0:012d}-{5:012d}-f{2:08d}.parquet")
    found = compare_ledgers(store, ours, theirs, "100MB", tmp_path / "scratch")
    assert not found.is_none and found.problem is not None and "is missing" in found.problem


def test_of_a_run_only_segments_that_begin_from_now_on_are_followed(tmp_path: Path) -> None:
    run_paths = RunPaths(LocalStore(tmp_path), Manifest(LocalStore(tmp_path), "r"), tmp_path / "scratch", tmp_path)

    def report(fence: int, phase: str, step: int) -> None:
        run_paths.segment_scratch(fence).mkdir(parents=True, exist_ok=True)
        with (run_paths.segment_scratch(fence) / "progress.jsonl").open("a") as file:
            file.write(Report(phase=phase, step=step).model_dump_json() + "\n")

    report(3, "train", 90)  # what a killed segment leaves until somebody takes up the run
    follower = RunFollower(run_paths)
    assert (follower.read(), follower.fence) == ([], None)
    run_paths.segment_scratch(7).mkdir()
    assert follower.read() == [] and (follower.fence, follower.first_step) == (7, None)
    report(7, "restore", 0)
    report(7, "train", 80)
    report(7, "train", 84)
    assert [found.step for found in follower.read()] == [0, 80, 84] and follower.first_step == 80
    report(12, "train", 84)
    assert [found.step for found in follower.read()] == [84] and (follower.fence, follower.first_step) == (12, 84)


def test_what_was_changed_while_a_run_was_under_way_is_told_beside_the_comparison() -> None:
    change = ChangeRecord(step=87, what="torch", before="2.12.0", now="2.13.0")
    comparison = compared(**with_state(changes=[change]))
    told = "intents-drill-1-interrupted: torch was 2.12.0 up to step 87 and 2.13.0 from there on."
    assert told in drill_verdict(PLAN, comparison, HITS).remarks[-1]
    assert told in render_drill_page(PLAN, comparison, HITS, "")
    assert describe_run(comparison.interrupted)["changes"] == [change.model_dump()]


def test_how_the_run_went_on_after_one_rank_alone_was_killed_is_a_remark() -> None:
    on, ended = (RankKill(40, 1, 2, 2, trained_on=on) for on in (True, False))
    said = {
        (on,): "One rank alone was killed 1 time: the others trained on in the same segment.",
        (ended, ended): "One rank alone was killed 2 times: the segment ended, and the next one went on from the ",
        (on, ended): "One rank alone was killed 2 times: 1 time the others trained on in the same segment, 1 time the ",
    }
    for kills, words in said.items():
        assert drill_verdict(PLAN, compared(), HITS, kills).remarks[0].startswith(words)
        assert words in render_drill_page(PLAN, compared(), HITS, "", kills)


def test_one_rank_alone_is_killed_in_the_first_half_of_each_start_that_has_several() -> None:
    for seed in range(50):
        plan = replace(PLAN, seed=seed)
        first, alone, last = (plan.rank_aim(index) for index in range(3))
        assert alone is None  # one rank
        assert first is not None and 1 <= first <= 40
        assert last is not None and 191 <= last <= (190 + 255) // 2
    late = replace(PLAN, aims=(1,), last_aim=1)
    assert late.rank_aim(0) == 1
