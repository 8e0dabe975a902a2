"""The flow behind the deployment `audit`: the proof of which samples trained a run, asked for by a person.

Invariant: reads only; a run may be in training meanwhile.
"""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.deployed import describe_failure, find_named_run, told
from storage.errors import HoldfastError
from tasks.audits.verdict import audit_run
from tasks.audits.words import sum_up


@flow(name="audit", flow_run_name="{address}", persist_result=False, retries=0)
def audit(address: str) -> State[None]:
    """Proves from the ledger which samples trained a run, and fails if a sample was skipped or repeated.

    Args:
        address: The run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
    """
    try:
        result = audit_run(*find_named_run(address))
    except HoldfastError as error:
        return told(describe_failure(error))
    if result["ok"]:
        return told(Completed(message=sum_up(result)))
    return told(Failed(message=" ".join([sum_up(result), *(one["message"] for one in result["violations"])])))
