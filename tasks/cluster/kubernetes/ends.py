"""Why the pods of a job ended, watched while it happens: a pod that was evicted is soon gone, with its status.

Invariant: what is watched is only reported; whether a job is over is asked for.
"""

import threading

from kubernetes import watch

from storage.errors import ClusterUnavailableError, ConfigurationError
from tasks.cluster.kubernetes.api import KubernetesApi
from tasks.cluster.kubernetes.words import describe_pod_end, is_taken_away

RETRY_SECONDS = 2.0


class PodEnds:
    """Listens in a thread, from `start` to `stop`."""

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._api, self._name = api, name
        self._ends: dict[str, str] = {}
        self.is_any_taken_away = False
        self.is_asked_to_leave = False
        self._watcher = watch.Watch()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="kubernetes-pods")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._watcher.stop()

    def read(self) -> list[str]:
        """One sentence for each pod that did not end by itself in good order, in the order of their ends."""
        return list(self._ends.values())

    def _listen(self) -> None:
        while not self._is_over.is_set():
            try:
                for pod in self._api.watch_pods(self._name, self._watcher):
                    self.is_any_taken_away |= is_taken_away(pod)
                    if (end := describe_pod_end(pod, self.is_asked_to_leave)) is not None:
                        # The first cause is the one: a pod that is taken away may have an exit code later.
                        self._ends.setdefault(pod.metadata.name, end)
            except (ClusterUnavailableError, ConfigurationError):  # asking about the job reports it
                self._is_over.wait(RETRY_SECONDS)  # it may be back then
