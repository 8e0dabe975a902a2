"""Where a linear model is better than the network, the first lines of all that a person reads say so."""

from typing import Any

import pytest

from flows.commands.run import _render_result
from storage.objects.local_store import LocalStore
from storage.runs.metric_values import MetricValue
from storage.runs.run_state import RunState
from storage.runs.transitions import record_metrics
from tasks.baselines.record import write_baseline
from tasks.configuration.run import RunConfig
from tasks.reporting.baseline import baseline_table, describe_baseline, warn_of_baseline
from tasks.reporting.run_page import render_report
from tasks.reporting.run_summary import summarise
from tasks.reporting.status import read_status
from tests.helpers.finished_runs import interrupted_run
from tests.unit.tasks.reporting.test_status import shown, train_to

FOUND: dict[str, Any] = {
    "metrics": {"accuracy": 0.89, "macro_f1": 0.8918}, "reason": None, "num_rows": 9000, "num_train_rows": 9000,
    "num_test_rows": 3080, "num_terms": 10856,
}  # fmt: skip
BETTER = "A linear model on counts of tokens is better than this network: macro-F1 0.8918 against 0.8171 on the test"
CONFIG = RunConfig.model_validate(
    {"run": "first", "data": {"source": "x", "text": "t", "label": "l", "kind": "multiclass"}, "train": {"steps": 10}}
)


def run_tested(metrics: dict[str, MetricValue] | None = None, **config: Any) -> RunState:
    state = interrupted_run().state
    found = metrics or {"loss": 0.6, "accuracy": 0.8175, "macro_f1": 0.8171}
    return state.model_copy(update={"metrics": found, "metrics_step": 1200, "config": state.config | config})


def test_a_better_linear_model_is_said_with_what_it_means_and_what_to_do() -> None:
    warning = warn_of_baseline(run_tested(), FOUND)
    assert warning is not None and warning.startswith(f"{BETTER} split, 3,080 samples. So the network has not learnt")
    assert "model.kind = 'pretrained'" in warning and "train.learning_rate" in warning and "chance" not in warning
    pretrained = warn_of_baseline(run_tested(model={"kind": "pretrained"}), FOUND)
    assert pretrained is not None and "'pretrained'" not in pretrained


@pytest.mark.parametrize("value", [0.8918, 0.89184, 0.95, "nan"])
def test_one_that_is_not_better_is_not(value: MetricValue) -> None:
    assert warn_of_baseline(run_tested({"macro_f1": value}), FOUND) is None


def test_nothing_is_said_of_a_run_without_either() -> None:
    none = FOUND | {"metrics": None, "reason": "the test split has no rows"}
    assert warn_of_baseline(run_tested(), None) is warn_of_baseline(run_tested(), none) is None
    assert warn_of_baseline(interrupted_run().state, FOUND) is None  # not tested yet
    assert baseline_table(run_tested(), none) is None and describe_baseline(None) == ""
    assert describe_baseline(none) == "There is no linear model to compare with: the test split has no rows."


def test_the_metric_that_decides_is_the_run_s_own_and_where_one_lacks_it_the_next_one() -> None:
    metrics: dict[str, MetricValue] = {"accuracy": 0.88, "macro_f1": 0.95, "cohen_kappa": 0.5}
    assert warn_of_baseline(run_tested(metrics), FOUND) is None
    by_accuracy = warn_of_baseline(run_tested(metrics, validation={"metric_for_best_model": "accuracy"}), FOUND)
    assert by_accuracy is not None and "accuracy 0.8900 against 0.8800" in by_accuracy
    assert warn_of_baseline(run_tested(metrics, validation={"metric_for_best_model": "cohen_kappa"}), FOUND) is None


def test_a_difference_that_may_be_chance_is_called_so() -> None:
    warning = warn_of_baseline(run_tested(), FOUND | {"num_test_rows": 100})
    assert warning is not None and "a difference of less than 0.100 may be chance" in warning


def test_a_part_of_the_training_split_is_named() -> None:
    assert "on all 9,000 rows of the training split" in describe_baseline(FOUND)
    assert "on the first 9,000 of 1,000,000 rows" in describe_baseline(FOUND | {"num_train_rows": 1_000_000})


def test_report_and_summary_say_it_first_and_the_report_has_both_side_by_side() -> None:
    records = interrupted_run()
    page = render_report(
        run_tested(), records.history, records.evaluation, records.dataset, records.calibration, (), FOUND
    )
    assert page.index(BETTER) < page.index('class="progress" role')
    assert "<h2>Baseline" in page and "10,856 of the tokens and pairs" in page
    without = render_report(run_tested(), records.history, records.evaluation, records.dataset)
    assert "Baseline" not in without and "beaten" not in without.partition("<body>")[2]
    summary = summarise(run_tested(), CONFIG, "report", warning=warn_of_baseline(run_tested(), FOUND))
    assert summary.splitlines()[2].startswith(f"**{BETTER}")


def test_status_and_the_end_of_a_run_say_it_first(tmp_path: Any) -> None:
    store = LocalStore(tmp_path / "store")
    manifest = train_to(store, tmp_path, 100)
    metrics: dict[str, MetricValue] = {"loss": 0.6, "accuracy": 0.8175, "macro_f1": 0.8171}
    assert read_status(store, manifest.run)["baseline"] is None
    manifest.commit("evaluated", record_metrics(metrics, 100, None))
    state = manifest.load_head().state
    write_baseline(store, state, FOUND)
    status = read_status(store, manifest.run)
    assert status["baseline"]["metrics"] == FOUND["metrics"]
    assert shown(status).splitlines()[1].startswith(BETTER)
    assert _render_result(status | {"report": "page"}, state).startswith(BETTER)
    write_baseline(store, state, FOUND | {"metrics": {"macro_f1": 0.1}})
    status = read_status(store, manifest.run)
    assert status["baseline"]["warning"] is None and "linear" not in shown(status)
