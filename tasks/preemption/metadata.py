"""A cloud's metadata service: an HTTP server that only the machine itself reaches.

Invariant: it is asked directly, through no proxy and following no redirect, and no thread waits long for it: within its
cloud it answers in milliseconds.
"""

from collections.abc import Mapping

import httpx

ANSWER_SECONDS = 2.0


class MetadataService:
    """`endpoint` is its address without a path; `headers` are sent with each request."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._client = httpx.Client(headers=dict(headers), timeout=ANSWER_SECONDS, trust_env=False)

    def ask(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> httpx.Response:
        """Its answer, whatever that is. Raises `OSError` if there is none, `ValueError` if the address is none."""
        url = f"{self._endpoint}{path}"
        try:
            return self._client.request(method, url, headers=headers)
        except httpx.TimeoutException:
            raise TimeoutError(f"{url} did not answer within {ANSWER_SECONDS:.0f} s") from None
        except httpx.HTTPError as error:
            raise ConnectionError(f"no answer from {url}: {error}") from None
        except httpx.InvalidURL as error:
            raise ValueError(f"{url} is not an address: {error}") from None

    def read(self, path: str) -> str:
        """What is there. Raises as `ask`, also where the answer is an error."""
        return text_of(self.ask(path))


def text_of(answer: httpx.Response) -> str:
    """Raises `ConnectionError` if it is not what was asked for."""
    if not answer.is_success:
        raise ConnectionError(f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}")
    return answer.text
