"""How a flow run of the deployment `drill` ends, and what its page in Prefect says."""

from typing import Any

import pytest

from flows.deployments import describe_drill
from tasks.drills.summary import summarise_drill

HEADLINE = "The run that was killed 2 times, on 2, 1 and 2 ranks, {} the run without interruptions."
SAMPLES = {"name": "Samples", "straight": "600", "interrupted": "600", "result": "same", "words": "the same"}
WEIGHTS = {"name": "Weights", "straight": "0a1b", "interrupted": "2c3d", "result": "same", "words": "the same SHA-256"}


def result_of(ok: bool, **weights: str) -> dict[str, Any]:
    headline = HEADLINE.format("ended with the same model, bit for bit, as" if ok else "is not the same as")
    return {
        "ok": ok,
        "verdict": {"badge": "Identical" if ok else "Different", "headline": headline, "remarks": ["3 steps lost."]},
        "findings": [SAMPLES, WEIGHTS | weights],
        "page": "/store/drills/tiny-1.html",
        "command": "holdfast drill tiny.toml --seed 7",
    }


def test_a_drill_whose_models_are_the_same_is_completed_with_the_verdict() -> None:
    state = describe_drill(result_of(ok=True))
    assert state.is_completed()
    assert state.message == HEADLINE.format("ended with the same model, bit for bit, as")


def test_a_drill_whose_models_differ_fails_and_says_in_what_and_where_to_look() -> None:
    state = describe_drill(result_of(ok=False, result="different", words="1.2e-05 apart"))
    assert state.is_failed()
    assert state.message == (
        "The run that was killed 2 times, on 2, 1 and 2 ranks, is not the same as the run without interruptions; "
        "different: Weights (1.2e-05 apart). See /store/drills/tiny-1.html."
    )


@pytest.mark.parametrize("ok", [True, False])
def test_the_artifact_has_the_verdict_what_was_compared_and_the_page(ok: bool) -> None:
    text = summarise_drill(result_of(ok))
    assert text.startswith("# Identical" if ok else "# Different")
    assert "| Weights | 0a1b | 2c3d | the same SHA-256 |" in text
    assert "3 steps lost." in text and "`/store/drills/tiny-1.html`" in text
    assert "`holdfast drill tiny.toml --seed 7`" in text
