"""What Kubernetes reports of a pod becomes one sentence that names the pod, its node and the reason."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import watch
from kubernetes.client import ApiClient, V1Pod

from tasks.cluster.kubernetes.ends import PodEnds
from tasks.cluster.kubernetes.words import describe_pod_end, describe_pod_wait, is_live


def pod(phase: str, node: str | None = "n1", container: dict[str, Any] | None = None, **status: Any) -> V1Pod:
    """As an API server has it."""
    if container is not None:
        told = {"name": "ranks", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": container}
        status["containerStatuses"] = [told]
    found = {
        "metadata": {"name": "p-0"},
        "spec": {"nodeName": node, "containers": [{"name": "ranks"}]},
        "status": {"phase": phase, **status},
    }
    return ApiClient().deserialize(json.dumps(found), "V1Pod", "application/json")


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


EXIT = {"terminated": {"exitCode": 137, "reason": "Error"}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (pod("Pending", node=None), "not scheduled yet"),
        (pod("Pending"), "its node prepares it"),
        (pod("Pending", container={"waiting": {"reason": "ContainerCreating"}}), "ContainerCreating"),
        (
            pod("Pending", node=None, **condition("PodScheduled", "False", "SchedulingGated", "by a gate")),
            "SchedulingGated: by a gate",
        ),
        (pod("Running"), None),
        (pod("Succeeded"), None),
    ],
)
def test_a_pod_waits_for_what_kubernetes_says(found: V1Pod, said: str | None) -> None:
    assert describe_pod_wait(found) == said


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (pod("Succeeded", container={"terminated": {"exitCode": 0, "reason": "Completed"}}), None),
        (pod("Running", container={"running": {}}), None),
        (pod("Pending"), None),
        (pod("Failed", container=EXIT), "pod p-0 on n1 ended with exit code 137, Error"),
        (
            pod("Failed", reason="Evicted", message="The node was low on resource: memory.", container=EXIT),
            "pod p-0 on n1 failed, Evicted: The node was low on resource: memory.",
        ),
        (
            pod("Failed", container=EXIT, **condition("DisruptionTarget", "True", "TerminationByKubelet", "shutdown")),
            "pod p-0 on n1 was taken away, TerminationByKubelet: shutdown (its node shut down, or had too little "
            "memory or disk)",
        ),
        (
            pod("Running", **condition("DisruptionTarget", "True", "SomethingNew", "said")),
            "pod p-0 on n1 was taken away, SomethingNew: said",
        ),
        (pod("Running", **condition("DisruptionTarget", "False", "PreemptionByScheduler", "")), None),
    ],
)
def test_a_pod_ended_for_what_kubernetes_says(found: V1Pod, said: str | None) -> None:
    assert describe_pod_end(found) == said


@pytest.mark.parametrize(
    ("exit_code", "is_asked_to_leave", "said"),
    [
        (143, True, None),  # SIGTERM reached it before it could answer, or when it had just left
        (143, False, "pod p-0 on n1 ended with exit code 143, Error"),
        (1, True, "pod p-0 on n1 ended with exit code 1, Error"),
    ],
)
def test_a_pod_that_was_asked_to_leave_has_no_other_reason_for_its_sigterm(
    exit_code: int, is_asked_to_leave: bool, said: str | None
) -> None:
    found = pod("Failed", container={"terminated": {"exitCode": exit_code, "reason": "Error"}})
    assert describe_pod_end(found, is_asked_to_leave) == said


def test_who_listens_knows_by_then_that_the_pods_were_asked_to_leave() -> None:
    """What ended before is told, what ends by the SIGTERM that follows is not."""
    terminated = {"terminated": {"exitCode": 143, "reason": "Error"}}
    early, late = pod("Failed", container=terminated), pod("Failed", container=terminated)
    late.metadata.name = "p-1"

    class Api:
        """Tells of one pod, and of the other one once both were asked to leave."""

        def watch_pods(self, _name: str, _watcher: watch.Watch) -> Iterator[V1Pod]:
            yield early
            ends.is_asked_to_leave = True
            yield late
            heard.set()
            ends.stop()

    heard = threading.Event()
    ends = PodEnds(Api(), "job")  # type: ignore[arg-type]
    ends.start()
    assert heard.wait(60)
    assert ends.read() == ["pod p-0 on n1 ended with exit code 143, Error"]


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "Succeeded", "Failed"])
def test_a_pod_of_which_nothing_is_known_may_still_run(phase: str) -> None:
    assert is_live(pod(phase)) == (phase not in ("Succeeded", "Failed"))
