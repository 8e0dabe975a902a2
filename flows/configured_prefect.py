"""The Prefect server that the user has configured, in the environment or in a profile of Prefect's.

Invariant: it is asked as Prefect itself asks it, with its certificates, headers and keys, and nothing that stands in
its address beside host and path is ever printed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from json import JSONDecodeError

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from storage.errors import ConfigurationError
from storage.objects.s3.address import without_secrets
from tasks.prefect_bridge.private.server_requests import require_api

ANSWER_SECONDS = 15.0
REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


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
            f"{_describe_silence(address, error)} Start it, correct the address, or unset it, in the environment or in "
            "Prefect's profile: then the run starts a server of its own."
        ) from None
    return True


@contextmanager
def asking() -> Iterator[SyncPrefectClient]:
    """A client of the configured server, for the block.

    Raises `ConfigurationError` if none is configured, and at once or later if it does not answer, refuses the
    credentials or what it is asked, or is no Prefect server.
    """
    address: str | None = PREFECT_API_URL.value()
    if address is None:
        raise ConfigurationError(
            "No Prefect server is configured, and this needs one that stays. Set PREFECT_API_URL to its address, in "
            "the environment or in Prefect's profile. For one on this machine: `prefect server start`, and "
            "export PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    try:
        with get_client(sync_client=True) as client:
            require_api(client, ANSWER_SECONDS)
            yield client
    except (httpx.TransportError, httpx.InvalidURL) as error:
        message = f"{_describe_silence(address, error)} Start it, or correct the address."
        raise ConfigurationError(message) from None
    except PrefectHTTPStatusError as error:
        raise ConfigurationError(_describe_refusal(without_secrets(address), error.response)) from None
    except ObjectNotFound:
        raise ConfigurationError(
            f"Something that the Prefect server at {without_secrets(address)} had a moment ago is gone: somebody else "
            "is changing it. Type the command again."
        ) from None
    except JSONDecodeError:
        raise ConfigurationError(_describe_no_api(without_secrets(address))) from None


def _describe_silence(address: str, error: httpx.TransportError | httpx.InvalidURL) -> str:
    """What went wrong, by the kind of the error alone: its text may quote the address."""
    how = "the connection broke off"
    if isinstance(error, httpx.TimeoutException):
        how = "it did not answer in time"
    elif isinstance(error, httpx.ConnectError):
        how = "no connection could be made"
    elif isinstance(error, httpx.InvalidURL):
        how = "that is not an address"
    return f"PREFECT_API_URL is {without_secrets(address)}, but no Prefect server answers there: {how}."


def _describe_refusal(shown: str, response: httpx.Response) -> str:
    if response.status_code in REFUSED:
        return (
            f"The Prefect server at {shown} refuses the credentials ({response.status_code}). Set "
            "PREFECT_API_AUTH_STRING to what PREFECT_SERVER_API_AUTH_STRING is for the server, or, for Prefect Cloud, "
            "PREFECT_API_KEY to a key of yours."
        )
    if response.status_code == HTTPStatus.NOT_FOUND:
        return _describe_no_api(shown)
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        return (
            f"The Prefect server at {shown} is busy: it said so (503) each time that it was asked again, for a minute "
            "by default. Most likely others write into its database, which SQLite lets one at a time do. Type the "
            "command again; what it has done so far stays. PREFECT_CLIENT_MAX_RETRIES=7 has it asked for four "
            "minutes. If this happens often, give the server PostgreSQL: deployments/server.md"
        )
    return f"The Prefect server at {shown} refused what it was asked ({response.status_code}): {response.text[:2000]}"


def _describe_no_api(shown: str) -> str:
    return (
        f"What answers at {shown} is not Prefect's API, whose address ends with /api by default. Correct "
        "PREFECT_API_URL."
    )
