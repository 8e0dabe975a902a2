"""A flow run's page in Prefect while a segment trains, on a real server; and the report that is written meanwhile."""

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from storage.objects.local_store import LocalStore
from storage.runs.run_state import Throughput
from tasks.configuration.run import RunConfig
from tasks.prefect_bridge import live_page as picture
from tasks.prefect_bridge.live_page import LivePicture
from tasks.run_paths import RunPaths
from tests.helpers.commands import wait_until
from tests.helpers.kept_runs import make_kept_run
from tests.helpers.prefect_server import ANSWER_SECONDS
from training.metrics.reporter import Report

pytestmark = pytest.mark.server

CONFIG = RunConfig.model_validate(
    {"run": "run", "data": {"source": "x", "text": "t", "label": "l", "kind": "multiclass"}, "train": {"steps": 100}}
)
SPEED = Throughput(samples_per_second=64, tokens_per_second=640, input_wait_fraction=0.25)


def read_artifacts(api: str, flow_run: str) -> dict[str, dict[str, Any]]:
    wanted = {"artifacts": {"flow_run_id": {"any_": [flow_run]}}}
    response = httpx.post(f"{api}/artifacts/filter", json=wanted, timeout=ANSWER_SECONDS, trust_env=False)
    return {artifact["key"]: artifact for artifact in response.json()}


def test_progress_and_page_follow_the_ranks_reports_and_promotions(
    tmp_path: Path, prefect_server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(picture, "PAGE_SECONDS", 0.1)
    monkeypatch.setattr(picture, "FIRST_PAGE_SECONDS", 0.1)
    store = LocalStore(tmp_path / "store")
    run_paths = RunPaths(store, make_kept_run(store, tmp_path), tmp_path / "scratch", tmp_path / "data")
    api = prefect_server["PREFECT_API_URL"]
    report = store.root / "runs/run/report.html"

    @flow(name="shows a run")
    def show() -> dict[str, dict[str, Any]]:
        read = partial(read_artifacts, api, str(flow_run.id))
        with LivePicture(CONFIG, run_paths) as shown:
            shown.show(Report(phase="train", step=40, loss=0.5, throughput=SPEED))
            assert wait_until(lambda: "progress-run" in read())
            assert wait_until(report.exists)  # from the beginning
            report.unlink()
            shown.promoted(run_paths.manifest.load_head().state.kept[0])
            assert wait_until(report.exists) and wait_until(lambda: "run-run" in read())
            shown.show(Report(phase="train", step=60, loss=0.4))
            assert wait_until(lambda: read()["progress-run"]["data"] == 60)
        return read()

    with temporary_settings({PREFECT_API_URL: api}):
        found = show()
    assert found["progress-run"]["description"] == "training, step 60 of 100, loss 0.4000"
    assert "## Checkpoints that are kept: 3" in found["run-run"]["data"]
    assert "Full report" in found["run-run"]["data"]
    assert report.exists()
