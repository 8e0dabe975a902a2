"""Which checkpoint of a run is meant: the best one, the newest one, or the one of a step.

Invariant: what is chosen is one that the run keeps, so a segment that trains meanwhile does not delete it at once; and
the best one is the one that retention calls the best.
"""

from storage.errors import ConfigurationError
from storage.runs.retention import best_first
from storage.runs.run_state import CheckpointRecord, RunState

BEST, NEWEST = "best", "newest"


def choose_checkpoint(state: RunState, choice: str) -> CheckpointRecord:
    """The kept checkpoint that `best`, `newest` or a number of steps names.

    The best one by the headline metric of the validation at its step, AUC or macro-F1; of equal ones the older. Of two
    of one step the newer. Raises `ConfigurationError`, which names the steps that are kept.
    """
    if not state.kept:
        raise ConfigurationError(
            f"Run {state.run!r} has no checkpoint yet: expected at least one that was promoted. Train on with "
            "`holdfast run` until the first save, and ask again."
        )
    if choice == NEWEST:
        return state.kept[0]
    found = best_first(state.kept) if choice == BEST else _of_step(state, choice)
    if not found:
        raise _nothing(state, choice)
    return found[0]


def _of_step(state: RunState, choice: str) -> list[CheckpointRecord]:
    digits = choice.replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigurationError(
            f"--checkpoint is {choice!r}, expected {BEST!r}, {NEWEST!r} or the step of a checkpoint that is kept: "
            f"{_kept_steps(state)}."
        )
    return [record for record in state.kept if record.step == int(digits)]


def _nothing(state: RunState, choice: str) -> ConfigurationError:
    kept = f"It keeps {_kept_steps(state)}"
    if choice == BEST:
        return ConfigurationError(
            f"Run {state.run!r} keeps no checkpoint at whose step a validation gave a finite metric, so none is the "
            f"best. {kept}: name one, or {NEWEST!r}."
        )
    return ConfigurationError(
        f"Run {state.run!r} keeps no checkpoint of step {choice}. {kept}: name one, {BEST!r} or {NEWEST!r}. "
        "Which checkpoints stay is set by checkpoint.keep, keep_best and keep_every_steps."
    )


def _kept_steps(state: RunState) -> str:
    """For instance 'step 4', or 'steps 4, 8'."""
    steps = sorted({record.step for record in state.kept})
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(f'{step:,}' for step in steps)}"
