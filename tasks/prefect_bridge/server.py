"""Calls to Prefect's server, which wait for its answer where events do not.

Invariant: a server that is away is no error. A call gives up after seconds, and what it was to send is kept and sent
before the flow ends; so is what Prefect's own client for events still holds.
"""

import hashlib
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from uuid import UUID

import certifi
import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey
from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_SSL_CERT_FILE, PREFECT_API_TLS_INSECURE_SKIP_VERIFY, PREFECT_API_URL

from tasks.console.announce import announce, warn
from tasks.prefect_bridge.private.client_settings import without_retries

CALL_SECONDS = 5.0
POLL_SECONDS = 1.0
# Longer than a server is away that is updated, or whose machine starts again.
PATIENCE_SECONDS = 900.0
MAX_KEPT = 100
FLOW_ENDS = "holdfast.flow-ends"

_unsent: deque[ArtifactCreate] = deque(maxlen=MAX_KEPT)


def show(name: str, markdown: str) -> None:
    """Put an artifact beside the step that is running; later, if the server does not answer just now."""
    flow, task = FlowRunContext.get(), TaskRunContext.get()
    if flow is None or flow.flow_run is None:
        return  # it could not be found
    _unsent.append(
        ArtifactCreate(
            key=artifact_key(name),
            type="markdown",
            data=markdown,
            flow_run_id=flow.flow_run.id,
            task_run_id=task.task_run.id if task is not None else None,
        )
    )
    error = _send()
    if error is not None:
        warn(f"Prefect's server does not answer; an artifact is sent when this flow ends: {error}")


def show_if_new(name: str, markdown: str) -> None:
    """As `show`, unless the newest artifact of this name on the server shows the same."""
    if FlowRunContext.get() is not None and not _is_shown(artifact_key(name), markdown):
        show(name, markdown)


def _is_shown(key: str, markdown: str) -> bool:
    of_this_key = ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(any_=[key]))
    try:
        with impatient_client() as client:
            newest = client.read_latest_artifacts(artifact_filter=of_this_key)
    except (httpx.HTTPError, PrefectException):
        return False
    return any(artifact.data == markdown for artifact in newest)


class LiveArtifact:
    """An artifact of the flow run that is running: made once, and changed from then on. Kinds are Prefect's."""

    def __init__(self, name: str, kind: str) -> None:
        self._key = artifact_key(name)
        self._kind = kind
        self._id: UUID | None = None

    def update(self, data: str | float, description: str | None = None) -> None:
        """Replace its content. Nothing is sent to a server that does not answer; the next update makes up for it."""
        flow = FlowRunContext.get()
        if flow is None or flow.flow_run is None or PREFECT_API_URL.value() is None:
            return
        try:
            with impatient_client() as client:
                if self._id is not None:
                    client.update_artifact(self._id, ArtifactUpdate(data=data, description=description))
                    return
                whose = ArtifactCreate(
                    key=self._key, type=self._kind, data=data, description=description, flow_run_id=flow.flow_run.id
                )
                self._id = client.create_artifact(whose).id
        except (httpx.HTTPError, PrefectException):
            return


def artifact_key(name: str) -> str:
    """Prefect's keys are lower case, digits and dashes; a name that had to be changed gets a part of its own hash."""
    key = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name.lower())
    return key if key == name else f"{key}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def send_all(why: str = "", patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the server answers, at most so long, and send what is still unsent.

    To be called as a flow ends: the engine then sends how it ended. `why` is logged before the wait.
    """
    if PREFECT_API_URL.value() is None:
        return
    deadline = time.monotonic() + patience_seconds
    if not _answers():
        announce(
            f"{why} Prefect's server does not answer. Waiting for it up to {patience_seconds:.0f} s, to tell it how "
            "this flow run ended. What was trained is safe in the store.".lstrip()
        )
    # One that has just started may answer, and yet refuse or time out for a while.
    while not _answers() or _send() is not None:
        if time.monotonic() > deadline:
            warn("Prefect's server did not come back. What was trained is safe; the flow run may be shown wrongly.")
            return
        time.sleep(POLL_SECONDS)  # nothing signals that a server is back: it is asked
    # Prefect's client for events connects again when it has one to send, and first sends those it still holds.
    emit_event(event=FLOW_ENDS, resource={"prefect.resource.id": "holdfast.flow-run"})


def _send() -> httpx.HTTPError | None:
    """Send what is unsent; why the server cannot take it now, if so. What it will never take is given up."""
    with impatient_client() as client:
        while _unsent:
            try:
                client.create_artifact(_unsent[0])
            except httpx.HTTPError as error:
                if not (isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error):
                    return error
                warn(f"Prefect's server refused an artifact: {error}")
            _unsent.popleft()
    return None


def _answers() -> bool:
    with impatient_client() as client:
        return client.api_healthcheck() is None


@contextmanager
def impatient_client() -> Iterator[SyncPrefectClient]:
    """A client of Prefect's that gives up at once; its own retries take a minute."""
    settings = {"timeout": CALL_SECONDS, "verify": _trusted_certificates()}
    with without_retries(), get_client(httpx_settings=settings, sync_client=True) as client:
        yield client


def _trusted_certificates() -> ssl.SSLContext:
    """What Prefect's clients verify a server's certificate with, by Prefect's settings.

    Each client reads the file by itself if it is not given this, also for a server without TLS. A flow run that waits
    for its ranks makes one every few seconds.
    """
    if PREFECT_API_TLS_INSECURE_SKIP_VERIFY.value():
        return _trusting_anybody()
    file = Path(PREFECT_API_SSL_CERT_FILE.value() or certifi.where())
    return _read_certificates(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read_certificates(file: Path, _changed_at_ns: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


@lru_cache(maxsize=1)
def _trusting_anybody() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
