"""The flow behind the deployment `train`: each flow run trains the next segment of a configured run.

Invariant: one flow run too many does no harm. A run that is complete stays as it is, one that another process is
training is left to it, and one that a person has paused stays so.
"""

from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows.deployed import describe_failure, train_deployed, with_budget
from storage.errors import HoldfastError
from tasks.config.load import load_configuration
from tasks.prefect_bridge.flow_runs import SKIPPED
from tasks.prefect_bridge.suspension import find_pause
from tasks.run_paths import open_run_paths


@flow(name="scheduled", flow_run_name="{configuration}", persist_result=False, retries=0)
def scheduled(
    configuration: str,
    segment_seconds: Annotated[float, Field(gt=0)] | None = None,
    assignments: tuple[str, ...] = (),
) -> State[None]:
    """Trains the next segment of a run, within its time budget.

    The first flow run begins the run, each further one goes on from the promoted checkpoint. One that finds the run
    complete ends at once; one that finds it in training elsewhere is skipped, and so is a tick of the schedule while
    a person has paused the flow run before it.

    Args:
        configuration: Configuration file (TOML) on the worker's machine, relative to the deployment's folder.
        segment_seconds: Time budget of the segment in seconds; the file's segment.seconds if left empty.
        assignments: Fields to change after the file is read, each as KEY=VALUE, for instance train.ranks=2. A relative
            path in the file is taken from the file's folder, one given here from the deployment's folder.
    """
    try:
        config = load_configuration(Path(configuration), assignments)
        if (pause := find_pause(open_run_paths(config))) is not None:
            return Completed(name=SKIPPED, message=pause)
        return train_deployed(with_budget(config, segment_seconds or config.segment.seconds), max_segments=1)
    except HoldfastError as error:
        return describe_failure(error)
