"""An API server that refuses to answer for a moment, while a token is renewed, ends no job whose pods train on."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ClusterLoginError, ConfigurationError
from storage.objects.local_store import LocalStore
from tasks.cluster.kubernetes import job as jobs
from tasks.cluster.kubernetes.job import KubernetesJob

REFUSED = "The Kubernetes server does not answer this user."


class Api:
    """A server with a JobSet whose pods have not come, which refuses whatever is asked while `is_refusing`."""

    def __init__(self) -> None:
        self.is_refusing = False
        self.refusal: Exception = ConfigurationError(REFUSED)
        self.deleted: list[str] = []

    def find(self, name: str) -> dict[str, Any]:
        self._answer()
        return {"spec": {}, "status": {"conditions": [{"type": "Completed", "status": str(bool(self.deleted))}]}}

    def list_pods(self, name: str) -> list[Any]:
        self._answer()
        return []

    def watch_pods(self, name: str, watcher: object) -> Iterator[Any]:
        self._answer()
        time.sleep(0.05)  # as a server that has nothing to say for a while
        yield from ()

    def delete(self, name: str) -> None:
        self._answer()
        self.deleted.append(name)

    def kill_pods(self, name: str) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.is_refusing:
            raise self.refusal


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setattr(jobs, "KubernetesApi", lambda _cluster: found)
    monkeypatch.setattr(jobs, "ASK_SECONDS", 0.01)
    return found


@pytest.fixture
def job(api: Api, tmp_path: Path) -> KubernetesJob:
    order: Any = type("Order", (), {"cluster": type("Cluster", (), {"kubernetes": None})})
    job = KubernetesJob("jobset", LocalStore(tmp_path), "run", 2, grace_seconds=60, order=order)
    assert job.find()
    return job


@pytest.mark.parametrize("refusal", [ConfigurationError(REFUSED), ClusterLoginError(REFUSED)])
def test_the_job_goes_on_and_the_refusal_is_told_once_until_it_is_answered(
    refusal: Exception, api: Api, job: KubernetesJob, caplog: pytest.LogCaptureFixture
) -> None:
    api.refusal = refusal
    with job:
        for _ in range(2):
            api.is_refusing = True
            for _ in range(3):
                assert job.is_running(0.02)
            api.is_refusing = False
            assert job.is_running(0.02)
        assert api.deleted == []
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 2 and said[0].startswith(REFUSED) and "go on, and the server is asked again" in said[0]
    assert api.deleted == ["jobset"] and not job.is_running(0.02)


def test_a_refusal_that_lasts_is_the_error_of_a_job_that_cannot_be_ended(
    api: Api, job: KubernetesJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ENDING_SECONDS", 0.1)
    with pytest.raises(ConfigurationError, match="does not answer this user"), job:
        api.is_refusing = True
        job.kill()
