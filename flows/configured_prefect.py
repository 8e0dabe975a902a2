"""The Prefect server that the user has configured, in the environment or in a profile of Prefect's.

Invariant: it is asked as Prefect itself asks it, with its certificates, headers and keys, and nothing that stands in
its address beside host and path is ever printed.
"""

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from storage.errors import ConfigurationError
from storage.objects.s3.address import without_secrets

ANSWER_SECONDS = 15.0


def does_answer() -> bool:
    """Whether a server is configured and answers. Raises `ConfigurationError` if one is and does not."""
    address: str | None = PREFECT_API_URL.value()  # of the environment, or of the active profile
    if address is None:
        return False
    try:
        with get_client(httpx_settings={"timeout": ANSWER_SECONDS}, sync_client=True) as client:
            error = client.api_healthcheck()  # what a server answers is Prefect's matter
    except (httpx.TransportError, httpx.InvalidURL) as failed:
        error = failed
    if isinstance(error, httpx.TransportError | httpx.InvalidURL):
        raise ConfigurationError(
            f"PREFECT_API_URL is {without_secrets(address)}, but no Prefect server answers there: {_describe(error)}. "
            "Start it, correct the address, or unset it, in the environment or in Prefect's profile: then the run "
            "starts a server of its own."
        ) from None
    return True


def _describe(error: Exception) -> str:
    """What went wrong, by the kind of the error alone: its text may quote the address."""
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time"
    if isinstance(error, httpx.ConnectError):
        return "no connection could be made"
    return "that is not an address" if isinstance(error, httpx.InvalidURL) else "the connection broke off"
