"""A real run beside its linear model: the first lines of its result and of its report, and what is kept of it."""

import json
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.baselines.record import baseline_key, find_baseline
from tests.helpers.commands import Runner, call_here
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

pytestmark = pytest.mark.server

RUN = "compared"
BETTER = "A linear model on counts of tokens is better than this network: macro-F1 1.0000 against"


def test_a_network_that_has_hardly_been_trained_is_said_to_be_worse_in_the_first_lines(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(240))
    store = LocalStore(tmp_path / "store")
    runner = Runner(
        write_tiny_configuration(tmp_path, RUN, store.root, tmp_path / "data"),
        {"store": store.root, "run": RUN},
        prefect_server,
    )
    without = runner.call("run", report__baseline="false")
    assert without.returncode == 0, without.stderr
    page, record = store.root / "runs" / RUN / "report.html", store.root / baseline_key(RUN)
    assert without.stdout.startswith("run ") and not record.exists() and "Baseline" not in page.read_text()

    done = runner.call("run")  # of a run that is complete nothing else is left to do
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(BETTER), done.stdout + done.stderr
    text = page.read_text()
    assert text.index(BETTER) < text.index("<dl") and "<h2>Baseline" in text
    state = Manifest(store, RUN).load_head().state
    found = find_baseline(store, state)
    assert found is not None and found["metrics"] == {"accuracy": 1.0, "macro_f1": 1.0}
    assert found["num_rows"] == found["num_train_rows"] > found["num_test_rows"] > 0

    kept = record.read_bytes()
    record.write_bytes(kept)
    noted = record.stat().st_mtime_ns
    again = call_here(["report", f"{store.root}/runs/{RUN}"])
    assert again.returncode == 0 and BETTER in page.read_text()
    status = json.loads(call_here(["status", f"{store.root}/runs/{RUN}", "--json"]).stdout)
    assert status["baseline"]["warning"].startswith(BETTER)
    assert runner.call("run").stdout.startswith(BETTER)
    assert (record.stat().st_mtime_ns, record.read_bytes()) == (noted, kept)
    assert call_here(["scrub", store.root]).returncode == 0
