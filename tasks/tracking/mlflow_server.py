"""MLflow's REST API (version 2.0 of it, which servers 2 and 3 speak), as far as tracking needs it.

MLflow's own client is not used: it asks for older versions of libraries than those that are tested here, and sets its
time limits for the whole process. Invariant: no call takes longer than a few time limits, and none is repeated here.
https://mlflow.org/docs/latest/rest-api.html
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from storage.errors import ConfigurationError, StoreError
from storage.objects.addresses import open_store
from tasks.configuration.tracking import TrackingConfig
from tasks.tracking.description import ID_TAG, Status
from tasks.tracking.points import Point
from tasks.tracking.required import TOKEN_VARIABLE, server_address
from tasks.tracking.tracker import TrackedRun, TrackerError

API = "/api/2.0/mlflow"
FILES_API = "/api/2.0/mlflow-artifacts/artifacts"
FILES_SCHEME = "mlflow-artifacts:"
SHOWN_CHARACTERS = 300
NOT_THERE, ALREADY_THERE = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"


class MlflowServer:
    """A `Tracker`. Nothing is asked before the first call."""

    def __init__(self, config: TrackingConfig) -> None:
        self.address = server_address(config)
        self._experiment = config.experiment
        self._experiment_id: str | None = None
        self._seconds = config.timeout_seconds
        token = os.environ.get(TOKEN_VARIABLE)
        user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD"))
        self._client = httpx.Client(
            base_url=self.address,
            timeout=config.timeout_seconds,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=(user, password or "") if user else None,
        )

    def find_runs(self, identity: str) -> list[TrackedRun]:
        """The server's runs with this identity, deleted ones left out."""
        asked = {
            "experiment_ids": [self._find_experiment()],
            "filter": f"tags.`{ID_TAG}` = '{identity}'",
            "run_view_type": "ACTIVE_ONLY",
            "max_results": 100,
        }
        with self._understood():
            return [_run_of(found) for found in self._ask("POST", "/runs/search", json=asked).get("runs", [])]

    def create_run(self, name: str, started_at: int, tags: Mapping[str, str]) -> TrackedRun:
        """Create a run with these tags, begun at this Unix time in milliseconds."""
        asked = {
            "experiment_id": self._find_experiment(),
            "run_name": name,
            "start_time": started_at,
            "tags": _pairs(tags),
        }
        with self._understood():
            return _run_of(self._ask("POST", "/runs/create", json=asked)["run"])

    def log(self, run_id: str, points: Sequence[Point], parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Send points, parameters and tags of a run in one batch."""
        metrics = [
            {"key": p.key, "value": _number(p.value), "timestamp": p.milliseconds, "step": p.step} for p in points
        ]
        asked = {"run_id": run_id, "metrics": metrics, "params": _pairs(parameters), "tags": _pairs(tags)}
        self._ask("POST", "/runs/log-batch", json=asked)

    def set_status(self, run_id: str, status: Status, ended_at: int | None) -> None:
        """Set how a run stands, and when it ended."""
        ended = {} if ended_at is None else {"end_time": ended_at}
        self._ask("POST", "/runs/update", json={"run_id": run_id, "status": status, **ended})

    def put_file(self, run: TrackedRun, name: str, data: bytes) -> None:
        """Through the server, or into the bucket where it keeps files."""
        address = run.files_address
        if address.startswith(FILES_SCHEME):
            folder = httpx.URL(address).path.strip("/")
            self._exchange("PUT", f"{FILES_API}/{folder}/{name}", content=data)
        elif address.startswith("s3://"):
            _put_into_bucket(address, name, data)
        else:
            raise TrackerError(
                f"The MLflow server {self.address} keeps files of runs in {address}, where only itself can write. "
                "Start it with --artifacts-destination, and files go through it."
            )

    def delete_run(self, run_id: str) -> None:
        """Delete a run."""
        self._ask("POST", "/runs/delete", json={"run_id": run_id})

    def _find_experiment(self) -> str:
        if self._experiment_id is None:
            with self._understood():
                self._experiment_id = self._find_experiment_by_name() or self._create_experiment()
        return self._experiment_id

    def _find_experiment_by_name(self) -> str | None:
        path, named = "/experiments/get-by-name", {"experiment_name": self._experiment}
        answer = self._ask("GET", path, allowed=NOT_THERE, params=named)
        if not answer:
            return None
        experiment = answer["experiment"]
        if experiment.get("lifecycle_stage") == "deleted":
            raise TrackerError(
                f"MLflow's experiment {self._experiment!r} was deleted on {self.address}. Bring it back there, or set "
                "tracking.experiment to another name."
            )
        return str(experiment["experiment_id"])

    def _create_experiment(self) -> str:
        answer = self._ask("POST", "/experiments/create", allowed=ALREADY_THERE, json={"name": self._experiment})
        if not answer:  # another process was quicker
            answer = self._ask("GET", "/experiments/get-by-name", params={"experiment_name": self._experiment})
            answer = answer["experiment"]
        return str(answer["experiment_id"])

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TrackerError(
                f"The server {self.address} answers in another form than MLflow's: {type(error).__name__} {error}."
            ) from error

    def _ask(self, method: str, path: str, allowed: str | None = None, **what: Any) -> dict[str, Any]:
        """The answer; an empty one where the server refuses with the error code `allowed`."""
        response = self._exchange(method, API + path, allowed, **what)
        try:
            answer = response.json()
        except ValueError as error:
            raise TrackerError(
                f"What answers at {self.address} is no MLflow server: {path} gave {_shown(response)}"
            ) from error
        return {} if response.is_error or not isinstance(answer, dict) else answer

    def _exchange(self, method: str, path: str, allowed: str | None = None, **what: Any) -> httpx.Response:
        """One request. A server that sends its answer drop by drop is given up too."""
        deadline = time.monotonic() + 2 * self._seconds
        try:
            with self._client.stream(method, path, **what) as response:
                chunks = []
                for chunk in response.iter_raw():
                    chunks.append(chunk)
                    if time.monotonic() > deadline:
                        raise TrackerError(f"The MLflow server {self.address} takes too long to answer {path}.")
                whole = httpx.Response(
                    response.status_code, headers=response.headers, content=b"".join(chunks), request=response.request
                )
        except (httpx.HTTPError, OSError, ValueError) as error:
            # An error about a header quotes the header, which has the password.
            reason = type(error).__name__ if isinstance(error, httpx.LocalProtocolError) else str(error)
            reason = reason or type(error).__name__
            raise TrackerError(f"The MLflow server {self.address} does not answer: {reason}.") from error
        if whole.is_error and (allowed is None or _error_code(whole) != allowed):
            raise TrackerError(f"The MLflow server {self.address} refused {path}: {whole.status_code}, {_shown(whole)}")
        return whole


def _run_of(found: Mapping[str, Any]) -> TrackedRun:
    info, data = found["info"], found.get("data", {})
    return TrackedRun(
        run_id=info["run_id"],
        started_at=int(info.get("start_time", 0)),
        status=info.get("status", ""),
        tags={tag["key"]: tag.get("value", "") for tag in data.get("tags", [])},
        parameters={parameter["key"]: parameter.get("value", "") for parameter in data.get("params", [])},
        last_steps={metric["key"]: int(metric.get("step", 0)) for metric in data.get("metrics", [])},
        files_address=info.get("artifact_uri", ""),
    )


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _number(value: float) -> float | str:
    """As JSON of a protocol buffer has it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _put_into_bucket(address: str, name: str, data: bytes) -> None:
    try:
        open_store(address).write(name, data)
    except (StoreError, ConfigurationError) as error:
        raise TrackerError(f"The file {name} could not be put where MLflow keeps files, {address}: {error}") from error


def _error_code(response: httpx.Response) -> str | None:
    try:
        return str(response.json().get("error_code"))
    except (ValueError, AttributeError):
        return None


def _shown(response: httpx.Response) -> str:
    return " ".join(response.text.split())[:SHOWN_CHARACTERS]
