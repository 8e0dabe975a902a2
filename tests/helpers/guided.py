"""The guide from nothing to a scheduled run with alerts, typed as it stands, but for the server and the worker."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.helpers.commands import ROOT
from tests.helpers.operators import WORKER, at_the_server
from tests.helpers.prefect_server import PATIENT, running

LINES = re.compile(r"^## Set it up$.*?^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 8
SERVER_LINE = "prefect server start"
RECONCILER_LINE = "holdfast reconcile run.toml"
WATCHES = "Watching"  # what it prints when it begins
SERVER_ADDRESS = "http://127.0.0.1:4200/api"
NUM_PLANNED = 3  # flow runs that the server plans at least


@dataclass(frozen=True)
class Guided:
    """What was on the server when the lines were typed, and what they printed."""

    printed: str
    reconciler: str  # what it has printed when it watched
    deployment: dict[str, Any]
    scheduled_times: list[datetime]
    automations: dict[str, dict[str, Any]]
    block: str  # ID of the notification block


def type_guide(folder: Path, environment: Mapping[str, str], run: str) -> Guided:
    """Type the lines in `folder`, whose `run.toml` has this run; what they have made is taken away again.

    A worker of another test would begin a flow run of this schedule.
    """
    (folder / "store").mkdir()
    text = _read_lines().replace(SERVER_ADDRESS, environment["PREFECT_API_URL"])
    given = {**environment, **PATIENT}
    done = subprocess.run(["bash", "-ec", text], cwd=folder, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    log = folder / "reconciler.log"
    with (
        at_the_server(folder, environment) as operator,
        running(["bash", "-c", f"exec {RECONCILER_LINE}"], given, log, folder),
    ):
        operator.wait(lambda: WATCHES in log.read_text())
        name = f"scheduled/{run}"
        operator.wait(lambda: len(operator.scheduled_times(name)) >= NUM_PLANNED)
        document = operator.request("GET", "/block_types/slug/slack-webhook/block_documents/name/holdfast")
        times, automations = operator.scheduled_times(name), operator.automations("holdfast-")
        deployment = operator.deployment(name)
        guided = Guided(done.stdout, log.read_text(), deployment, times, automations, document["id"])
        removed = operator.type("deploy", "run.toml", "--remove")
        assert removed.returncode == 0, removed.stderr
        assert operator.automations("holdfast-") == {}
    return guided


def _read_lines() -> str:
    (block,) = LINES.findall((ROOT / "deployments/README.md").read_text(encoding="utf-8"))
    lines = [line for line in block.splitlines() if line]
    assert len(lines) <= MOST_LINES
    assert lines[1] == SERVER_LINE and lines[-2:] == [RECONCILER_LINE, f"prefect {' '.join(WORKER)}"]
    return "\n".join([lines[0], *lines[2:-2]])
