"""A cluster's API server, as far as JobSets and their pods go, through the official client.

Invariant: a server that does not answer is no evidence about a job; only an answer ends one. Nor does one that does not
know who asks: tokens run out while ranks train, and it is asked again with what the kubeconfig file has by then.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kubernetes import client, config, stream, watch
from kubernetes.client import ApiException, V1Pod
from urllib3.exceptions import HTTPError, SSLError
from yaml import YAMLError

from storage.errors import ClusterLoginError, ClusterUnavailableError, ConfigurationError
from tasks.cluster.kubernetes.jobset import API_VERSION, CONTAINER, NAME_LABEL
from tasks.configuration.cluster import KubernetesConfig

# To connect, and until the next bytes of an answer.
PATIENCE_SECONDS = (5.0, 30.0)
WATCH_SECONDS = 60
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, MISSING, CONFLICT, GONE, INVALID = 400, 401, 403, 404, 409, 410, 422
KUBECONFIG, IN_CLUSTER = "KUBECONFIG", "KUBERNETES_SERVICE_HOST"


class KubernetesApi:
    """Of one namespace. Every call may raise `ClusterUnavailableError` and `ConfigurationError`."""

    def __init__(self, own: KubernetesConfig) -> None:
        self._namespace, self._context = own.namespace, own.context
        self._log_in()

    def _log_in(self) -> None:
        self._client = client.ApiClient(_read_credentials(self._context))
        self._pods = client.CoreV1Api(self._client)
        self._objects = client.CustomObjectsApi(self._client)
        self._is_known = True

    def create(self, jobset: dict[str, Any], is_trial: bool = False) -> None:
        """One that is there already is left as it is. A trial is judged by the server, and nothing is created.

        In a trial a person waits for the answer: `ConfigurationError` if the server does not know who this is.
        """
        trial = {"dry_run": "All"} if is_trial else {}
        with self._asked_to("create a JobSet", is_there_fine=True, is_trial=is_trial):
            self._objects.create_namespaced_custom_object(
                **self._jobsets(), body=jobset, _request_timeout=PATIENCE_SECONDS, **trial
            )

    def find(self, name: str) -> dict[str, Any] | None:
        """The JobSet, as the server has it."""
        found: dict[str, Any] | None = None
        with self._asked_to("read a JobSet", is_missing_fine=True):
            found = self._objects.get_namespaced_custom_object(
                **self._jobsets(), name=name, _request_timeout=PATIENCE_SECONDS
            )
        return found

    def list_pods(self, name: str) -> list[V1Pod]:
        """Of a JobSet."""
        with self._asked_to("list pods"):
            listed = self._pods.list_namespaced_pod(**self._pods_of(name), _request_timeout=PATIENCE_SECONDS)
        return list(listed.items)

    def watch_pods(self, name: str, watcher: watch.Watch) -> Iterator[V1Pod]:
        """All of them, and each again when it changes, for a minute or until the server has forgotten what came since.

        `watcher.stop()`, in another thread, ends it before.
        """
        with self._asked_to("watch pods", is_gone_fine=True):
            listed = self._pods.list_namespaced_pod(**self._pods_of(name), _request_timeout=PATIENCE_SECONDS)
            yield from listed.items
            events = watcher.stream(
                self._pods.list_namespaced_pod,
                **self._pods_of(name),
                resource_version=listed.metadata.resource_version,
                timeout_seconds=WATCH_SECONDS,
                _request_timeout=(PATIENCE_SECONDS[0], 2 * WATCH_SECONDS),
            )
            yield from (event["object"] for event in events)

    def delete(self, name: str) -> None:
        """The JobSet with its pods, each of which has its own time to leave; it is there until they are gone."""
        with self._asked_to("delete a JobSet", is_missing_fine=True):
            self._objects.delete_namespaced_custom_object(
                **self._jobsets(), name=name, propagation_policy="Foreground", _request_timeout=PATIENCE_SECONDS
            )

    def kill_pods(self, name: str) -> None:
        """Delete the pods of a JobSet at once; one whose node is lost would never be deleted otherwise."""
        with self._asked_to("delete pods"):
            self._pods.delete_collection_namespaced_pod(
                **self._pods_of(name), grace_period_seconds=0, _request_timeout=PATIENCE_SECONDS
            )

    def quit(self, pod: V1Pod) -> None:
        """SIGQUIT to the first process of the pod's container. The shell has a `kill` where the image has none.

        Through a client of its own: while it talks over a WebSocket it does so with all calls, of other threads too.
        """
        own_client = client.CoreV1Api(client.ApiClient(self._client.configuration))
        with self._asked_to("execute a command in a pod", is_missing_fine=True):
            stream.stream(
                own_client.connect_get_namespaced_pod_exec,
                pod.metadata.name,
                self._namespace,
                container=CONTAINER,
                command=["sh", "-c", "kill -QUIT 1"],
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                _request_timeout=PATIENCE_SECONDS[1],
            )

    def _jobsets(self) -> dict[str, str]:
        group, version = API_VERSION.split("/")
        return {"group": group, "version": version, "namespace": self._namespace, "plural": "jobsets"}

    def _pods_of(self, name: str) -> dict[str, str]:
        return {"namespace": self._namespace, "label_selector": f"{NAME_LABEL}={name}"}

    @contextmanager
    def _asked_to(
        self,
        what: str,
        is_missing_fine: bool = False,
        is_there_fine: bool = False,
        is_gone_fine: bool = False,
        is_trial: bool = False,
    ) -> Iterator[None]:
        fine = {MISSING: is_missing_fine, CONFLICT: is_there_fine, GONE: is_gone_fine}
        if not self._is_known:
            with suppress(ConfigurationError):  # a file that is being written: the next time
                self._log_in()
        try:
            yield
        except ApiException as error:
            self._is_known = error.status != UNAUTHORIZED
            if not (fine.get(error.status) and _is_about_the_object(error)):
                raise self._explain(what, error, is_trial) from error
        except (HTTPError, OSError) as error:
            host = self._client.configuration.host
            if isinstance(getattr(error, "reason", None), SSLError):
                raise ConfigurationError(
                    f"There is no secure connection to the Kubernetes server {host}: {error}. Correct its address or "
                    "its certificate in the kubeconfig file."
                ) from error
            raise ClusterUnavailableError(f"The Kubernetes server {host} does not answer: {error}") from error

    def _explain(self, what: str, error: ApiException, is_trial: bool) -> Exception:
        message, host = _message_of(error), self._client.configuration.host
        if error.status == UNAUTHORIZED:
            return (ConfigurationError if is_trial else ClusterLoginError)(
                f"The Kubernetes server {host} does not know who this is ({message}). Log in anew, or correct "
                "cluster.kubernetes.context or the kubeconfig file."
            )
        if error.status == FORBIDDEN:
            return ConfigurationError(f"Kubernetes does not permit this user to {what}: {message}.")
        if error.status == MISSING and _details_of(error).get("kind") == "namespaces":
            return ConfigurationError(
                f"The Kubernetes server {host} has no namespace {self._namespace!r}. Create it, or correct "
                "cluster.kubernetes.namespace."
            )
        if error.status == MISSING:
            return ConfigurationError(
                f"The Kubernetes server {host} does not know JobSets ({API_VERSION}): install JobSet in the cluster, "
                "https://jobset.sigs.k8s.io, or choose another context with cluster.kubernetes.context."
            )
        if error.status in (BAD_REQUEST, CONFLICT, INVALID):
            return ConfigurationError(f"Kubernetes refused to {what}: {message}")
        return ClusterUnavailableError(f"The Kubernetes server {host} cannot {what} now: {error.status}, {message}")


def _read_credentials(context: str | None) -> client.Configuration:
    """From the kubeconfig file; without one, within a pod, from its service account."""
    found = client.Configuration()
    found.retries = 0  # the caller tries again, and logs it
    try:
        if context is None and IN_CLUSTER in os.environ and not _has_kubeconfig():
            config.load_incluster_config(client_configuration=found)
        else:
            # Named, since the client keeps the variable as it was when it was loaded.
            file = os.environ.get(KUBECONFIG)
            config.load_kube_config(config_file=file, context=context, client_configuration=found)
    except (config.ConfigException, YAMLError, OSError) as error:
        message = " ".join(str(error).split())  # the message about a broken file has several lines
        raise ConfigurationError(
            f"cluster.kind = 'kubernetes', but there are no usable credentials for a cluster: {message}. Set "
            "KUBECONFIG to a kubeconfig file, and cluster.kubernetes.context to one of its contexts where it has "
            "several."
        ) from error
    return found


def _has_kubeconfig() -> bool:
    """As the client looks for it."""
    paths = os.environ.get(KUBECONFIG, "~/.kube/config").split(os.pathsep)
    return any(Path(path).expanduser().exists() for path in paths)


def _is_about_the_object(error: ApiException) -> bool:
    """A server that knows no JobSets, or no such namespace, answers 404 too."""
    return error.status != MISSING or ("name" in _details_of(error) and _details_of(error).get("kind") != "namespaces")


def _status_of(error: ApiException) -> dict[str, Any]:
    with suppress(TypeError, ValueError):
        status = json.loads(error.body)
        return status if isinstance(status, dict) else {}
    return {}


def _details_of(error: ApiException) -> dict[str, Any]:
    details: dict[str, Any] = _status_of(error).get("details") or {}
    return details


def _message_of(error: ApiException) -> str:
    return str(_status_of(error).get("message") or error.body or error.reason).strip()
