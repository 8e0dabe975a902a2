"""What a user of Kubernetes meets before and around a job: refusals, one JobSet for a lease, and whole runs."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ClusterUnavailableError, ConfigurationError
from tasks.cluster.kubernetes.api import KubernetesApi
from tasks.cluster.launchers import end_job, is_under_way, require_acceptable_job
from tests.helpers.commands import Runner, kill_everything, wait_until
from tests.helpers.kubernetes_cluster import KubernetesCluster
from tests.helpers.kubernetes_jobs import OWN, Job, cluster_of
from tests.helpers.leased_segments import ENDLESS, RUN, follow_until_it_trains
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import BUCKET, make_bucket, s3_environment, use_s3
from tests.helpers.tiny_runs import write_tiny_configuration
from training.configuration import TrainConfig


def try_it(**own: Any) -> None:
    require_acceptable_job(cluster_of(**own), TrainConfig(), 30)


# What is refused.


def test_a_jobset_that_is_refused_is_one_error_and_nothing_is_recorded(
    kubernetes: KubernetesCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    source = write_parquet(tmp_path / "data.parquet", text_columns(200))
    configuration = write_tiny_configuration(tmp_path, "refused", tmp_path / "store", source)
    kubernetes.refusal = 'admission webhook "vjobset.kb.io" denied the request: spec.replicatedJobs: too many'
    refused = Runner(configuration, settings_of(), own_environment(prefect_server)).call("run")
    assert refused.returncode == 2
    assert f"Kubernetes refused to create a JobSet: {kubernetes.refusal}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not any(path.is_file() for path in (tmp_path / "store").rglob("*"))


def test_a_jobset_is_tried_without_being_created(kubernetes: KubernetesCluster) -> None:
    try_it()
    assert kubernetes.list_jobsets() == []


def test_where_jobset_is_not_installed_the_error_says_so(kubernetes: KubernetesCluster) -> None:
    kubernetes.has_jobset = False
    with pytest.raises(ConfigurationError, match=r"does not know JobSets .*install JobSet in the cluster"):
        try_it()


def test_a_namespace_that_is_not_there_is_named(kubernetes: KubernetesCluster) -> None:
    with pytest.raises(ConfigurationError, match=r"has no namespace 'elsewhere'.*cluster\.kubernetes\.namespace"):
        try_it(namespace="elsewhere")


def test_what_a_user_may_not_do_is_said(kubernetes: KubernetesCluster) -> None:
    kubernetes.forbidden = {"create jobsets"}
    with pytest.raises(ConfigurationError, match=r"does not permit this user to create a JobSet: .* is forbidden"):
        try_it()


def test_a_user_who_is_not_known_is_told_so(kubernetes: KubernetesCluster) -> None:
    kubernetes.kubeconfig.write_text(kubernetes.kubeconfig.read_text().replace("token-of-the-tests", "another"))
    with pytest.raises(ConfigurationError, match=r"does not know who this is .*Log in anew"):
        try_it()


def test_a_token_that_has_run_out_is_no_refusal_and_the_next_one_is_taken(kubernetes: KubernetesCluster) -> None:
    api = KubernetesApi(cluster_of().kubernetes)
    assert api.find("none") is None
    kubernetes.token = "renewed"
    sound = kubernetes.kubeconfig.read_text()
    for text in (sound, "contexts: [", ""):  # nobody has renewed it, or somebody writes it now
        kubernetes.kubeconfig.write_text(text)
        with pytest.raises(ClusterUnavailableError, match=r"does not know who this is .*Log in anew"):
            api.find("none")
    kubernetes.kubeconfig.write_text(sound.replace("token-of-the-tests", "renewed"))
    assert api.find("none") is None


def test_a_context_that_is_not_there_a_broken_kubeconfig_and_none_at_all_are_said(
    kubernetes: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"no usable credentials .*production.*cluster\.kubernetes\.context"):
        try_it(context="production")
    kubernetes.kubeconfig.write_text("contexts: [")
    with pytest.raises(ConfigurationError, match=r"no usable credentials .*expected the node content"):
        try_it()
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.folder / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"no usable credentials .*Set KUBECONFIG to a kubeconfig file"):
        try_it()


def test_a_server_that_cannot_be_talked_to_in_secret_is_named(kubernetes: KubernetesCluster) -> None:
    kubernetes.kubeconfig.write_text(kubernetes.kubeconfig.read_text().replace("http://", "https://"))
    with pytest.raises(
        ConfigurationError, match=r"no secure connection to the Kubernetes server https://127.0.0.1:\d+"
    ):
        try_it()


def test_a_server_that_does_not_answer_or_has_too_much_to_do_is_no_refusal(kubernetes: KubernetesCluster) -> None:
    kubernetes.is_answering = False
    with pytest.raises(ClusterUnavailableError, match=r"http://127.0.0.1:\d+ does not answer"):
        try_it()
    kubernetes.is_answering, kubernetes.is_overloaded = True, True
    with pytest.raises(ClusterUnavailableError, match="cannot create a JobSet now: 429, Too many requests"):
        try_it()


def test_without_the_client_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("tasks.cluster.kubernetes.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ConfigurationError, match="`pip install kubernetes`"):
        try_it()


# How it is created and found.


def test_of_one_name_one_jobset_is_created(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS, nodes=1)
    kubernetes.loses_next_answer = True  # which is found when it is asked for again
    with job.launch() as first:
        follow_until_it_trains(first)
        with job.launch():  # as by a second process, which has nothing but the lease
            assert is_under_way(job.record, job.store, RUN, job.lease)
            (jobset,) = kubernetes.list_jobsets()
            KubernetesApi(job.order.cluster.kubernetes).create(jobset)  # 409, and that is no error
            assert len(kubernetes.list_jobsets()) == 1
    assert not is_under_way(job.record, job.store, RUN, job.lease)
    assert end_job(job.record, job.store, RUN, job.lease, grace_seconds=1) is None  # it is gone, and that is none
    assert job.outcome is not None and job.outcome.outcome == "preempted"


def test_before_anything_was_created_there_is_nothing_under_way(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert not is_under_way(job.record, job.store, RUN, job.lease)
    assert end_job(job.record, job.store, RUN, job.lease, grace_seconds=1) is None


@pytest.mark.slow
def test_a_job_that_nobody_watches_is_asked_to_save_by_whoever_settles_it(
    kubernetes: KubernetesCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as watched:
        follow_until_it_trains(watched)
        watched.leave()
    assert is_under_way(job.record, job.store, RUN, job.lease)
    assert end_job(job.record, job.store, RUN, job.lease, grace_seconds=30) is None
    assert job.outcome is not None and job.outcome.outcome == "preempted"
    assert kubernetes.list_jobsets() == []


# Whole runs.


def settings_of(**more: Any) -> dict[str, Any]:
    named = {f"cluster__kubernetes__{name}": value for name, value in OWN.items()}
    return {"cluster__kind": "kubernetes", "cluster__nodes": 2, **named, **more}


def own_environment(prefect_server: dict[str, str]) -> dict[str, str]:
    """What this test has set, and the server of all tests."""
    return {**prefect_server, **os.environ, "PREFECT_API_URL": prefect_server["PREFECT_API_URL"]}


@pytest.mark.slow
def test_a_run_over_a_bucket_ends_with_the_weights_of_a_local_one(
    kubernetes: KubernetesCluster,
    s3_endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefect_server: dict[str, str],
) -> None:
    """Its pods have the bucket's keys from a secret, and share nothing else."""
    use_s3(monkeypatch, s3_endpoint)
    make_bucket(s3_endpoint)
    kubernetes.secrets["bucket"] = s3_environment(s3_endpoint)
    source = write_parquet(tmp_path / "data.parquet", text_columns(200))
    store = f"s3://{BUCKET}/{tmp_path.name}"
    configuration = write_tiny_configuration(tmp_path, "there", store, source)
    there = settings_of(store=store, scratch=tmp_path / "scratch", cluster__kubernetes__secrets='["bucket"]')
    here = {"store": tmp_path / "store", "run": "here", "train__ranks": 2}
    environment = own_environment(prefect_server)
    runs = [Runner(configuration, settings, environment) for settings in (there, here)]
    for runner in runs:
        runner.run()
    promoted = [json.loads(runner.call("status", "--json").stdout)["promoted"] for runner in runs]
    assert promoted[0]["weights_sha256"] == promoted[1]["weights_sha256"]
    assert promoted[0]["step"] == 4
    names = sorted(jobset["metadata"]["name"] for jobset in kubernetes.list_jobsets())
    assert [name.startswith("holdfast-there-0000000") for name in names] == [True, True]  # trained, and evaluated


@pytest.mark.slow
def test_a_command_that_is_killed_leaves_its_jobset_to_the_next_one(
    kubernetes: KubernetesCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    source = write_parquet(tmp_path / "data.parquet", text_columns(200))
    store = tmp_path / "store"
    configuration = write_tiny_configuration(tmp_path, "left", store, source)
    settings = settings_of(store=store, run="left", train__steps=100_000, checkpoint__every_steps=200)
    runner = Runner(configuration, settings, own_environment(prefect_server))

    def find_promoted_step() -> int:
        return int((runner.status()["promoted"] or {"step": 0})["step"])

    first = runner.start()
    try:
        assert wait_until(lambda: len(list(store.glob("runs/left/segments/*/reports/*.json"))) > 0, first)
    finally:
        kill_everything(first)
    (jobset,) = kubernetes.list_jobsets()
    second = runner.start()
    try:
        assert wait_until(lambda: "it is watched again" in runner.log.read_text(), second)
        before = find_promoted_step()
        assert wait_until(lambda: find_promoted_step() > before, second)
        assert [each["metadata"]["name"] for each in kubernetes.list_jobsets()] == [jobset["metadata"]["name"]]
        second.send_signal(signal.SIGINT)
        assert second.wait(120) != 0
    finally:
        kill_everything(second)
    status = runner.status()
    assert [segment["outcome"] for segment in status["segments"]] == ["preempted"]
    assert kubernetes.list_jobsets() == []
