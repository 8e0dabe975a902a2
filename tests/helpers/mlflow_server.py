"""A real MLflow server on loopback, from a virtual environment of its own: its libraries are not ours.

Invariant: nothing of it outlives the block, however the block is left. What stays on the machine is the environment,
below the system's folder for temporary files, since to make it takes minutes and half a gigabyte.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from storage.objects.private_folder import make_private_folder
from tests.helpers.prefect_server import clean_environment, find_free_port, running

VERSION = "3.17.2"
START_SECONDS = 300.0
POLL_SECONDS = 0.2
ANSWER_SECONDS = 120.0
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}


@dataclass(frozen=True)
class TrackedCurves:
    """What MLflow's own API says of one run: the points of each metric as (step, value, milliseconds)."""

    info: dict[str, Any]
    tags: dict[str, str]
    parameters: dict[str, str]
    points: dict[str, list[tuple[int, float, int]]]

    def values(self, key: str) -> dict[int, float]:
        """Of one metric by step. Fails if a step is there twice."""
        found = self.points.get(key, [])
        assert len({step for step, _, _ in found}) == len(found), f"{key} has a step twice"
        return {step: value for step, value, _ in found}


def find_environment() -> Path | None:
    """Where MLflow is installed, if it is."""
    folder = _folder() / f"mlflow-{VERSION}"
    return folder if (folder / "made").exists() else None


def make_environment() -> Path:
    """Install MLflow, unless that was done on this machine before; needs a package index."""
    make_private_folder(_folder(), "TMPDIR")
    with (_folder() / "mlflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := find_environment()) is not None:
            return found
        folder = _folder() / f"mlflow-{VERSION}"
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"mlflow=={VERSION}"]
        subprocess.run(install, check=True)
        (folder / "made").touch()
        return folder


@contextmanager
def running_mlflow(environment: Path, folder: Path, port: int | None = None) -> Iterator[str]:
    """The address of a server that keeps what it is told in `folder`; with the same one it is that server again."""
    port = port or find_free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        str(environment / "bin" / "python"), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    own = {name: value for name, value in clean_environment().items() if name != "PYTHONPATH"} | QUIET
    with running(command, own, folder / "server.log", folder):
        address = f"http://127.0.0.1:{port}"
        _wait_until_it_answers(address, folder / "server.log")
        yield address


def read_curves(address: str, experiment: str = "holdfast", view: str = "ACTIVE_ONLY") -> list[TrackedCurves]:
    """All runs of an experiment, by MLflow's own API."""
    with httpx.Client(base_url=f"{address}/api/2.0/mlflow", timeout=ANSWER_SECONDS, trust_env=False) as client:
        found = client.get("/experiments/get-by-name", params={"experiment_name": experiment}).json()
        asked = {"experiment_ids": [found["experiment"]["experiment_id"]], "run_view_type": view}
        runs = client.post("/runs/search", json=asked).json().get("runs", [])
        return [_read_run(client, run) for run in runs]


def _read_run(client: httpx.Client, run: dict[str, Any]) -> TrackedCurves:
    data, run_id = run["data"], run["info"]["run_id"]
    points = {}
    for key in [metric["key"] for metric in data.get("metrics", [])]:
        answer = client.get("/metrics/get-history", params={"run_id": run_id, "metric_key": key}).json()
        points[key] = [(int(p["step"]), float(p["value"]), int(p["timestamp"])) for p in answer["metrics"]]
    tags = {tag["key"]: tag["value"] for tag in data.get("tags", [])}
    return TrackedCurves(run["info"], tags, {p["key"]: p["value"] for p in data.get("params", [])}, points)


def _wait_until_it_answers(address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/health", timeout=5, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(POLL_SECONDS)  # it tells nobody when it begins to listen
    raise RuntimeError(f"The MLflow server did not start within {START_SECONDS:.0f} s:\n{log.read_text()[-4000:]}")


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"holdfast-tests-{os.getuid()}"
