"""What `holdfast export` says of the model that it wrote."""

from typing import Any

import pytest

from flows.commands.export import render_export

EXPORTED: dict[str, Any] = {"run": "first", "out": "model", "step": 1200, "metric_name": "macro_f1"}


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (0.82364, ", macro-F1 0.8236 in validation, in model"),
        ("nan", "step 1,200, in model"),
        (None, "1,200, in model"),
    ],
)
def test_a_value_in_validation_has_the_name_of_its_metric(metric: Any, words: str) -> None:
    assert words in render_export(EXPORTED | {"metric": metric}).plain
