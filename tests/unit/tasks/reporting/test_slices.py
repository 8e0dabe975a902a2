"""Metrics per slice for a person: the tables of a page and of a terminal, and the sentence of `status`."""

import html
import io
from pathlib import Path
from typing import Any

from rich.console import Console

from flows.commands.status import render_status
from storage.checkpoints.results import evaluation_key, write_result
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.models.evaluation_words import describe_in_markdown
from tasks.reporting.run_page import render_report
from tasks.reporting.slices import EXPLANATION, describe_slices, slices_tables
from tasks.reporting.status import describe_status
from tests.helpers.finished_runs import interrupted_run


def entry(
    group: str, value: str | None, num_samples: int, macro_f1: float | str, num_values: int = 1
) -> dict[str, Any]:
    metrics = {"loss": 0.5, "accuracy": 0.7, "macro_f1": macro_f1}
    return {"group": group, "value": value, "num_values": num_values, "num_samples": num_samples, "metrics": metrics}


BY_COUNTRY = {
    "column": "coun|try",
    "slices": [
        entry("value", "DE", 812, 0.75),
        entry("missing", None, 100, 0.9),
        entry("unseen", None, 40, "nan"),
        entry("rare", None, 33, 0.25, num_values=7),
    ],
}


def test_the_report_has_a_table_for_each_column_and_without_slices_is_as_it_was() -> None:
    records = interrupted_run()
    assert records.evaluation is not None
    sliced = records.evaluation | {"slices": [BY_COUNTRY]}
    without, page = (
        html.unescape(render_report(records.state, {}, evaluation, records.dataset))
        for evaluation in (records.evaluation, sliced)
    )
    assert "Metrics per slice" not in without and EXPLANATION not in without
    assert "Metrics per slice" in page and EXPLANATION in page and "(7 rare values)" in page
    (table,) = slices_tables(sliced)
    assert [name for name, _ in table.columns] == ["coun|try", "Samples", "macro-F1", "accuracy", "loss"]
    names = [[cell.text for cell in row][:3] for row in table.rows]
    assert names[0][:2] == ["(all)", f"{records.evaluation['num_samples']:,}"]
    assert names[1:] == [
        ["DE", "812", "0.7500"],
        ["(missing)", "100", "0.9000"],
        ["(rare, or not in the training split)", "40", "nan"],
        ["(7 rare values)", "33", "0.2500"],
    ]


def test_the_artifact_of_an_evaluation_has_them_too() -> None:
    evaluation = interrupted_run().evaluation
    assert evaluation is not None
    result = evaluation | {"checkpoint": "s/4", "source": None, "calibration": None}
    assert EXPLANATION not in describe_in_markdown(result | {"slices": []})
    text = describe_in_markdown(result | {"slices": [BY_COUNTRY]})
    assert "coun\\|try | Samples | macro" in text and "| DE | 812 | 0.7500 |" in text and EXPLANATION in text


def test_a_sentence_has_the_worst_slice_and_the_best_one() -> None:
    assert describe_slices(BY_COUNTRY, "macro_f1") == (
        "macro-F1 by coun|try: 0.2500 ((7 rare values), 33 samples) to 0.9000 ((missing), 100 samples)"
    )
    alone = {"column": "country", "slices": [entry("value", "DE", 1, 0.75)]}
    assert describe_slices(alone, "macro_f1") == "macro-F1 by country: 0.7500 (DE, 1 sample)"
    assert describe_slices(alone, "auc") == "ROC AUC by country: \N{EN DASH}"


def test_a_status_has_those_of_the_model_that_was_tested_if_the_run_asks_for_them(tmp_path: Path) -> None:
    store, state = LocalStore(tmp_path / "store"), interrupted_run().state
    assert state.promoted is not None
    state = state.model_copy(update={"metrics": {"macro_f1": 0.8}, "metrics_step": state.promoted.step})
    assert state.headline is not None
    record = next(kept for kept in state.kept if kept.path == state.headline.path)
    found = {"weights_sha256": record.weights_sha256, "slices": [BY_COUNTRY]}
    write_result(store, evaluation_key(record.path), found)
    statuses = []
    for name, validation in (("without", {}), ("with", {"slices": ["coun|try"]})):
        config = state.config | {"validation": validation}
        generation = Manifest(store, name).create(state.model_copy(update={"run": name, "config": config}))
        statuses.append(describe_status(store, generation))
    without, status = statuses
    assert without["slices"] == []
    words = describe_slices(BY_COUNTRY, "macro_f1")
    assert status["slices"] == [BY_COUNTRY | {"description": words}]
    console = Console(file=io.StringIO(), width=1000)
    console.print(render_status(status), crop=False)
    assert f"test, {words}" in console.file.getvalue()  # type: ignore[attr-defined]
