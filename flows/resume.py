"""The flow behind the deployment `resume`: a person starts it from a form to go on with a run that exists.

Invariant: the configuration is the one in the run's manifest; the form changes only what may change between segments.
A flow run rolls the run back at most once, however often it begins anew.
"""

from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from flows.deployed import describe_failure, describe_skip, train_deployed, with_budget
from storage.errors import HoldfastError, RunBusyError
from storage.objects.addresses import open_store, require_run_name
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.config.changes import as_begun, describe_changes, read_stored, require_compatible
from tasks.config.load import change_values, configure
from tasks.configuration.run import RunConfig
from tasks.models.own_code import require_no_own_code
from tasks.remember_overrides import remember_overrides
from tasks.reporting.rollbacks import describe_rollback
from tasks.roll_back import plan_rollback, roll_back
from tasks.run_paths import open_run_paths
from tasks.text import duration


@flow(name="resume", flow_run_name="{run}", persist_result=False, retries=0)
def resume(
    store: str,
    run: str,
    segment_seconds: Annotated[float, Field(gt=0)] | None = None,
    steps: Annotated[int, Field(ge=1)] | None = None,
    ranks: Annotated[int, Field(ge=1)] | None = None,
    back_to_step: Annotated[int, Field(ge=1)] | None = None,
    learning_rate_factor: Annotated[float, Field(gt=0, le=1)] | None = None,
    max_rollbacks: Annotated[int, Field(ge=0)] | None = None,
    patience: Annotated[int, Field(ge=1)] | None = None,
    save_every_seconds: Annotated[float, Field(gt=0)] | None = None,
    dry_run: bool = False,
) -> State[None]:
    """Goes on with a run from its promoted checkpoint, with the configuration it was started with.

    Without a time budget it trains to the end; with one it trains a single segment. A run that is complete ends at once
    unless more steps, or more patience, are asked for. What is given here holds for the flow runs of a schedule too,
    until another value is written into the configuration's file. Ranks and segment_seconds do not: there the file
    decides.

    Args:
        store: The run's store: a folder, absolute or relative to the deployment's folder, or s3://bucket/prefix.
        run: The run's name.
        segment_seconds: Train one segment of so many seconds; to the end if left empty.
        steps: Optimizer steps of the whole run, those made already included; unchanged if left empty.
        ranks: Processes on the worker's machine, one per GPU where there are GPUs; unchanged if left empty.
        back_to_step: Go back to the kept checkpoint of this step first, and go on from there without the samples that
            the steps since then took. Later checkpoints are given up. Not while the run is in training. From where it
            stands if left empty.
        learning_rate_factor: What a rollback multiplies the learning rate with, from there to the end, after a
            divergence and by back_to_step alike; unchanged if left empty.
        max_rollbacks: Rollbacks after divergence that the run may make before it ends with an error, those made already
            included; unchanged if left empty.
        patience: Validations in a row without a better AUC or macro-F1 after which training ends. A run that ended for
            that goes on with a larger one; unchanged if left empty.
        save_every_seconds: Seconds of training between two checkpoints, as `holdfast advise` recommends; unchanged if
            left empty.
        dry_run: Only report what would be done, and do nothing.
    """
    lasting = {
        "train.steps": steps,
        "train.patience": patience,
        "divergence.learning_rate_factor": learning_rate_factor,
        "divergence.max_rollbacks": max_rollbacks,
        "checkpoint.every_seconds": save_every_seconds,
    }
    try:
        config = load_run_configuration(store, run, lasting | {"train.ranks": ranks})
        if dry_run:
            return Completed(name="Dry run", message=describe_plan(config, segment_seconds, back_to_step))
        if back_to_step is not None:
            roll_back(config, back_to_step, asked_by=f"flow run {flow_run.id}")
        given = {field: value for field, value in lasting.items() if value is not None}
        if given:
            remember_overrides(config, given)
        return train_deployed(with_budget(config, segment_seconds), max_segments=1 if segment_seconds else None)
    except RunBusyError as busy:
        return describe_skip(busy) if back_to_step is None else describe_failure(busy)
    except HoldfastError as error:
        return describe_failure(error)


def describe_plan(config: RunConfig, segment_seconds: float | None, back_to_step: int | None = None) -> str:
    """What `resume` would do now, in a sentence or two. Raises a `HoldfastError` if it would be refused."""
    state = open_run_paths(config).manifest.load_head().state
    plan = ""
    if back_to_step is not None:
        state = plan_rollback(config, state, back_to_step)
        plan = f"Would go {describe_rollback(state.rollbacks[-1])} "
    require_compatible(state, as_begun(config, state))
    plan += _describe_training(config, state, segment_seconds)
    changes = describe_changes(read_stored(state.config), config.model_dump(mode="json"))
    return f"{plan}. Changed: {'; '.join(changes.values()) or 'nothing'}."


def _describe_training(config: RunConfig, state: RunState, segment_seconds: float | None) -> str:
    point = state.promoted.step if state.promoted else 0
    planned = state.model_copy(update={"config": config.model_dump(mode="json"), "steps_total": config.train.num_steps})
    if planned.is_complete:
        return f"{state.run} is complete at step {point:,}: nothing would be trained"
    how_far = f"for {duration(segment_seconds)}" if segment_seconds else "to its end"
    plan = f"Would train {state.run} {how_far}, from step {point:,} of {config.train.num_steps:,}"
    if state.lease is not None:
        plan += f", unless process {state.lease.holder.pid} on {state.lease.holder.host} still trains it"
    return plan


def load_run_configuration(store: str, run: str, changes: dict[str, int | float | None]) -> RunConfig:
    """What the run was last continued with, changed where a value is given. Raises `RunMissingError`.

    Also `ConfigurationError`, if the name or a changed value makes no sense.
    """
    require_run_name(run)
    opened = open_store(store)
    values = Manifest(opened, run).load_head().state.config | {"store": opened.address}
    assignments = [f"{field}={value}" for field, value in changes.items() if value is not None]
    config = configure(RunConfig, change_values(values, assignments), f"configuration of run {run!r} in {store}")
    require_no_own_code(config)
    return config
