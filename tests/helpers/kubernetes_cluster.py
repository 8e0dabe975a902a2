"""A Kubernetes cluster for tests: an API server of its own, JobSet's controller, and nodes that run pods for real.

Invariant: a pod's process is the command of its container with the environment of its specification, and nothing of
this machine's but Python and the project, which stand for the image. None outlives the block. All nodes are this
machine, and each has room for one pod.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.cluster.processes import kill_tree
from tests.helpers.kubernetes_objects import Object, Objects
from tests.helpers.kubernetes_server import JOBSETS, NAMESPACE, PODS, TOKEN, serve, timestamp
from training.stopping import follow_parent

NODES = ("n1", "n2")
IMAGE = "registry.example/holdfast:tests"
ROOT = Path(__file__).parents[2]
STEP_SECONDS = 0.05
NAME_LABEL, UID_LABEL, INDEX_LABEL = (
    "jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-completion-index",
)  # fmt: skip
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: tests
contexts: [{{name: tests, context: {{cluster: tests, user: tests}}}}]
clusters: [{{name: tests, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: tests, user: {{token: {token}}}}}]
"""


@contextmanager
def running_kubernetes(folder: Path, nodes: tuple[str, ...] = NODES) -> Iterator["KubernetesCluster"]:
    """A cluster that lives as long as the block, on a port of its own."""
    folder.mkdir(parents=True)
    cluster = KubernetesCluster(folder, nodes)
    server = serve(cluster)
    cluster.kubeconfig.write_text(KUBECONFIG.format(port=server.server_port, token=TOKEN))
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)), threading.Thread(target=cluster.work)]
    for thread in threads:
        thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        cluster.is_over.set()
        for thread in threads:
            thread.join()
        server.server_close()


class KubernetesCluster:
    """What a test may change stands in the first attributes."""

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        self.objects = Objects()
        self.is_answering = self.has_jobset = True
        self.is_overloaded = self.loses_next_answer = False
        self.forbidden: set[str] = set()
        self.refusal: str | None = None
        self.token = TOKEN
        self.images = {IMAGE}
        self.secrets: dict[str, dict[str, str]] = {}
        self.nodes = set(nodes)
        self.folder, self.kubeconfig = folder, folder / "kubeconfig"
        self.is_over = threading.Event()
        self._lock = threading.RLock()
        self._containers: dict[str, Container] = {}
        self._jobs: dict[str, str] = {}  # the identity of each JobSet's job
        self._ended: dict[str, str] = {}  # the last phase of pods that are gone

    def list_jobsets(self) -> list[Object]:
        return self.objects.select(JOBSETS, {})[0]

    def list_pods(self) -> list[Object]:
        return self.objects.select(PODS, {})[0]

    def find_pod(self, node: str) -> Object:
        (pod,) = (pod for pod in self.list_pods() if pod["spec"].get("nodeName") == node)
        return pod

    def read_output(self, pod: Object) -> str:
        return self._output(pod).read_text()

    # What happens to pods, by whatever does it in a real cluster.

    def delete_pod(self, pod: Object, grace_seconds: float | None) -> None:
        """As the API does: with 0 it is gone at once, and its node kills what is left of it."""
        with self._lock:
            name = pod["metadata"]["name"]
            if grace_seconds == 0:
                self._ended[name] = pod["status"]["phase"]
                self.objects.remove(PODS, name)
                if name in self._containers:
                    self._containers.pop(name).kill()
                return
            current = self.objects.find(PODS, name)
            if current is not None and "deletionTimestamp" not in current["metadata"]:
                grace = grace_seconds or current["spec"]["terminationGracePeriodSeconds"]
                current["metadata"] |= {"deletionTimestamp": timestamp(), "deletionGracePeriodSeconds": grace}
                self.objects.update(PODS, current)

    def delete_jobset(self, name: str) -> None:
        """In the foreground: it is there until its pods are gone."""
        with self._lock:
            current = self.objects.find(JOBSETS, name)
            if current is not None:
                current["metadata"] |= {"deletionTimestamp": timestamp(), "finalizers": ["foregroundDeletion"]}
                self.objects.update(JOBSETS, current)

    def evict(self, pod: Object) -> None:
        """For somebody who drains the node."""
        self._disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
        self.delete_pod(pod, None)

    def preempt(self, pod: Object) -> None:
        """For a pod of higher priority."""
        self._disrupt(
            pod, "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"
        )
        self.delete_pod(pod, None)

    def run_out_of_memory(self, pod: Object) -> None:
        self._containers[pod["metadata"]["name"]].kill("OOMKilled")

    def lose_node(self, node: str, is_removed: bool = True) -> None:
        """A machine that dies. Its pods are collected when the node is removed; else nobody can say that they ended."""
        with self._lock:
            self.nodes.discard(node)
            pod = self.find_pod(node)
            self._containers.pop(pod["metadata"]["name"]).kill()
            if is_removed:
                self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists", phase="Failed")
                self.delete_pod(pod, 0)
            else:
                self._disrupt(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
                self.delete_pod(pod, None)

    def execute(self, pod: Object, command: list[str]) -> int:
        """In a container the first process has the number 1; here it has another, so no other command is taken."""
        container = self._containers.get(pod["metadata"]["name"])
        if container is None or command != ["sh", "-c", "kill -QUIT 1"]:
            return 1
        container.process.send_signal(signal.SIGQUIT)
        return 0

    def _disrupt(self, pod: Object, reason: str, message: str, **status: Any) -> None:
        with self._lock:
            current = self.objects.find(PODS, pod["metadata"]["name"])
            assert current is not None
            current["status"].update(status)
            _set_condition(current, "DisruptionTarget", "True", reason, message)
            self.objects.update(PODS, current)

    def suspend(self, jobset: Object) -> None:
        """As a queue does; its pods are deleted."""
        with self._lock:
            current = self.objects.find(JOBSETS, jobset["metadata"]["name"])
            assert current is not None
            current["spec"]["suspend"] = True
            current.pop("status", None)
            self.objects.update(JOBSETS, current)
            for pod in self.list_pods():
                self.delete_pod(pod, None)

    def resume(self, jobset: Object) -> None:
        """The same job goes on with new pods."""
        with self._lock:
            current = self.objects.find(JOBSETS, jobset["metadata"]["name"])
            assert current is not None
            del current["spec"]["suspend"]
            self.objects.update(JOBSETS, current)

    # What the controllers and the nodes do.

    def work(self) -> None:
        try:
            while not self.is_over.wait(STEP_SECONDS):
                with self._lock:
                    for pod in self.list_pods():
                        self._care_for(pod)
                    for jobset in self.list_jobsets():
                        self._control(jobset)
        finally:
            for container in self._containers.values():
                container.kill()

    def _control(self, jobset: Object) -> None:
        """JobSet's controller, and the one of its only job."""
        pods = self.objects.select(PODS, {NAME_LABEL: jobset["metadata"]["name"]})[0]
        if "deletionTimestamp" in jobset["metadata"]:
            for pod in pods:
                self.delete_pod(pod, None)
            if not pods:
                self.objects.remove(JOBSETS, jobset["metadata"]["name"])
        elif "status" not in jobset:
            if not jobset["spec"].get("suspend"):
                self._begin(jobset)
        elif not jobset["status"]["conditions"]:
            self._judge(jobset, pods)

    def _begin(self, jobset: Object) -> None:
        name, job = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"][0]
        uid, spec = self._jobs.setdefault(name, str(uuid.uuid4())), job["template"]["spec"]
        names = []
        for index in range(spec["completions"]):
            pod = _pod_of(f"{name}-{job['name']}-0", index, name, uid, spec["template"])
            names.append(pod["metadata"]["name"])
            self.objects.create(PODS, pod)
        self.objects.update(JOBSETS, jobset | {"status": {"conditions": [], "pods": names}})

    def _judge(self, jobset: Object, pods: list[Object]) -> None:
        """A pod that failed, or is gone without success, ends the others; the last of them ends the JobSet."""
        there = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods}
        phases = {name: there.get(name) or self._ended[name] for name in jobset["status"]["pods"]}
        job = f"{jobset['metadata']['name']}-{jobset['spec']['replicatedJobs'][0]['name']}-0"
        failed = [
            name for name, phase in phases.items() if phase != "Succeeded" and (phase == "Failed" or name not in there)
        ]
        if failed:
            for pod in pods:
                if pod["status"]["phase"] not in ("Succeeded", "Failed"):
                    self.delete_pod(pod, None)
            if not {"Pending", "Running"} & set(there.values()):
                said = f"jobset failed due to one or more job failures (first failed job: {job})"
                _set_condition(jobset, "Failed", "True", "FailedJobs", said)
        elif set(phases.values()) == {"Succeeded"}:
            _set_condition(jobset, "Completed", "True", "AllJobsCompleted", "jobset completed successfully")
        self.objects.update(JOBSETS, jobset)

    def _care_for(self, pod: Object) -> None:
        """The scheduler, and the kubelet of the pod's node."""
        name = pod["metadata"]["name"]
        container = self._containers.get(name)
        node = pod["spec"].get("nodeName")
        if node is not None and node not in self.nodes:
            return  # nobody is there to say anything of it
        if container is not None:
            self._follow(pod, container)
        elif "deletionTimestamp" in pod["metadata"]:
            self._ended[name] = pod["status"]["phase"]
            self.objects.remove(PODS, name)
            return
        elif node is None:
            self._schedule(pod)
        elif pod["status"]["phase"] == "Pending":
            self._start(pod)
        self.objects.update(PODS, pod)

    def _schedule(self, pod: Object) -> None:
        live = [each for each in self.list_pods() if each["status"]["phase"] in ("Pending", "Running")]
        free = sorted(self.nodes - {each["spec"].get("nodeName") for each in live})
        if free:
            pod["spec"]["nodeName"] = free[0]
            _set_condition(pod, "PodScheduled", "True")
        else:
            said = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient cpu."
            _set_condition(pod, "PodScheduled", "False", "Unschedulable", said)

    def _start(self, pod: Object) -> None:
        (container,) = pod["spec"]["containers"]
        wanted = [source["secretRef"]["name"] for source in container.get("envFrom", [])]
        missing = [secret for secret in wanted if secret not in self.secrets]
        if container["image"] not in self.images:
            said = f'Back-off pulling image "{container["image"]}"'
            pod["status"]["containerStatuses"] = [_waiting(container, "ImagePullBackOff", said)]
        elif missing:
            said = f'secret "{missing[0]}" not found'
            pod["status"]["containerStatuses"] = [_waiting(container, "CreateContainerConfigError", said)]
        else:
            environment = {key: value for secret in wanted for key, value in self.secrets[secret].items()}
            environment |= {entry["name"]: _value_of(entry, pod) for entry in container.get("env", [])}
            started = Container(container["command"], environment, self._output(pod))
            self._containers[pod["metadata"]["name"]] = started
            pod["status"] |= {"phase": "Running", "containerStatuses": [_state(container, "running", {})]}

    def _follow(self, pod: Object, container: "Container") -> None:
        name, (specification,) = pod["metadata"]["name"], pod["spec"]["containers"]
        code = container.process.poll()
        if code is None:
            if "deletionTimestamp" in pod["metadata"]:
                container.end(pod["metadata"]["deletionGracePeriodSeconds"])
            return
        del self._containers[name]
        code = 128 - code if code < 0 else code
        ended = {"exitCode": code, "reason": container.cause or ("Error" if code else "Completed")}
        status = {"phase": "Failed" if code else "Succeeded"}
        pod["status"] |= status | {"containerStatuses": [_state(specification, "terminated", ended)]}

    def _output(self, pod: Object) -> Path:
        return self.folder / f"{pod['metadata']['name']}.log"


class Container:
    """A container's process."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        image = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "PYTHONPATH": str(ROOT), "HOME": "/tmp"}
        with output.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=image | environment, cwd=output.parent, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=follow_parent,
            )  # fmt: skip
        self.cause: str | None = None
        self._deadline: float | None = None

    def end(self, grace_seconds: float) -> None:
        """SIGTERM the first time, SIGKILL when the grace is over."""
        if self._deadline is None:
            self._deadline = time.monotonic() + grace_seconds
            self.process.send_signal(signal.SIGTERM)
        elif time.monotonic() > self._deadline:
            self.kill()

    def kill(self, cause: str | None = None) -> None:
        """SIGKILL to all that is in it."""
        self.cause = cause
        kill_tree(self.process.pid)


def _pod_of(job: str, index: int, jobset: str, uid: str, template: Object) -> Object:
    """As the job's controller makes it of its template."""
    labels = {NAME_LABEL: jobset, UID_LABEL: uid, INDEX_LABEL: str(index)}
    (container,) = template["spec"]["containers"]
    own = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX_LABEL}']"}}
    container = container | {"env": [*container["env"], {"name": "JOB_COMPLETION_INDEX", "valueFrom": own}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{index}-{secrets.token_hex(3)[:5]}",
            "namespace": NAMESPACE,
            "uid": str(uuid.uuid4()),
            "labels": template["metadata"]["labels"] | labels,
        },
        "spec": template["spec"] | {"containers": [container], "hostname": f"{job}-{index}", "subdomain": jobset},
        "status": {"phase": "Pending", "conditions": []},
    }


def _value_of(entry: Object, pod: Object) -> str:
    """Of an environment variable, or of a field of the pod that it refers to."""
    if "value" in entry:
        return str(entry["value"])
    path: str = entry["valueFrom"]["fieldRef"]["fieldPath"]
    if path.startswith("metadata.labels['"):
        return str(pod["metadata"]["labels"][path.removeprefix("metadata.labels['").removesuffix("']")])
    return {"spec.nodeName": str(pod["spec"]["nodeName"]), "metadata.name": str(pod["metadata"]["name"])}[path]


def _set_condition(subject: Object, kind: str, status: str, reason: str = "", message: str = "") -> None:
    conditions = [each for each in subject["status"]["conditions"] if each["type"] != kind]
    same = [each for each in subject["status"]["conditions"] if each["type"] == kind and each["status"] == status]
    when = same[0]["lastTransitionTime"] if same else timestamp()
    new = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": when}
    subject["status"]["conditions"] = [*conditions, new]


def _waiting(container: Object, reason: str, message: str) -> Object:
    return _state(container, "waiting", {"reason": reason, "message": message})


def _state(container: Object, state: str, said: Object) -> Object:
    return {
        "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
        "ready": state == "running", "state": {state: said},
    }  # fmt: skip
