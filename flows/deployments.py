"""The flows behind the deployments that do what a command does: audit, report, evaluate, export, scrub, drill.

Invariant: what is done is what the command of the same name does. The message of the flow run's final state is what
the command prints in one sentence, and a result that is not good is a flow run that failed.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from flows.commands.drill import Drill
from flows.commands.evaluate import require_one, source_here
from flows.commands.export import render_export
from flows.commands.report import report_run
from flows.commands.scrub import scrub_with_display
from flows.deployed import ending_in_one_sentence, find_named_run
from storage.lazy_imports import lazy_imports
from storage.runs.addresses import find_target
from tasks.audits.verdict import audit_run
from tasks.audits.words import sum_up as sum_up_audit
from tasks.console.announce import announce
from tasks.drills.summary import summarise_drill
from tasks.models.evaluation import evaluate_checkpoint
from tasks.models.evaluation_words import describe_in_markdown
from tasks.models.evaluation_words import sum_up as sum_up_evaluation
from tasks.prefect_bridge.server import show
from tasks.scrub import scrub_kept
from tasks.scrub import sum_up as sum_up_scrub
from tasks.text import listed

with lazy_imports():
    import tasks.models.export as exporting  # and torch, for which every other deployment would wait too


@flow(name="audit", flow_run_name="{address}", persist_result=False, retries=0)
@ending_in_one_sentence
def audit(address: str) -> State[None]:
    """Proves from the ledger which samples trained a run, and fails if a sample was skipped or repeated.

    Args:
        address: The run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
    """
    result = audit_run(*find_named_run(address))
    return _as_state(result, sum_up_audit(result), result["violations"])


@flow(name="report", flow_run_name="{address}", persist_result=False, retries=0)
@ending_in_one_sentence
def report(address: str) -> State[None]:
    """Writes the page about a run as it stands, also while it trains; the message has the page's address.

    Args:
        address: The run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
    """
    return Completed(message=report_run(*find_named_run(address), out=None))


@flow(name="evaluate", flow_run_name="{address}", persist_result=False, retries=0)
@ending_in_one_sentence
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
    store, run = find_named_run(address)
    result = evaluate_checkpoint(store, run, checkpoint, require_one(split, source), source_here(source), assignments)
    show(f"evaluation-{run}", describe_in_markdown(result))
    return Completed(message=sum_up_evaluation(result))


@flow(name="export", flow_run_name="{address}", persist_result=False, retries=0)
@ending_in_one_sentence
def export(
    address: str,
    out: str,
    checkpoint: str = "best",
    with_onnx: bool = True,
    overwrite: bool = False,
    adapter: bool = False,
) -> State[None]:
    """Writes a checkpoint as a folder that loads anywhere; the run may be in training.

    Args:
        address: The run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
        out: Folder to make on the worker's machine, relative to the deployment's one or absolute.
        checkpoint: best, newest, or the step of a checkpoint that the run keeps.
        with_onnx: Write model.onnx too; needs holdfast[export].
        overwrite: Replace the folder if it is an earlier export.
        adapter: Of a model with [model.lora] write the adapter alone, as peft loads it, without ONNX.
    """
    found = exporting.export_run(*find_named_run(address), checkpoint, Path(out), with_onnx, overwrite, adapter)
    return Completed(message=str(render_export(found)))


@flow(name="scrub", flow_run_name="{address}", persist_result=False, retries=0)
@ending_in_one_sentence
def scrub(address: str, megabytes_per_second: Annotated[float, Field(gt=0)] | None = None) -> State[None]:
    """Reads every byte that is kept of one run, or of all runs of a store, and fails if some of them have rotted.

    For each damaged thing it sends an event `holdfast.rot`. A damaged checkpoint of a run that is not in training is
    quarantined. Runs may be in training meanwhile.

    Args:
        address: A store, or a run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
        megabytes_per_second: Read no faster than this, on average; as fast as it goes if left empty.
    """
    result = scrub_with_display(*find_target(address), megabytes_per_second, scrub_with=scrub_kept)
    return _as_state(result, sum_up_scrub(result), result["damaged"])


@flow(name="drill", flow_run_name="{configuration}", persist_result=False, retries=0)
@ending_in_one_sentence
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
        world_sizes: Numbers of ranks for the second run's starts, used in turn; each at most train.microbatches. If
            left empty, the configured number but at least 2, and half of it. Where there are fewer GPUs, ranks share
            them.
        steps: Optimizer steps of each of the two runs; the file's train.steps if left empty.
        seed: Decides at which steps to kill; random if left empty.
        assignments: Fields to change after the file is read, each as KEY=VALUE, for instance train.ranks=2. A relative
            path in the file is taken from the file's folder, one given here from the deployment's folder.
    """
    assigned = [*assignments, *([] if steps is None else [f"train.steps={steps}"])]
    sizes = ",".join(map(str, world_sizes)) or None
    result = Drill(Path(configuration), assigned, kills, sizes, seed, report=announce).run()
    show(f"drill-{Path(result['page']).stem}", summarise_drill(result))
    return describe_drill(result)


def describe_drill(result: dict[str, Any]) -> State[None]:
    """The final state of a drill: its verdict, and what of the two models is different, and where that stands."""
    headline = result["verdict"]["headline"]
    if result["ok"]:
        return Completed(message=headline)
    different = listed(
        f"{finding['name']} ({finding['words']})" for finding in result["findings"] if finding["result"] == "different"
    )
    return Failed(message=f"{headline.removesuffix('.')}; different: {different}. See {result['page']}.")


def _as_state(result: dict[str, Any], summary: str, problems: list[dict[str, Any]]) -> State[None]:
    """Completed, or failed with what was found; each of `problems` has a `message`."""
    if result["ok"]:
        return Completed(message=summary)
    return Failed(message=" ".join([summary, *(problem["message"] for problem in problems)]))
