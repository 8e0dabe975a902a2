"""What Kubernetes does to the pods of a job, and what is said of it: they wait, are taken away, or die."""

from pathlib import Path

import pytest
from kubernetes import client, config

from tasks.cluster.kubernetes import job as job_module
from tests.helpers.commands import wait_until
from tests.helpers.kubernetes_cluster import IMAGE, KubernetesCluster
from tests.helpers.kubernetes_jobs import Job
from tests.helpers.kubernetes_server import NAMESPACE
from tests.helpers.leased_segments import ENDLESS, follow, follow_until_it_trains


@pytest.fixture
def core(kubernetes: KubernetesCluster) -> client.CoreV1Api:
    """For what is done by others than Holdfast."""
    found = client.Configuration()
    config.load_kube_config(str(kubernetes.kubeconfig), client_configuration=found)
    return client.CoreV1Api(client.ApiClient(found))


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
            f"Kubernetes reports: pod {name} on n2 was taken away, EvictionByEvictionAPI: Eviction API: evicting (a "
            "user asked for it, as when a node is drained)"
        )
    assert job.outcome is not None and job.outcome.outcome == "preempted"
    assert job.newest_saved_step == job.outcome.last_step


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
            follow(launched)
            assert "on n2 was taken away, DeletionByTaintManager" in (launched.describe_end() or "")
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
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.is_answering = False
        for _ in range(10):
            assert launched.is_running(0.2)
        kubernetes.is_answering = True
        launched.stop()
        follow(launched)
    assert job.outcome is not None and job.outcome.outcome == "preempted"
    assert job.newest_saved_step == job.outcome.last_step


@pytest.mark.slow
def test_a_token_that_runs_out_ends_no_job(
    kubernetes: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "ASK_SECONDS", 0.2)
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        kubernetes.token = "renewed"
        for _ in range(10):
            assert launched.is_running(0.2)
        kubernetes.kubeconfig.write_text(kubernetes.kubeconfig.read_text().replace("token-of-the-tests", "renewed"))
        launched.stop()
        follow(launched)
    assert job.outcome is not None and job.outcome.outcome == "preempted"
    assert job.newest_saved_step == job.outcome.last_step
