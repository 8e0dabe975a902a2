"""How ranks are started, and what each of them loads: every restart waits for it."""

from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec, read_log, train_to_end

# Each takes a second of computing or two, and training uses nothing of it: torch's compiler, Arrow's data frames, and
# what torchmetrics loads for plots, sound and texts.
NOT_LOADED = {"torch._dynamo", "torch._inductor", "pandas", "matplotlib", "scipy", "transformers"}


@pytest.mark.parametrize(("ranks", "optimizer"), [(2, "adamw"), pytest.param(1, "sgd", marks=pytest.mark.slow)])
def test_libraries_are_loaded_once_for_all_ranks_and_none_that_they_do_not_use(
    ranks: int, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # python(1): every module that is loaded is named on stderr
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", ranks=ranks, steps=12, optimizer=optimizer)
    assert train_to_end(spec, store).outcome == "completed"
    loaded = [line.rpartition("|")[2].strip() for line in read_log(spec).splitlines() if "import time:" in line]
    assert "torchmetrics" in loaded  # it validated, too
    assert not set(loaded) & NOT_LOADED
    assert loaded.count("torch") == loaded.count("training.trainer") == 1
    assert loaded.count("pyarrow") == loaded.count("training.batches.blocks") == 1  # who assembles input is forked, too


# Loaded by Python itself at the start of a process: what some library might do when it is imported.
A_THREAD = """
import sys, threading
if "training.agents.agent" in sys.orig_argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_an_agent_that_has_threads_forks_nobody_and_its_ranks_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(A_THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", ranks=2, steps=12)
    assert train_to_end(spec, store).outcome == "completed"
    assert "the agent cannot be forked, it has 2 threads" in read_log(spec)
    assert (spec.scratch_folder / "rank-ends.json").exists()
