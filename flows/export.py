"""The flow behind the deployment `export`: a trained model as a folder on the worker's machine.

Invariant: the folder is the one that `holdfast export` writes.
"""

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.deployed import describe_failure, find_named_run, told
from storage.errors import HoldfastError


@flow(name="export", flow_run_name="{address}", persist_result=False, retries=0)
def export(
    address: str, out: str, checkpoint: str = "best", with_onnx: bool = True, overwrite: bool = False
) -> State[None]:
    """Writes a checkpoint as a folder that loads anywhere; the run may be in training.

    Args:
        address: The run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
        out: Folder to make on the worker's machine, relative to the deployment's one or absolute.
        checkpoint: best, newest, or the step of a checkpoint that the run keeps.
        with_onnx: Write model.onnx too; needs holdfast[export].
        overwrite: Replace the folder if it is an earlier export.
    """
    # torch takes seconds to import, and whoever runs another deployment would wait for it too.
    from flows.commands.models.export import render_export
    from tasks.models.export import export_run

    try:
        found = export_run(*find_named_run(address), checkpoint, Path(out), with_onnx, overwrite)
        return told(Completed(message=str(render_export(found))))
    except HoldfastError as error:
        return told(describe_failure(error))
