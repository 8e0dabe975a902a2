"""The flow behind the deployment `drill`: the test on a user's own data that interruptions do not change the model.

Invariant: what it does, and the page that it leaves, are those of `holdfast drill`.
"""

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from flows.commands.drill import Drill
from flows.deployed import describe_failure, told
from storage.errors import HoldfastError
from tasks.drills.summary import summarise_drill
from tasks.pages.words import listed
from tasks.telling.announce import announce
from tasks.telling.server import show


@flow(name="drill", flow_run_name="{configuration}", persist_result=False, retries=0)
def drill(
    configuration: str,
    kills: Annotated[int, Field(ge=1)] = 3,
    world_sizes: tuple[Annotated[int, Field(ge=1)], ...] = (),
    steps: Annotated[int, Field(ge=2)] | None = None,
    seed: Annotated[int, Field(ge=0)] | None = None,
    assignments: tuple[str, ...] = (),
) -> State[None]:
    """Tests on your own data that interruptions do not change the model, and fails if they do.

    Two runs are trained on the worker's machine. One is not interrupted; the other is killed with SIGKILL and started
    again on another number of ranks, several times. Then samples, weights, losses and metrics are compared. Your own
    run is not touched.

    Args:
        configuration: Configuration file (TOML) on the worker's machine, relative to the deployment's folder.
        kills: How often the second run is killed, at steps spread over the run.
        world_sizes: Numbers of ranks for the second run's starts, used in turn; each at most train.leaves. If left
            empty, the configured number but at least 2, and half of it. Where there are fewer GPUs, ranks share them.
        steps: Optimizer steps of each of the two runs; the file's train.steps if left empty.
        seed: Decides at which steps to kill; random if left empty.
        assignments: Fields to change after the file is read, each as KEY=VALUE, for instance train.ranks=2. A relative
            path in the file is taken from the file's folder, one given here from the deployment's folder.
    """
    assigned = [*assignments, *([] if steps is None else [f"train.steps={steps}"])]
    sizes = ",".join(map(str, world_sizes)) or None
    try:
        result = Drill(Path(configuration), assigned, kills, sizes, seed, say=announce).run()
    except HoldfastError as error:
        return told(describe_failure(error))
    show(f"drill-{Path(result['page']).stem}", summarise_drill(result))
    return describe_end(result)


def describe_end(result: dict[str, Any]) -> State[None]:
    """The final state: the verdict, and of two models that differ, what is different in them and where that stands."""
    headline = result["verdict"]["headline"]
    if result["ok"]:
        return told(Completed(message=headline))
    different = listed(
        f"{finding['name']} ({finding['words']})" for finding in result["findings"] if finding["result"] == "different"
    )
    return told(Failed(message=f"{headline.removesuffix('.')}; different: {different}. See {result['page']}."))
