"""What a user of Kubernetes meets: refusals, pods that wait, are taken away or die, and a whole run on two nodes."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from storage.errors import ClusterUnavailableError, ConfigurationError
from storage.objects.local_store import LocalStore
from storage.runs.run_state import JobRecord, Lease
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.launching.configuration import ClusterConfig
from tasks.launching.kubernetes import job as job_module
from tasks.launching.kubernetes.api import KubernetesApi
from tasks.launching.kubernetes.job import KubernetesJob
from tasks.launching.launchers import end_job, is_under_way, make_job, name_job, require_acceptable_job
from tasks.launching.orders import JobOrder
from tests.helpers.commands import Runner, kill_everything, processes_mentioning, wait_until
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.kubernetes_cluster import IMAGE, KubernetesCluster
from tests.helpers.kubernetes_server import NAMESPACE
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.runs import lease_run, make_run
from tests.helpers.s3_server import BUCKET, make_bucket, s3_environment, use_s3
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.training import make_spec
from training.configuration import TrainConfig

POLL_SECONDS = 0.2
RUN = "small"
OWN = {"image": IMAGE, "namespace": NAMESPACE}
ENDLESS = {"steps": 1_000_000}


class Job:
    """A segment of two nodes under a lease of its own, from the store alone."""

    def __init__(
        self, folder: Path, train: dict[str, Any] | None = None, grace: float = 30, nodes: int = 2, **own: Any
    ) -> None:
        self.store = LocalStore(folder / "store")
        self.manifest = make_run(self.store, RUN)
        dataset = publish_small_dataset(self.store, folder / "work", rows=100)
        self.fence = lease_run(self.manifest, ranks=2)
        spec = make_spec(self.store, dataset, folder / "segment" / "of" / "this", self.fence, ranks=1, **train or {})
        self.config = cluster_of(nodes, **own)
        self.order = JobOrder(segment=spec, cluster=self.config, grace_seconds=grace)
        record = name_job(self.config, self.store, RUN, self.fence)
        assert record is not None
        self.record: JobRecord = record

    def launch(self) -> KubernetesJob:
        job = make_job(self.record, self.order, self.store)
        assert isinstance(job, KubernetesJob)
        return job

    @property
    def lease(self) -> Lease:
        lease = self.manifest.load_head().state.lease
        assert lease is not None
        return lease

    @property
    def outcome(self) -> OutcomeRecord | None:
        return find_outcome(self.store, RUN, self.fence)


def cluster_of(nodes: int = 2, **own: Any) -> ClusterConfig:
    return ClusterConfig.model_validate({"kind": "kubernetes", "nodes": nodes, "kubernetes": {**OWN, **own}})


def follow(job: KubernetesJob, until: Callable[[], bool] = lambda: False) -> None:
    while job.is_running(POLL_SECONDS) and not until():
        pass


def follow_until_it_trains(job: KubernetesJob) -> None:
    follow(job, lambda: any(report.step > 0 for report in job.read_reports()))


def try_it(**own: Any) -> None:
    require_acceptable_job(cluster_of(**own), TrainConfig(), 30)


@pytest.fixture
def core(kubernetes: KubernetesCluster) -> client.CoreV1Api:
    """For what is done by others than Holdfast."""
    found = client.Configuration()
    config.load_kube_config(str(kubernetes.kubeconfig), client_configuration=found)
    return client.CoreV1Api(client.ApiClient(found))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert processes_mentioning(str(tmp_path / "store")) == []


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
    assert not (tmp_path / "store").exists()


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


def test_a_server_that_does_not_answer_is_no_refusal(kubernetes: KubernetesCluster) -> None:
    kubernetes.is_answering = False
    with pytest.raises(ClusterUnavailableError, match=r"http://127.0.0.1:\d+ does not answer"):
        try_it()


def test_without_the_client_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("tasks.launching.kubernetes.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ConfigurationError, match="`pip install kubernetes`"):
        try_it()


# How it is created and found.


def test_of_one_name_one_jobset_is_created(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS)
    kubernetes.loses_next_answer = True  # which is found when it is asked for again
    with job.launch() as first:
        follow_until_it_trains(first)
        with job.launch():  # as by a second process, which has nothing but the lease
            assert is_under_way(job.record, job.store, RUN, job.lease)
            (jobset,) = kubernetes.list_jobsets()
            KubernetesApi(job.config.kubernetes).create(jobset)  # 409, and that is no error
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


# Why pods wait.


def test_a_pod_without_a_place_an_image_or_a_secret_says_what_it_waits_for(
    kubernetes: KubernetesCluster, tmp_path: Path
) -> None:
    kubernetes.nodes = {"n1"}
    kubernetes.images = set()
    job = Job(tmp_path, secrets=["bucket"])
    with job.launch() as launched:
        (name,) = (jobset["metadata"]["name"] for jobset in kubernetes.list_jobsets())
        said: list[str] = []
        for missing in ("ImagePullBackOff", 'CreateContainerConfigError: secret "bucket" not found', "Unschedulable"):
            follow(launched, lambda missing=missing: missing in (launched.describe_wait() or ""))  # type: ignore[misc]
            said.append(launched.describe_wait() or "")
            kubernetes.images = {IMAGE}
            if "secret" in missing:
                kubernetes.secrets["bucket"] = {}
    assert said[0].startswith(f"2 of 2 pods of JobSet {name} wait, {name}-nodes-0-0-")
    assert said[0].endswith(f'ImagePullBackOff: Back-off pulling image "{IMAGE}"')
    assert said[2].startswith(f"1 of 2 pods of JobSet {name} wait, {name}-nodes-0-1-")
    assert said[2].endswith("Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")


def test_a_suspended_jobset_waits_for_its_queue(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    job = Job(tmp_path)
    with job.launch() as launched:
        jobset = kubernetes.list_jobsets()[0]
        kubernetes.suspend(jobset)
        follow(launched, lambda: "suspended" in (launched.describe_wait() or ""))
        assert "as a queue such as Kueue does" in (launched.describe_wait() or "")
    assert kubernetes.list_jobsets() == [] and job.outcome is None


# How it ends.


def test_pods_that_are_evicted_save_and_the_end_says_who_asked_for_it(
    kubernetes: KubernetesCluster, core: client.CoreV1Api, tmp_path: Path
) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.objects.forget_events()  # whoever watches is told that, and lists anew
        name = kubernetes.find_pod("n2")["metadata"]["name"]
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=NAMESPACE))
        core.create_namespaced_pod_eviction(name, NAMESPACE, body)
        follow(launched)
        assert launched.describe_end() == (
            f"Kubernetes says: pod {name} on n2 was taken away, EvictionByEvictionAPI: Eviction API: evicting (somebody"
            " asked for it, as when a node is drained)"
        )
    assert job.outcome is not None and job.outcome.outcome == "preempted"
    assert job.outcome.saves is not None and job.outcome.saves.count > 0


@pytest.mark.slow
def test_pods_that_others_preempt_save_too(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.preempt(kubernetes.find_pod("n1"))
        follow(launched)
        assert "on n1 was taken away, PreemptionByScheduler" in (launched.describe_end() or "")
    assert job.outcome is not None and job.outcome.outcome == "preempted"


@pytest.mark.slow
def test_a_jobset_that_its_queue_suspends_saves_and_is_not_begun_again(
    kubernetes: KubernetesCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.suspend(kubernetes.list_jobsets()[0])
        follow(launched)
        assert "was suspended: its queue gave the nodes to another job" in (launched.describe_end() or "")
    assert job.outcome is not None and job.outcome.outcome == "preempted"
    assert kubernetes.list_jobsets() == []


@pytest.mark.slow
def test_a_pod_that_a_queue_starts_again_trains_its_fence_no_second_time(
    kubernetes: KubernetesCluster, tmp_path: Path
) -> None:
    """Also where nobody watches who would delete its JobSet."""
    job = Job(tmp_path, train=ENDLESS, nodes=1)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        launched.leave()
    (jobset,) = kubernetes.list_jobsets()
    kubernetes.suspend(jobset)
    assert wait_until(lambda: kubernetes.list_pods() == [])
    began = job.outcome
    kubernetes.resume(jobset)
    assert wait_until(lambda: [pod["status"]["phase"] for pod in kubernetes.list_pods()] == ["Succeeded"])
    (pod,) = kubernetes.list_pods()
    assert "was worked on before" in kubernetes.read_output(pod)
    assert began is not None and job.outcome == began


@pytest.mark.slow
def test_a_jobset_that_somebody_deletes_saves_and_says_so(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.delete_jobset(job.record.name)
        follow(launched)
        assert launched.describe_end() == f"JobSet {job.record.name} was deleted"
    assert job.outcome is not None and job.outcome.outcome == "preempted"


@pytest.mark.slow
@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "silent"])
def test_a_node_that_dies_is_named_and_the_job_ends(
    kubernetes: KubernetesCluster, tmp_path: Path, is_removed: bool
) -> None:
    """A silent one is never removed: its pod is there for as long as nobody deletes it by force."""
    job = Job(tmp_path, train=ENDLESS, grace=10)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.lose_node("n2", is_removed)
        if is_removed:
            follow(launched)
            assert "on n2 was taken away, DeletionByPodGC: PodGC: node no longer exists" in (
                launched.describe_end() or ""
            )
        else:
            follow(launched, lambda: "DeletionByTaintManager" in (launched.describe_end() or ""))
            launched.stop()
            follow(launched)
        assert "on n2 was taken away" in (launched.describe_end() or "")
    assert kubernetes.list_pods() == [] or is_removed


@pytest.mark.slow
def test_a_pod_that_needs_too_much_memory_is_said_to(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.run_out_of_memory(kubernetes.find_pod("n1"))
        follow(launched)
        said = launched.describe_end() or ""
    assert (
        "on n1 was killed, OOMKilled: it needed more memory than its limit (cluster.kubernetes.memory_per_node)" in said
    )


@pytest.mark.slow
def test_a_server_that_is_away_ends_no_job(
    kubernetes: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "ASK_SECONDS", 0.2)
    job = Job(tmp_path)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.is_answering = False
        for _ in range(10):
            assert launched.is_running(POLL_SECONDS)
        kubernetes.is_answering = True
        follow(launched)
        assert launched.describe_end() is None
    assert job.outcome is not None and job.outcome.outcome == "completed"


# Whole runs.


def settings_of(**more: Any) -> dict[str, Any]:
    named = {f"cluster__kubernetes__{name}": value for name, value in OWN.items()}
    return {"cluster__kind": "kubernetes", "cluster__nodes": 2, **named, **more}


def own_environment(prefect_server: dict[str, str]) -> dict[str, str]:
    """What this test has set, and the server of all tests."""
    return {**prefect_server, **os.environ, "PREFECT_API_URL": prefect_server["PREFECT_API_URL"]}


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
        assert wait_until(lambda: len(list(store.glob("runs/left/segments/*/reports.json"))) > 0, first)
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
