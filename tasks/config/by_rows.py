"""What a configuration leaves open, by the number of training rows: steps, patience, validations.

Invariant: resolved once, when a run begins, and kept in its manifest; what the file sets goes before. Where
`train.steps` is set, nothing follows from the rows. How the numbers were chosen: deployments/tuning.md.
"""

import math

from storage.errors import IncompatibleRunError
from storage.runs.run_records import ByRows
from storage.runs.run_state import RunState
from tasks.configuration.run import RunConfig
from training.validation_configuration import LONGEST_VALIDATION_STEPS

# So many epochs up to so many rows; half as many of eight times the rows, and never fewer than two.
EPOCHS_OF_FEW_ROWS, FEW_ROWS, FEWEST_EPOCHS = 20.0, 10_000, 2.0
FEWEST_STEPS = 300
VALIDATIONS, PATIENCE = 20, 5


def resolve_by_rows(config: RunConfig, num_rows: int) -> tuple[RunConfig, ByRows | None]:
    """The configuration of a new run without open ends, and what followed from the rows; None if nothing did."""
    train = config.train
    if train.steps is not None:
        return config, None
    epochs = _epochs(num_rows) if train.epochs is None else train.epochs
    steps = _steps(epochs, num_rows, train.batch_size)
    found: dict[str, int | float] = {}
    if train.epochs is None:
        steps = max(steps, FEWEST_STEPS)
        if train.patience is None and config.checkpoint.keep_best > 0:  # it ends with the best model kept
            found["train.patience"] = PATIENCE
    if config.validation.every_steps is None:
        found["validation.every_steps"] = min(math.ceil(steps / VALIDATIONS), LONGEST_VALIDATION_STEPS)
    found = {"train.steps": steps, **found}
    record = ByRows(training_rows=num_rows, epochs=train.epochs, settings=found)
    return _with(config, found), record


def keep_length(config: RunConfig, state: RunState) -> RunConfig:
    """With `train.epochs` turned into steps for a run that was begun: those of its beginning, if they are the same.

    Raises `IncompatibleRunError` for a run that was begun with steps: how many rows it has is not in its manifest.
    """
    epochs, by_rows = config.train.epochs, state.by_rows
    if epochs is None:
        return config
    if by_rows is None:
        raise IncompatibleRunError(
            f"Run {state.run!r} was begun with train.steps, and train.epochs = {epochs:g} is set now. Set train.steps "
            "in its place, or give another run name to start a new run."
        )
    is_kept = epochs == by_rows.epochs
    steps = (
        by_rows.settings["train.steps"] if is_kept else _steps(epochs, by_rows.training_rows, config.train.batch_size)
    )
    return _with(config, {"train.steps": steps})


def describe_by_rows(by_rows: ByRows) -> str:
    """In a sentence, what followed from the number of rows."""
    # A manifest has them by their names.
    settings = ", ".join(f"{name} = {value:,}" for name, value in sorted(by_rows.settings.items(), key=_steps_first))
    asked = "" if by_rows.epochs is None else f" (train.epochs = {by_rows.epochs:g})"
    return f"{by_rows.training_rows:,} training rows{asked}: {settings}"


def _steps_first(setting: tuple[str, int | float]) -> tuple[bool, str]:
    return setting[0] != "train.steps", setting[0]


def _epochs(num_rows: int) -> float:
    return max(FEWEST_EPOCHS, EPOCHS_OF_FEW_ROWS * min(1.0, math.cbrt(FEW_ROWS / num_rows)))


def _steps(epochs: float, num_rows: int, batch_size: int) -> int:
    return max(1, math.ceil(epochs * num_rows / batch_size))


def _with(config: RunConfig, values: dict[str, int | float]) -> RunConfig:
    for field, value in values.items():
        section, name = field.split(".")
        update = {name: value} | ({"epochs": None} if field == "train.steps" else {})
        config = config.model_copy(update={section: getattr(config, section).model_copy(update=update)})
    return config
