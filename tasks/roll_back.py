"""Task `roll back`: a run goes back to a kept checkpoint because a person asked for it.

Invariant: one commit, after which the run is as after the answer to a divergence. A request is answered once, however
often its flow run begins anew; a run in training is not touched.
"""

from storage.errors import RunBusyError
from storage.runs.rollbacks.rolling_back import is_answered, roll_back_by_hand
from storage.runs.run_state import RunState
from storage.runs.transitions import Change
from tasks.config.changes import require_compatible
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.promote import promote
from tasks.recovery.settle import recover_run
from tasks.reporting.rollbacks import describe_rollback
from tasks.retrying import Retry
from tasks.run_paths import RunPaths, open_run_paths
from tasks.step import step


@step("roll back", run_name="roll back to step {back_to_step}")
def roll_back(config: RunConfig, back_to_step: int, asked_by: str) -> tuple[RunState, str]:
    """Go back to the kept checkpoint of a step; where the run stands then. `asked_by` names the request.

    Raises `RunBusyError` while the run is in training, `ConfigurationError` if no such checkpoint is kept, and
    `IncompatibleRunError` if the run could not go on from there with this configuration.
    """
    change, run_paths = _change(config, back_to_step, asked_by), open_run_paths(config)

    def answer(config: RunConfig, run_paths: RunPaths) -> RunState:
        _plan(config, run_paths.manifest.load_head().state, change)  # with what was promoted just now
        return run_paths.manifest.commit(f"rolled back by hand to step {back_to_step}", change).state

    def attempt() -> tuple[RunState, str]:
        state = run_paths.manifest.load_head().state
        if is_answered(state, asked_by):
            return state, "The run was rolled back for this flow run before; it goes on from where it stands."
        _plan(config, state, change)  # what is refused is refused before anything is written
        return _require_at_rest(recover_run(config, run_paths, promote, answer))

    return Retry(config.retry).call("Rolling the run back", attempt)


def plan_rollback(config: RunConfig, state: RunState, back_to_step: int) -> RunState:
    """Where the run would stand. Raises what `roll_back` raises, but not for a lease: its holder may be dead."""
    return _plan(config, state, _change(config, back_to_step, "plan"))


def _plan(config: RunConfig, state: RunState, change: Change) -> RunState:
    planned = change(state.model_copy(update={"lease": None}), 0)
    require_compatible(planned, config)
    return planned.model_copy(update={"lease": state.lease})


def _change(config: RunConfig, back_to_step: int, asked_by: str) -> Change:
    return roll_back_by_hand(back_to_step, asked_by, config.divergence.learning_rate_factor, config.train.batch_size)


def _require_at_rest(state: RunState) -> tuple[RunState, str]:
    if state.lease is not None:
        raise RunBusyError(
            f"Run {state.run!r} is in training: its ranks work on in a job of the cluster. Stop it with `holdfast "
            "stop`, then ask again."
        )
    sentence = f"Rolled back by hand: {describe_rollback(state.rollbacks[-1])}"
    announce(sentence)
    return state, sentence
