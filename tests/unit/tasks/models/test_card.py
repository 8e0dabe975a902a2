"""The README.md of an exported model: metrics of the slices of the test split, and no more than a person reads."""

from typing import Any

from tasks.models.card import MOST_LABELS, MOST_SLICED_COLUMNS, MOST_SLICES, render_card
from tests.helpers.finished_runs import calibration_of
from tests.helpers.small_models import DESCRIBED

LABELS = {"classes": ["x", "y", "z"], "kind": "multiclass"}
PROVENANCE: dict[str, Any] = {
    "run": "requests", "address": "/store/runs/requests", "step": 6, "steps_total": 6, "checkpoint": "c",
    "checkpoint_index_sha256": "a", "weights_sha256": "b", "dataset_digest": "d", "dataset_sha256": "e",
    "rows": {"train": 1}, "ledger_head": None, "rollbacks": 0, "changes": [], "trained_with": {},
    "exported_with": {"holdfast": "1"},
}  # fmt: skip


def slice_of(number: int) -> dict[str, Any]:
    return {
        "group": "value", "value": f"v|{number}", "num_samples": 900 - number,
        "metrics": {"loss": 0.5, "macro_f1": 0.25 + number / 1000},
    }  # fmt: skip


def card_of(slices: list[dict[str, Any]]) -> str:
    test = {"num_samples": 1000, "metrics": {"loss": 0.4, "macro_f1": 0.75}, "slices": slices}
    return render_card(DESCRIBED, LABELS, {"validation": None, "test": test}, None, PROVENANCE, {})


def test_the_card_has_the_metrics_of_the_largest_slices_beside_those_of_all_samples() -> None:
    text = card_of([{"column": "country", "slices": [slice_of(number) for number in range(50)]}])
    assert "| (all) | 1,000 | 0.7500 | 0.4000 |" in text
    assert "| v\\|0 | 900 | 0.2500 | 0.5000 |" in text and f"v\\|{MOST_SLICES - 1} " in text
    assert f"v\\|{MOST_SLICES} " not in text


def test_of_many_columns_the_first_ones_are_there_and_without_slices_nothing_is_said_of_them() -> None:
    text = card_of([{"column": f"c{number}", "slices": [slice_of(0)]} for number in range(MOST_SLICED_COLUMNS + 1)])
    assert text.count("| (all) |") == MOST_SLICED_COLUMNS and f"| c{MOST_SLICED_COLUMNS} |" not in text
    assert "lices" not in card_of([])


def test_no_label_becomes_a_picture_or_leaves_its_code() -> None:
    picture, broken = "![i](http://evil.example/p.png)", "a`b|c\nd"
    labels = {"classes": [broken, picture], "kind": "binary"}
    calibration = calibration_of(labels["classes"], "binary", 6)
    text = render_card(DESCRIBED, labels, {"validation": None, "test": None}, calibration, PROVENANCE, {})
    assert f"Labels, in the order of the outputs: `a'b\\|c d`, `{picture}`." in text
    outside_code = text.replace(f"`{picture}`", "")
    assert "evil.example" in outside_code and "](" not in outside_code.replace("\\](", "")


def test_of_very_many_labels_the_first_are_named() -> None:
    labels = {"classes": [f"c{number}" for number in range(MOST_LABELS + 5)], "kind": "multiclass"}
    text = render_card(DESCRIBED, labels, {"validation": None, "test": None}, None, PROVENANCE, {})
    assert f"`c{MOST_LABELS - 1}` and 5 more, which `labels.json` has." in text
