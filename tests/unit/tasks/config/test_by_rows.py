"""What a configuration leaves open follows from the number of training rows once, and stays with the run."""

from typing import Any

import pytest

from storage.errors import ConfigurationError, IncompatibleRunError
from storage.runs.run_records import ByRows
from storage.runs.run_state import RunState
from tasks.config.by_rows import resolve_by_rows
from tasks.config.changes import as_begun, require_compatible
from tasks.config.load import change_values, configure
from tasks.config.template import render_configuration, start_configuration
from tasks.configuration.run import RunConfig

DATA = {"text": "t", "label": "l", "kind": "binary"}


def config_of(**train: Any) -> RunConfig:
    return configure(RunConfig, {"run": "run", "data": DATA, "train": train}, "configuration")


def begin(config: RunConfig, num_rows: int = 10_003) -> tuple[RunConfig, RunState]:
    resolved, by_rows = resolve_by_rows(config, num_rows)
    resolved = as_begun(resolved, None)
    values = resolved.model_dump(mode="json")
    steps = resolved.train.num_steps
    return resolved, RunState(
        run="run",
        created_at=0,
        config=values,
        by_rows=by_rows,
        dataset_digest="d",
        dataset_sha256="s" * 64,
        steps_total=steps,
    )


def test_few_rows_get_many_epochs_and_many_rows_few() -> None:
    epochs = {}
    for num_rows in (50, 10_000, 80_000, 42_000_000):
        config, state = begin(config_of(), num_rows)
        assert state.by_rows == ByRows(training_rows=num_rows, settings=state.by_rows.settings)  # type: ignore[union-attr]
        epochs[num_rows] = config.train.num_steps * 64 / num_rows
        assert config.validation.every_steps is not None and config.train.patience is not None
    assert epochs == {50: 384, 10_000: pytest.approx(20, rel=0.01), 80_000: 10, 42_000_000: pytest.approx(2)}


def test_what_is_set_goes_before() -> None:
    config, _ = begin(
        configure(
            RunConfig,
            {
                "run": "run",
                "data": DATA,
                "train": {"patience": 2},
                "validation": {"every_steps": 7},
            },
            "configuration",
        )
    )
    assert (config.train.patience, config.validation.every_steps) == (2, 7)
    assert begin(config_of(patience=0))[0].train.patience is None


def test_where_steps_are_set_nothing_follows_from_the_rows() -> None:
    config, state = begin(config_of(steps=500))
    assert state.by_rows is None
    assert (config.train.patience, config.validation.every_steps) == (None, None)


def test_epochs_become_steps_and_all_of_them_are_made() -> None:
    config, state = begin(config_of(epochs=2.5))
    assert (config.train.steps, config.train.epochs, config.train.patience) == (391, None, None)
    assert state.by_rows is not None and (state.by_rows.epochs, state.by_rows.training_rows) == (2.5, 10_003)


@pytest.mark.parametrize("train", [{}, {"epochs": 3}, {"steps": 40, "patience": 2}])
def test_the_same_configuration_goes_on_as_it_was_begun(train: dict[str, Any]) -> None:
    resolved, state = begin(config_of(**train))
    again = as_begun(config_of(**train), state)
    assert again == resolved
    require_compatible(state, again)
    # Also where a later version would choose other numbers.
    assert state.by_rows is None or state.by_rows.settings["train.steps"] == resolved.train.steps
    if state.by_rows is not None:
        kept = state.by_rows.model_copy(update={"settings": state.by_rows.settings | {"train.steps": 77}})
        values = state.config | {"train": resolved.train.model_dump(mode="json") | {"steps": 77}}
        other = state.model_copy(update={"by_rows": kept, "config": values})
        assert as_begun(config_of(**train), other).train.steps == 77


def test_other_epochs_are_other_steps_of_the_same_run() -> None:
    _, state = begin(config_of(epochs=3))
    changed = as_begun(config_of(epochs=6), state)
    assert changed.train.steps == 938
    require_compatible(state, changed)
    _, by_steps = begin(config_of(steps=500))
    with pytest.raises(IncompatibleRunError, match=r"begun with train\.steps, and train\.epochs = 6 is set now"):
        as_begun(config_of(epochs=6), by_steps)


def test_steps_and_epochs_are_one_error_but_one_that_is_assigned_takes_the_place_of_the_other() -> None:
    with pytest.raises(ConfigurationError, match=r"train: give steps or epochs, not both: steps is 5 and epochs is 2"):
        config_of(steps=5, epochs=2)
    changed = change_values({"train": {"epochs": 2}}, ["train.steps=5"])
    assert changed == {"train": {"steps": 5}}
    assert change_values(changed, ["train.epochs=3"]) == {"train": {"epochs": 3}}


def test_the_template_says_what_follows_from_the_rows() -> None:
    text = render_configuration(start_configuration([]), full=True)
    for name in ("steps", "epochs", "patience", "every_steps"):
        assert f"# {name} = " in text
    assert "# steps = whole number   (by the number of rows)" in text
