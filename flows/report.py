"""The flow behind the deployment `report`: the page about a run as it stands, asked for by a person.

Invariant: the page is the one that `holdfast report` writes.
"""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.commands.report import report_run
from flows.deployed import describe_failure, find_named_run, told
from storage.errors import HoldfastError


@flow(name="report", flow_run_name="{address}", persist_result=False, retries=0)
def report(address: str) -> State[None]:
    """Writes the page about a run as it stands, also while it trains; the message says where the page is.

    Args:
        address: The run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
    """
    try:
        return told(Completed(message=report_run(*find_named_run(address), out=None)))
    except HoldfastError as error:
        return told(describe_failure(error))
