"""What `holdfast evaluate` shows on a terminal, and what the deployment `evaluate` leaves in Prefect's UI."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import flows.deployed
import flows.deployments
from flows.deployments import evaluate
from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.models.evaluation_words import describe_in_markdown, render_evaluation, sum_up
from tests.helpers.finished_runs import calibration_of, evaluation_of
from tests.helpers.runs import make_run

CLASSES = ("no|pe", "<b>yes</b>")


def result_of(**changes: Any) -> dict[str, Any]:
    about = {"run": "first", "address": "s/runs/first", "checkpoint": "s/runs/first/checkpoints/4", "source": None}
    evaluation = evaluation_of(CLASSES, "binary", 1200)
    return about | evaluation | {"calibration": calibration_of(CLASSES, "binary", 1200)} | changes


def shown(result: dict[str, Any]) -> str:
    console = Console(width=200, record=True, file=None, markup=False)
    with console.capture() as captured:
        console.print(render_evaluation(result))
    return captured.get()


def test_a_person_sees_metrics_classes_temperature_and_thresholds() -> None:
    text = shown(result_of())
    assert "s/runs/first/checkpoints/4" in text and "the test split, " in text
    for name in ("ROC AUC", "macro-F1", "Precision", "Support", "<b>yes</b>", "Temperature 1.6180"):
        assert name in text, name
    assert "0.527" in text and "best F1 on validation" in text


def test_of_another_table_there_is_no_calibration_and_of_outputs_that_are_no_numbers_no_class() -> None:
    text = shown(result_of(calibration=None, split=None, source="/data/other.parquet", per_class=[], confusion=[]))
    assert "/data/other.parquet, " in text
    assert "Temperature" not in text and "Threshold" not in text
    assert "it predicts none there" in text


def test_a_score_that_is_not_defined_is_a_dash_and_what_macro_f1_averages_is_said() -> None:
    result = result_of()
    assert "Macro-F1 is the mean of F1 over all 2 classes." in shown(result)
    per_class = [{"class": "no|pe", "precision": None, "recall": None, "f1": None, "support": 0}]
    text = shown(result | {"per_class": per_class + result["per_class"][1:]})
    assert "\N{EN DASH}" in text and "mean of F1 over 1 of 2 classes" in text
    assert "mean of F1 over 1 of 2 classes" in describe_in_markdown(
        result | {"per_class": per_class + result["per_class"][1:]}
    )


def test_the_artifact_says_the_same_and_text_stays_in_its_cell() -> None:
    text = describe_in_markdown(result_of())
    assert text.startswith(sum_up(result_of()))
    assert "| ROC AUC | 0.9812 |" in text
    assert "no\\|pe" in text and "\\<b\\>yes" in text


def test_no_class_or_path_becomes_a_picture_or_a_link_in_the_artifact() -> None:
    picture, link = "![i](http://evil.example/p.png)", "[here](http://evil.example)"
    calibration = calibration_of(("no", picture), "binary", 1200)
    text = describe_in_markdown(
        result_of(classes=["no", picture], calibration=calibration, source=link, checkpoint=link)
    )
    assert "evil.example" in text  # in the sentence on the threshold, and as the source
    assert picture not in text and link not in text and "](" not in text.replace("\\](", "")


@pytest.fixture
def address(tmp_path: Path) -> str:
    make_run(LocalStore(tmp_path / "store"), "first")
    return f"{tmp_path}/store/runs/first"


def test_the_deployment_leaves_the_result_as_an_artifact_and_says_it_in_one_sentence(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    left: dict[str, str] = {}

    def answer(store: Any, *arguments: Any) -> dict[str, Any]:
        asked.append((Manifest(store, arguments[0]).exists(), *arguments))
        return result_of()

    monkeypatch.setattr(flows.deployments, "evaluate_checkpoint", answer)
    monkeypatch.setattr(flows.deployments, "show", left.__setitem__)
    waited: list[str] = []
    monkeypatch.setattr(flows.deployed, "send_all", lambda why: waited.append(why))
    state = evaluate.fn(address, "1200", assignments=("train.device=cpu",))
    assert waited == [state.message]  # a server that is away is to hear of it
    assert state.is_completed() and state.message == sum_up(result_of())
    assert left == {"evaluation-first": describe_in_markdown(result_of())}
    assert asked == [(True, "first", "1200", "test", None, ("train.device=cpu",))]


def test_a_mistake_in_the_form_fails_the_flow_run_with_its_message(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = evaluate.fn(address, split="train", source="other.parquet")
    assert both.is_failed() and "give one of them" in str(both.message)

    def refuse(*_arguments: Any) -> dict[str, Any]:
        raise ConfigurationError("no such step")

    monkeypatch.setattr(flows.deployments, "evaluate_checkpoint", refuse)
    assert evaluate.fn(address, "7").message == "no such step"
