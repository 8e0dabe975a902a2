"""The flow behind the deployment `evaluate`: one of a run's checkpoints, evaluated because a person asked for it.

Invariant: what is done is what `holdfast evaluate` does; the result is an artifact of the flow run.
"""

from typing import Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.commands.models.evaluate import require_one, source_here
from flows.deployed import describe_failure, find_named_run, told
from storage.errors import HoldfastError
from tasks.evaluations.evaluation import evaluate_checkpoint
from tasks.evaluations.words import describe_in_markdown, sum_up
from tasks.telling.server import show


@flow(name="evaluate", flow_run_name="{address}", persist_result=False, retries=0)
def evaluate(
    address: str,
    checkpoint: str = "best",
    split: Literal["train", "validation", "test"] | None = None,
    source: str | None = None,
    assignments: tuple[str, ...] = (),
) -> State[None]:
    """Evaluates a checkpoint that a run keeps, also while the run trains; metrics and tables are an artifact.

    Args:
        address: The run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
        checkpoint: best by the validation's AUC or macro-F1, newest, or the step of a checkpoint that is kept.
        split: Part of the run's data set; test if left empty.
        source: Instead of a split a table with labels, with the columns of the run's data: a file, a folder or a glob.
        assignments: Fields to change for this one evaluation, each as KEY=VALUE, for instance train.device=cpu.
    """
    try:
        store, run = find_named_run(address)
        data = require_one(split, source), source_here(source)
        result = evaluate_checkpoint(store, run, checkpoint, *data, assignments)
    except HoldfastError as error:
        return told(describe_failure(error))
    show(f"evaluation-{run}", describe_in_markdown(result))
    return told(Completed(message=sum_up(result)))
