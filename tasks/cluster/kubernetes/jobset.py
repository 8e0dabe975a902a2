"""A segment as a JobSet (jobset.x-k8s.io/v1alpha2): one pod on each node, each of which runs `cluster/node.py`.

Invariant: nothing of a JobSet is ever started a second time: its fence is used up, and the next segment is a new one.
And its pods ask for no right that the Pod Security standard "restricted" forbids.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.objects.digests import sha256_of_bytes
from storage.objects.store import Store
from tasks.cluster.node_identity import POD_HOST, POD_JOB, POD_NODES
from tasks.cluster.orders import JobOrder
from tasks.configuration.cluster import ClusterConfig
from training.configuration import TrainConfig

API_VERSION = "jobset.x-k8s.io/v1alpha2"
# Of the only replicated job, of the container in its pods, and of their volumes.
JOB, CONTAINER, SCRATCH, SHARED_MEMORY = "nodes", "ranks", "scratch", "shared-memory"
# JobSet puts it on all of its pods.
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
UID_LABEL = "batch.kubernetes.io/controller-uid"
# A DNS label has 63 characters, and JobSet refuses a name that leaves too few of them for its pods' names.
LONGEST_NAME = 63 - len(f"-{JOB}-0-9999-abcde")
# After the ranks have ended: for what a node still has to write to the store.
LAST_WORDS_SECONDS = 10
KEPT_SECONDS = 3600
# Requested where cluster.kubernetes.memory_per_node says nothing; nothing is limited then.
GIBIBYTES_A_RANK = 2


def jobset_name(store: Store, run: str, fence: int) -> str:
    """Of the JobSet for a lease; two stores may have a run of the same name, and two runs names alike."""
    prefix, digest = "holdfast", sha256_of_bytes(f"{store.address}\n{run}".encode())[:8]
    room = LONGEST_NAME - len(f"{prefix}--{fence:08d}-{digest}")
    readable = re.sub(r"[^a-z0-9]+", "-", run.lower())[:room].strip("-")
    return "-".join(filter(None, [prefix, readable, f"{fence:08d}", digest]))


def jobset_of(order: JobOrder, name: str) -> dict[str, Any]:
    """The JobSet for an order."""
    spec = order.segment
    command = ["python", "-u", "-m", "tasks.cluster.node", spec.store, spec.run, str(spec.fence)]
    command += ["--cache", spec.cache] if spec.cache is not None else []
    labels = {"holdfast/run": _label_value(spec.run), "holdfast/fence": str(spec.fence)}
    pod = _pod(order.cluster, spec.train, order.grace_seconds, name, command, _scratch_root(order))
    return _jobset(order.cluster, name, labels, pod)


def jobset_to_try(cluster: ClusterConfig, train: TrainConfig, grace_seconds: float) -> dict[str, Any]:
    """What any JobSet of this configuration is like, by which a server decides whether it would take it."""
    name, command = "h" * LONGEST_NAME, ["python", "-u", "-m", "tasks.cluster.node"]
    return _jobset(cluster, name, {}, _pod(cluster, train, grace_seconds, name, command, "/tmp"))


def _jobset(cluster: ClusterConfig, name: str, labels: Mapping[str, str], pod: dict[str, Any]) -> dict[str, Any]:
    own = cluster.kubernetes
    labels = {"app.kubernetes.io/name": "holdfast", **labels, **own.labels}
    job = {
        "completionMode": "Indexed",
        "completions": cluster.nodes,
        "parallelism": cluster.nodes,
        "backoffLimit": 0,
        "template": merge({"metadata": {"labels": labels}, "spec": pod}, own.pod),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": own.namespace, "labels": labels},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": KEPT_SECONDS,  # so that its pods can be looked at
            "replicatedJobs": [{"name": JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pod(
    cluster: ClusterConfig, train: TrainConfig, grace_seconds: float, name: str, command: Sequence[str], scratch: str
) -> dict[str, Any]:
    own = cluster.kubernetes
    return {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": math.ceil(grace_seconds) + LAST_WORDS_SECONDS,
        "enableServiceLinks": False,  # or variables for every service of the namespace, which are not read here
        "topologySpreadConstraints": [_one_on_each_host(name)],
        "containers": [_container(cluster, train, command, scratch)],
        "volumes": [
            {"name": SCRATCH, **own.scratch_volume},
            {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", **_given(sizeLimit=own.shared_memory)}},
        ],
        **_given(serviceAccountName=own.service_account),
    }


def _container(cluster: ClusterConfig, train: TrainConfig, command: Sequence[str], scratch: str) -> dict[str, Any]:
    own = cluster.kubernetes
    return {
        "name": CONTAINER,
        "image": own.image,
        "command": list(command),
        "env": [
            {"name": POD_HOST, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": POD_JOB, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{UID_LABEL}']"}}},
            {"name": POD_NODES, "value": str(cluster.nodes)},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": _resources(cluster, train),
        "volumeMounts": [
            {"name": SCRATCH, "mountPath": scratch},
            {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},
        ],
        **_given(envFrom=[{"secretRef": {"name": secret}} for secret in own.secrets] or None),
    }


def _resources(cluster: ClusterConfig, train: TrainConfig) -> dict[str, Any]:
    """No limit of processors: a pod that has one is halted whenever it is beyond it for a moment.

    Memory is requested always: a pod that asks for none is put where there is none, and is the first to be evicted.
    """
    gpus = None if cluster.gpus_per_node is None else str(cluster.gpus_per_node)
    limits = _given(memory=cluster.kubernetes.memory_per_node) | _given(**{"nvidia.com/gpu": gpus})
    requests = {"cpu": str(cluster.num_cpus(train)), "memory": f"{train.ranks * GIBIBYTES_A_RANK}Gi"}
    return {"requests": requests | limits, "limits": limits}


def _one_on_each_host(name: str) -> dict[str, Any]:
    """As even as hosts permit: two pods share one only where there are fewer hosts than pods."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {NAME_LABEL: name}},
    }


def merge(base: Any, overlay: Any) -> Any:
    """`overlay` on top: tables are merged, in lists the entries of one name; all else is replaced."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        return base | {key: merge(base[key], value) if key in base else value for key, value in overlay.items()}
    if _has_names(base) and _has_names(overlay):
        named = {entry["name"]: entry for entry in base}
        return list(merge(named, {entry["name"]: entry for entry in overlay}).values())
    return overlay


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and "name" in entry for entry in value)


def _scratch_root(order: JobOrder) -> str:
    """Where the volume for scratch goes: a private folder must be made by its user, so the volume is what is above."""
    if order.private_folder is not None:
        return str(Path(order.private_folder).parent)
    return str(Path(order.segment.scratch).parents[2])  # SCRATCH/runs/RUN/FENCE


def _label_value(run: str) -> str:
    """A label takes 63 characters, and letters or digits at its ends."""
    return run[:63].strip("-_.")


def _given(**values: Any) -> dict[str, Any]:
    """Those that are not None: an API server does not take null for "not set" everywhere."""
    return {name: value for name, value in values.items() if value is not None}
