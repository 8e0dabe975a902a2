"""A segment as one JobSet of a Kubernetes cluster: each pod is `cluster/node.py`, all else goes through the store.

Invariant: a JobSet's name is made of the lease it works for, so the holder of that lease finds the JobSet that was
created for it, also where the answer was lost; only one of a name can be created; and one that a queue suspends after
its pods have run is over for us: its fence is used.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from kubernetes.client import V1Pod

from storage.errors import ClusterLoginError, ClusterUnavailableError, ConfigurationError, ObjectMissingError
from storage.objects.store import Store
from tasks.cluster.kubernetes.api import KubernetesApi
from tasks.cluster.kubernetes.ends import PodEnds
from tasks.cluster.kubernetes.jobset import jobset_of, jobset_to_try
from tasks.cluster.kubernetes.words import describe_pod_end, describe_pod_wait, is_live, is_taken_away
from tasks.cluster.orders import JobOrder, load_order, write_order
from tasks.cluster.ranks import STACKS_SECONDS
from tasks.cluster.relay import RELAY_SECONDS
from tasks.cluster.relayed import Relayed
from tasks.configuration.cluster import ClusterConfig
from tasks.console.announce import warn
from training.configuration import TrainConfig
from training.metrics.reporter import Report
from training.rank_status import RankStatus

ASK_SECONDS = 2.0
CREATING_SECONDS = 120.0
# Beyond the time that the ranks have, for what Kubernetes itself does to end a pod.
ENDING_SECONDS = 60.0
FINISHED = ("Completed", "Failed")


class KubernetesJob:
    """A `Job`, found by its name in the namespace of its order; without one in the store nothing was ever created."""

    def __init__(
        self, name: str, store: Store, run: str, fence: int, grace_seconds: float, order: JobOrder | None = None
    ) -> None:
        self._name, self._store, self._run, self._fence = name, store, run, fence
        self._grace_seconds = grace_seconds
        self._order = order
        self._api: KubernetesApi | None = None
        self._ends: PodEnds | None = None
        self._jobset: dict[str, Any] | None = None
        self._last_jobset: dict[str, Any] = {}
        self._pods: list[V1Pod] = []
        self._relayed = Relayed(store, run, fence)
        self._asked_at = 0.0
        self._stop_deadline: float | None = None
        self._is_asked_to_leave = self._is_left = self._has_begun = self._was_put_back = False
        self._ends_before_kill: list[str] | None = None
        self._refusal: ConfigurationError | ClusterLoginError | None = None

    def find(self) -> bool:
        """Whether the cluster has such a JobSet, or pods of it. Raises `ClusterUnavailableError`."""
        try:
            order = self._order or load_order(self._store, self._run, self._fence)
        except ObjectMissingError:
            return False
        self._api = self._api or KubernetesApi(order.cluster.kubernetes)
        self._look(self._api)
        return self._jobset is not None or self._is_any_live

    def __enter__(self) -> Self:
        deadline = time.monotonic() + CREATING_SECONDS
        while True:
            try:
                if not self.find():
                    self._create()
                break
            except ClusterUnavailableError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(ASK_SECONDS)  # the server may be starting; it may have created the JobSet, too
        self._ends = PodEnds(self._found_api, self._name)
        self._ends.start()
        return self

    def _create(self) -> None:
        assert self._order is not None
        write_order(self._store, self._order)
        jobset = jobset_of(self._order, self._name)
        self._found_api.create(jobset)
        self._jobset = self._last_jobset = jobset

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._is_left:
                return
            self.stop()
            while self.is_running(ASK_SECONDS):
                pass
        finally:
            if self._ends is not None:
                self._ends.stop()

    def is_running(self, wait_seconds: float) -> bool:
        """As every job's. Raises `ClusterUnavailableError` if the pods do not end though they were killed."""
        time.sleep(wait_seconds)  # ends of pods are reported as they come, not waited for
        if time.monotonic() - self._asked_at >= ASK_SECONDS:
            with self._asked_again_later():
                self._look(self._found_api)
                self._refusal = None
        if self._is_over:
            return False
        # Other nodes do not learn of a pod that is taken away, and would wait for it; one of a lost node never ends.
        if self._has_finished or self._was_put_back or self._is_any_taken_away:
            self.stop()
        if self._stop_deadline is not None:
            self._see_to_its_end(time.monotonic() - self._stop_deadline)
        return True

    def _see_to_its_end(self, late_seconds: float) -> None:
        with self._asked_again_later():
            if late_seconds >= 0:
                self._kill()
            elif not self._has_finished:
                self._ask_to_leave()
        if late_seconds > ENDING_SECONDS:
            if self._refusal is not None:
                raise self._refusal
            raise ClusterUnavailableError(
                f"JobSet {self._name} was deleted and its pods did not end within {ENDING_SECONDS:.0f} s. Look at them "
                f"with `kubectl get pods --selector=jobset.sigs.k8s.io/jobset-name={self._name}`; when they are gone, "
                "run this again."
            )

    @contextmanager
    def _asked_again_later(self) -> Iterator[None]:
        """A server that does not answer is asked again, and so is one that refuses, of which people are told once.

        The pods train on meanwhile: what this user may do was found when the JobSet was created.
        """
        try:
            yield
        except (ConfigurationError, ClusterLoginError) as refusal:
            if self._refusal is None:
                warn(f"{refusal} The pods of JobSet {self._name} go on, and the server is asked again.")
            self._refusal = refusal
        except ClusterUnavailableError:
            return

    def _ask_to_leave(self) -> None:
        if not self._is_asked_to_leave:
            if self._ends is not None:
                self._ends.is_asked_to_leave = True  # before: a pod may end at once, by the SIGTERM that follows
            self._found_api.delete(self._name)
            self._is_asked_to_leave = True

    def _kill(self) -> None:
        """The JobSet first, so that no controller replaces its pods."""
        if self._ends_before_kill is None:
            ends = self._read_ends()
            if not self._has_finished:
                self._found_api.delete(self._name)
            self._found_api.kill_pods(self._name)
            self._ends_before_kill = ends

    def read_reports(self) -> list[Report]:
        return self._relayed.read_reports(is_last=self._is_over)

    def read_rank_statuses(self) -> list[RankStatus]:
        return self._relayed.read_rank_statuses()

    def describe_wait(self) -> str | None:
        """Until the last pod was started: ranks begin when all nodes have come."""
        if self._is_over or self._has_finished:
            return None
        if self._is_suspended:
            return f"JobSet {self._name} is suspended, as a queue such as Kueue does while there is no room"
        if not self._pods:
            return f"JobSet {self._name} has no pods yet"
        waits = {pod.metadata.name: describe_pod_wait(pod) for pod in self._pods}
        waiting = {pod: why for pod, why in waits.items() if why is not None}
        if not waiting:
            return None
        pod, why = min(waiting.items())
        return f"{len(waiting)} of {len(self._pods)} pods of JobSet {self._name} wait, {pod}: {why}"

    def describe_growth(self) -> str | None:
        return None  # a JobSet has all its pods, or none

    def stop(self) -> None:
        """The thread that waits for the job asks Kubernetes: this may be another thread's request to stop."""
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + self._grace_seconds

    def write_stacks(self) -> None:
        """By SIGQUIT in the pods, which put them into the store. Not every user may execute anything there."""
        with suppress(ClusterUnavailableError, ConfigurationError):
            for pod in self._pods:
                if is_live(pod):
                    self._found_api.quit(pod)
            time.sleep(STACKS_SECONDS + 2 * RELAY_SECONDS)  # nothing signals that the last node is done

    def kill(self) -> None:
        """End the ranks as `stop` does, without time to leave."""
        self._stop_deadline = time.monotonic()

    def leave(self) -> None:
        self._is_left = True

    def describe_end(self) -> str | None:
        ends = self._read_ends() if self._ends_before_kill is None else self._ends_before_kill
        if ends:
            return f"Kubernetes reports: {'; '.join(ends)}"
        if self._was_put_back:
            return f"JobSet {self._name} was suspended: its queue gave the nodes to another job"
        failed = _condition(self._last_jobset, "Failed")
        if failed is not None:
            return f"Kubernetes reports of JobSet {self._name}: {failed['reason']}, {failed['message']}"
        if self._jobset is None and not self._is_asked_to_leave:
            return f"JobSet {self._name} was deleted"
        return None

    def read_log(self) -> str:
        return self._relayed.read_log()

    def _look(self, api: KubernetesApi) -> None:
        self._asked_at = time.monotonic()
        jobset, pods = api.find(self._name), api.list_pods(self._name)
        self._jobset, self._pods = jobset, pods
        self._last_jobset = jobset or self._last_jobset
        self._has_begun |= any(pod.status.phase == "Running" for pod in pods)
        self._was_put_back |= self._has_begun and self._is_suspended

    def _read_ends(self) -> list[str]:
        """Statuses of pods, each once, in the order in which they came."""
        heard = self._ends.read() if self._ends is not None else []
        seen = [describe_pod_end(pod, self._is_asked_to_leave) for pod in self._pods]
        return list(dict.fromkeys([*heard, *filter(None, seen)]))

    @property
    def _found_api(self) -> KubernetesApi:
        assert self._api is not None, "the job was neither found nor created"
        return self._api

    @property
    def _has_finished(self) -> bool:
        return self._jobset is None or any(_condition(self._jobset, each) is not None for each in FINISHED)

    @property
    def _is_suspended(self) -> bool:
        return bool(self._last_jobset["spec"].get("suspend")) if self._last_jobset else False

    @property
    def _is_any_taken_away(self) -> bool:
        return (self._ends is not None and self._ends.is_any_taken_away) or any(map(is_taken_away, self._pods))

    @property
    def _is_any_live(self) -> bool:
        return any(map(is_live, self._pods))

    @property
    def _is_over(self) -> bool:
        return self._has_finished and not self._is_any_live


def require_acceptable_jobset(cluster: ClusterConfig, train: TrainConfig, grace_seconds: float) -> None:
    """Raise `ConfigurationError` if the cluster would refuse such JobSets, or is not there. Nothing is created."""
    KubernetesApi(cluster.kubernetes).create(jobset_to_try(cluster, train, grace_seconds), is_trial=True)


def _condition(jobset: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions = jobset.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind and each["status"] == "True"), None)
