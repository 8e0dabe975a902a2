"""Errors that trying again cannot mend.

Invariant: a user's mistake is reported once, at once; retries are for machines.
"""

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRunPolicy
from prefect.runtime import flow_run

from tasks.console.announce import warn


def never_retry() -> None:
    """Switch the retries of the current flow run off: the error that is about to be raised is final."""
    if flow_run.id is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, empirical_policy=FlowRunPolicy(retries=0, retry_delay=0))
    except httpx.HTTPError as error:
        warn(f"Prefect's server does not answer, so it may start the flow again, which fails in the same way: {error}")
