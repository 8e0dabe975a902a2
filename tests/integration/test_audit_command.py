"""`holdfast audit` from outside: what it says of an intact and a forged ledger, also as JSON and by exit code."""

import io
import json
import subprocess
from pathlib import Path

from rich.console import Console, RenderableType

from flows.commands.audit import render_audit
from storage.objects.local_store import LocalStore
from tasks.audits.verdict import audit_run
from tests.helpers.commands import COMMAND, ROOT, call_here
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.forged_ledgers import repeat_a_sample
from tests.helpers.ledgers import LedgerRun, row_id


def test_the_command_says_it_in_words_as_json_and_by_its_exit_code(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    run = LedgerRun(store, tmp_path, publish_small_dataset(store, tmp_path / "rows", 300))
    again, lost = run.rows(2, 0)[0], run.rows(5, 1)[0]
    address = f"{run.store.address}/runs/{run.name}"
    printed = call_here(["audit", address])
    assert printed.returncode == 2 and "There is no run" in printed.stderr
    result = audit_run(run.write().store, run.name)
    told = "\n".join(_printed(render_audit(result)))
    assert told.startswith("INTACT  Run ") and "960 samples" in told and "14 to 16" in told
    forged = LedgerRun(run.store, run.folder, run.dataset, name=f"{run.name}-forged")
    repeat_a_sample(forged)
    forged.write()
    command = [*COMMAND, "audit", f"{address}-forged", "--json"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (printed.returncode, printed.stderr) == (1, "")
    found = json.loads(printed.stdout)
    assert found == audit_run(run.store, forged.name)
    told = "\n".join(_printed(render_audit(found)))
    assert told.startswith("BROKEN  Run ")
    assert f"row {again} (id '{row_id(again)}') was used 2 times in epoch 0, at step 2 and step 5" in told
    assert f"row {lost} (id '{row_id(lost)}') is due here and was not used in epoch 0" in told


def _printed(shown: RenderableType) -> list[str]:
    console = Console(width=500, record=True, file=io.StringIO())
    console.print(shown)
    return [line.rstrip() for line in console.export_text().splitlines()]
