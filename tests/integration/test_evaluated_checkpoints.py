"""`holdfast evaluate` on two runs that were trained once; it leaves them as they stand.

One is multiclass, on text, its lease held as if it trained on; one is binary, on tokens, and two ranks evaluated it.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.checkpoints.checkpoints import STATE_NAME
from storage.checkpoints.reading import find_held
from storage.checkpoints.results import find_calibration, find_evaluation
from storage.checkpoints.strays import delete_strays
from storage.datasets import load_dataset
from storage.errors import ObjectMissingError
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.retention import find_best
from storage.runs.run_state import CheckpointRecord, RunState
from storage.runs.transitions import take_lease
from tasks.cluster.agents import KeptAgent
from tasks.cluster.ranks import Ranks
from tasks.config.load import load_configuration
from tasks.models import evaluation
from tests.helpers.commands import call_here
from tests.helpers.parquet import read_rows, text_columns, token_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.trained_runs import train_run

TEXT, TOKENS = "text", "tokens"
COLUMNS = {TEXT: text_columns(240), TOKENS: token_columns(400)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """Of both runs, four steps each, with the checkpoint of the last one."""
    folder = tmp_path_factory.mktemp("trained")
    for name, table in COLUMNS.items():
        write_parquet(folder / f"{name}.parquet", table)
    configuration = write_tiny_configuration(folder, TEXT, folder / "store", folder / f"{TEXT}.parquet")
    columns = ['data.numeric=["length"]', 'data.categorical=["region"]', 'validation.slices=["region"]']
    train_run(load_configuration(configuration, columns))
    text = configuration.read_text().replace(f"{TEXT}.parquet", f"{TOKENS}.parquet").replace("multiclass", "binary")
    text = text.replace('text = "text"', 'tokens = "input_ids"\nattention_mask = "attention_mask"')
    (folder / "tokens.toml").write_text(text.replace('"domain"', '"label"').replace("= 300", "= 1000"))
    chosen = ['validation.metrics=["recall"]', "validation.metric_for_best_model=recall"]
    train_run(load_configuration(folder / "tokens.toml", [f"run={TOKENS}", "train.ranks=2", *chosen]))
    store = LocalStore(folder / "store")
    Manifest(store, TEXT).commit("segment began", take_lease(this_process(), 1))
    return store


@pytest.fixture
def own_store(store: LocalStore, tmp_path: Path) -> LocalStore:
    """A copy that a test may change."""
    return LocalStore(Path(shutil.copytree(store.root, tmp_path / "store")))


def evaluate(store: LocalStore, run: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return call_here(["evaluate", f"{store.address}/runs/{run}", *arguments, "--json"])


@pytest.fixture(scope="module", autouse=True)
def one_agent() -> Iterator[None]:
    """For the evaluations of all tests, each of which would begin one: that takes longer than what it is asked for.

    An agent that was begun for one evaluation is in `test_export.py`; both have the same bits: `test_kept_agents.py`.
    """
    kept = KeptAgent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "Ranks", partial(Ranks, kept=kept))
        yield
    kept.close()


def result_of(store: LocalStore, run: str, *arguments: object) -> dict[str, Any]:
    found = evaluate(store, run, *arguments)
    assert found.returncode == 0, found.stderr
    return dict(json.loads(found.stdout))


def state_of(store: LocalStore, run: str) -> RunState:
    return Manifest(store, run).load_head().state


def listing_of(store: LocalStore) -> dict[str, bytes]:
    """Every object, and those whose bytes could change."""
    keys = list(store.list_keys(""))
    return {key: store.read(key) if key.endswith(".json") else b"" for key in keys}


def record_at(store: LocalStore, run: str, step: int) -> CheckpointRecord:
    return next(record for record in state_of(store, run).kept if record.step == step)


@pytest.mark.parametrize("run", [TEXT, TOKENS])
def test_on_the_test_split_the_newest_has_the_numbers_of_the_runs_own_evaluation_and_nothing_is_written(
    store: LocalStore, run: str
) -> None:
    before = listing_of(store)
    ranks = {TEXT: 2, TOKENS: 1}[run]  # the other number than in the run
    result = result_of(store, run, "--checkpoint", "newest", "--set", f"train.ranks={ranks}")
    promoted = state_of(store, run).promoted
    own, calibration = find_evaluation(store, promoted), find_calibration(store, promoted)
    assert own is not None and calibration is not None
    best = find_best(state_of(store, run))
    assert find_evaluation(store, best) is not None and find_calibration(store, best) is not None
    assert {name: result[name] for name in own} == own and ("slices" in own) == (run == TEXT)
    assert [found["column"] for found in result["slices"]] == (["region"] if run == TEXT else [])
    assert result["calibration"] == calibration
    assert result["metrics"].keys() >= {"loss", "accuracy", "macro_f1"} | ({"auc"} if run == TOKENS else set())
    assert listing_of(store) == before


def test_a_metric_that_was_chosen_is_computed_by_all_and_decides_which_model_is_the_best(store: LocalStore) -> None:
    state = state_of(store, TOKENS)
    for record in state.kept:
        validation = json.loads(store.read(f"{record.path}/{STATE_NAME}"))["history"]["validation"][-1]
        assert validation["step"] == record.step and record.metric == validation["metrics"]["recall"]
    assert state.headline is not None and {"recall", "auc"} <= state.headline.metrics.keys()


def test_on_validation_it_has_the_numbers_of_the_validation_made_at_its_step_also_if_it_is_dropped_meanwhile(
    own_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, manifest = record_at(own_store, TEXT, 4), Manifest(own_store, TEXT)
    run_ranks = evaluation._run_ranks

    def drop_and_run(*arguments: Any) -> Any:
        assert find_held(own_store, TEXT) == {read.path}
        dropping = manifest.commit(
            "dropped", lambda state, _: state.model_copy(update={"kept": [r for r in state.kept if r != read]})
        )
        delete_strays(own_store, dropping)
        return run_ranks(*arguments)

    monkeypatch.setattr(evaluation, "_run_ranks", drop_and_run)
    result = result_of(own_store, TEXT, "--checkpoint", 4, "--split", "validation")
    history = json.loads(own_store.read(f"{read.path}/{STATE_NAME}"))["history"]["validation"]
    assert history[-1] == {"step": 4, "metrics": result["metrics"]}
    assert (result["step"], result["weights_sha256"]) == (4, read.weights_sha256)
    assert result["calibration"] is None
    delete_strays(own_store, manifest.load_head())  # nobody reads it any more
    with pytest.raises(ObjectMissingError):
        own_store.read(f"{read.path}/{STATE_NAME}")


def test_another_table_of_the_test_splits_own_rows_has_the_test_splits_results(
    store: LocalStore, tmp_path: Path
) -> None:
    """Preparing them assigns these rows to one split whatever their ids, and numbers them anew."""
    state = state_of(store, TEXT)
    rows = read_rows(store, load_dataset(store, state.dataset_digest))
    chosen = pa.table(COLUMNS[TEXT]).filter(
        [rows[sample_id]["split"] == "test" for sample_id in COLUMNS[TEXT]["sample_id"]]
    )
    source = write_parquet(tmp_path / "other" / "part-0.parquet", chosen.to_pydict())
    before = listing_of(store)
    result = result_of(store, TEXT, "--checkpoint", "newest", "--source", source)
    own = find_evaluation(store, state.promoted)
    assert own is not None
    assert (result["source"], result["split"], result["calibration"]) == (str(source), None, None)
    assert result["metrics"] == pytest.approx(own["metrics"], abs=1e-6)
    assert (result["confusion"], result["num_samples"]) == (own["confusion"], own["num_samples"])
    ((found,), (expected,)) = (one["slices"] for one in (result, own))
    assert [slice_["num_samples"] for slice_ in found["slices"]] == [one["num_samples"] for one in expected["slices"]]
    assert listing_of(store) == before


def changed(**columns: Any) -> dict[str, Any]:
    """A table for the run on text, with these columns changed, and without those that are None."""
    return {name: column for name, column in (text_columns(30) | columns).items() if column is not None}


@pytest.mark.parametrize(
    ("arguments", "columns", "said"),
    [
        (
            [],
            changed(domain=["billing", "travel", "tax"] * 10),
            "unknown labels.*one of billing, travel, work.*10 of",
        ),
        ([], changed(text=None), "Column 'text' is missing"),
        ([], changed(length=None), "Column 'length' is missing"),
        ([], changed(length=[1.797e308] * 30), "numbers too large to be scaled"),
        (["--set", "data.max_tokens=4096"], changed(text=["word " * 400] * 30), "leave these rows out"),
        (["--split", "test"], changed(), "--split test is a part of the run's own data"),
        (["--checkpoint", "3"], None, "keeps no checkpoint of step 3. It keeps step"),
        (["--set", "train.device=gpu"], None, "train.device"),
    ],
    ids=[
        "unknown label",
        "no text",
        "no metadata",
        "a huge number",
        "too long",
        "split and source",
        "no such step",
        "bad setting",
    ],
)
def test_a_mistake_is_one_error_and_the_store_is_as_it_was(
    store: LocalStore, tmp_path: Path, arguments: list[str], columns: dict[str, Any] | None, said: str
) -> None:
    before = listing_of(store)
    source = [] if columns is None else ["--source", write_parquet(tmp_path / "other.parquet", columns)]
    found = evaluate(store, TEXT, *arguments, *source)
    assert found.returncode == 2
    assert json.loads(found.stdout).keys() == {"error"}
    error = " ".join(found.stderr.split())
    assert error.count("Error: ") == 1 and "Traceback" not in error
    assert "data.classes" not in error and "raise data." not in error  # of no use for a model that is trained
    assert re.search(said, error), error
    assert listing_of(store) == before


def test_a_damaged_checkpoint_is_not_trusted(own_store: LocalStore) -> None:
    path = own_store.root / record_at(own_store, TOKENS, 4).path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found = evaluate(own_store, TOKENS, "--checkpoint", "newest")
    assert (found.returncode, json.loads(found.stdout).keys()) == (2, {"error"})
    assert "model.safetensors was changed after it was written" in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
    assert find_held(own_store, TOKENS) == frozenset()
