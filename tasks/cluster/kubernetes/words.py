"""Status of a pod in one sentence: why it does not run yet, and why it ended.

Invariant: a pod that waits, runs, or ended by itself in good order gives no reason for an end.
"""

import signal

from kubernetes.client import V1ContainerStatus, V1Pod, V1PodCondition

# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
DISRUPTIONS = {
    "PreemptionByScheduler": "a pod of higher priority needed the node",
    "DeletionByTaintManager": "its node does not answer, or was marked not to have it",
    "EvictionByEvictionAPI": "a user asked for it, as when a node is drained",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node shut down, or had too little memory or disk",
}
OUT_OF_MEMORY = "OOMKilled"
BY_SIGTERM = 128 + signal.SIGTERM


def is_live(pod: V1Pod) -> bool:
    """Whether any of it may run, or run later."""
    return pod.status.phase not in ("Succeeded", "Failed")


def is_taken_away(pod: V1Pod) -> bool:
    """Whether something else than its own processes ends it, or has ended it."""
    disruption = _condition(pod, "DisruptionTarget")
    return disruption is not None and disruption.status == "True"


def describe_pod_wait(pod: V1Pod) -> str | None:
    """None once its container was started."""
    if pod.status.phase != "Pending":
        return None
    scheduled = _condition(pod, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return _join(scheduled.reason, scheduled.message)
    for status in pod.status.container_statuses or []:
        if status.state.waiting is not None:
            return _join(status.state.waiting.reason, status.state.waiting.message)
    return "not scheduled yet" if pod.spec.node_name is None else "its node prepares it"


def describe_pod_end(pod: V1Pod, is_asked_to_leave: bool = False) -> str | None:
    """Why it ended, or is being ended; None if nothing did that, or only the SIGTERM by which it was asked to leave."""
    where = f"pod {pod.metadata.name} on {pod.spec.node_name or 'no node'}"
    disruption = _condition(pod, "DisruptionTarget")
    if disruption is not None and is_taken_away(pod):
        means = DISRUPTIONS.get(disruption.reason)
        return f"{where} was taken away, {_join(disruption.reason, disruption.message)}{f' ({means})' if means else ''}"
    if pod.status.phase == "Failed" and pod.status.reason is not None:
        return f"{where} failed, {_join(pod.status.reason, pod.status.message)}"
    for status in pod.status.container_statuses or []:
        end = _describe_exit(status)
        if end is not None and not (is_asked_to_leave and status.state.terminated.exit_code == BY_SIGTERM):
            return f"{where} {end}"
    return None


def _describe_exit(status: V1ContainerStatus) -> str | None:
    ended = status.state.terminated
    if ended is None or ended.exit_code == 0:
        return None
    if ended.reason == OUT_OF_MEMORY:
        return f"was killed, {OUT_OF_MEMORY}: it needed more memory than its limit (cluster.kubernetes.memory_per_node)"
    return f"ended with exit code {ended.exit_code}, {_join(ended.reason, ended.message)}"


def _condition(pod: V1Pod, kind: str) -> V1PodCondition | None:
    return next((each for each in pod.status.conditions or [] if each.type == kind), None)


def _join(reason: str | None, message: str | None) -> str:
    return ": ".join(filter(None, [reason, message]))
