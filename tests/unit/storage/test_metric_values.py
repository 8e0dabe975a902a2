"""Metrics in JSON: finite ones as they always were, others as text that has one form and equals itself."""

import json

import pytest

from storage.objects.digests import canonical_json
from storage.runs.metric_values import MetricValue, find_not_finite, metric_value
from storage.runs.run_state import CheckpointRecord, NotFiniteMetrics


def record_with(metric: MetricValue | None, not_finite: NotFiniteMetrics | None = None) -> CheckpointRecord:
    return CheckpointRecord(
        step=1, path="p", digest="d", weights_sha256="w", num_bytes=1, fence=2, promoted_at=1.0, metric=metric,
        not_finite=not_finite,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "written"),
    [(0.25, b"0.25"), (float("nan"), b'"nan"'), (float("inf"), b'"inf"'), (-float("inf"), b'"-inf"')],
)
def test_a_metric_has_one_form_in_json_and_comes_back_the_same(number: float, written: bytes) -> None:
    value = metric_value(number)
    assert canonical_json(value) == written
    assert repr(float(value)) == repr(number)
    assert metric_value(float(value)) == value
    record = record_with(value)
    assert CheckpointRecord.model_validate_json(canonical_json(record.model_dump(mode="json"))) == record


def test_what_is_not_finite_is_kept_with_a_checkpoint_by_the_names_of_its_metrics() -> None:
    not_finite = NotFiniteMetrics(step=1, metrics=find_not_finite({"loss": "nan", "auc": 0.5}))
    written = record_with(0.5, not_finite).model_dump(mode="json")
    assert json.loads(json.dumps(written["not_finite"])) == {"step": 1, "metrics": {"loss": "nan"}}
