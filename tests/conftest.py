"""Fixtures that more than one test file uses.

Invariant: what is started for the session is stopped with it.
"""

from collections.abc import Iterator

import pytest

from tests.helpers.prefect_server import running_prefect_server


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for subprocesses that are to use the session's one real Prefect server."""
    with running_prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment
