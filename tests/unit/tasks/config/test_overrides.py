"""What a person gives a run by `resume` stays for flow runs that read the same file, until the file says otherwise."""

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

from flows.resume import load_run_configuration
from storage.datasets import DatasetManifest
from storage.errors import IncompatibleRunError, RunBusyError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_records import OverrideValue
from storage.runs.run_state import RunState
from storage.runs.transitions import promote, take_lease
from tasks.config.overrides import with_overrides
from tasks.configuration.run import RunConfig
from tasks.recover import recover
from tasks.remember_overrides import remember_overrides
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.holders import parent_process
from tests.helpers.runs import BATCH_SIZE, lease_run, make_checkpoint, record_of

DATA = {"text": "t", "label": "l", "kind": "binary"}
FILE_STEPS, OVERRIDDEN_STEPS = 100, 150


class Begun:
    """A run that was begun with a file, and what later flow runs make of it."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = LocalStore(folder / "store"), folder
        self.dataset: DatasetManifest = publish_small_dataset(self.store, folder / "work")
        self.manifest = Manifest(self.store, "run")
        self.tick()

    def config(self, steps: int = FILE_STEPS, **checkpoint: Any) -> RunConfig:
        train = {"batch_size": BATCH_SIZE, "steps": steps}
        values = {"run": "run", "store": self.store.address, "data": DATA, "train": train, "checkpoint": checkpoint}
        return RunConfig.model_validate(values)

    def tick(self, steps: int = FILE_STEPS, **checkpoint: Any) -> RunConfig:
        """A flow run that reads the file with these values; the configuration it trains with."""
        inspect.unwrap(recover)(self.config(steps, **checkpoint), self.dataset)
        return with_overrides(self.config(steps, **checkpoint))

    def give(self, steps: int) -> str:
        """What the flow `resume` does first: all other values come from the manifest; what it says."""
        config = load_run_configuration(self.store.address, "run", {"train.steps": steps})
        _, sentence = inspect.unwrap(remember_overrides)(config, {"train.steps": steps})
        return str(sentence)

    def resume(self, steps: int) -> str:
        """All that it does but training."""
        said = self.give(steps)
        self.tick(steps)
        return said

    @property
    def state(self) -> RunState:
        return self.manifest.load_head().state


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    return Begun(tmp_path)


def test_a_flow_run_of_the_same_file_keeps_what_was_given_and_says_so(
    begun: Begun, caplog: pytest.LogCaptureFixture
) -> None:
    said = begun.resume(OVERRIDDEN_STEPS)
    assert said == f"Given to the run by `resume`: train.steps is {OVERRIDDEN_STEPS}, where the file has {FILE_STEPS}."
    assert begun.state.overrides == {"train.steps": OverrideValue(instead_of=FILE_STEPS, value=OVERRIDDEN_STEPS)}
    with caplog.at_level(logging.INFO, "holdfast"):
        assert begun.tick().train.steps == OVERRIDDEN_STEPS
    assert said in caplog.text
    assert begun.state.steps_total == OVERRIDDEN_STEPS


def test_the_flow_run_that_gave_it_says_nothing_of_the_file(begun: Begun, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        begun.resume(OVERRIDDEN_STEPS)
    assert "To end that" not in caplog.text


def test_a_value_written_into_the_file_later_ends_what_was_given(begun: Begun) -> None:
    begun.resume(OVERRIDDEN_STEPS)
    assert begun.tick(120).train.steps == 120
    assert (begun.state.overrides, begun.state.steps_total) == ({}, 120)
    assert begun.tick().train.steps == FILE_STEPS


def test_given_twice_the_later_value_holds_and_the_value_of_the_file_ends_it(begun: Begun) -> None:
    begun.resume(OVERRIDDEN_STEPS)
    begun.resume(OVERRIDDEN_STEPS + 50)
    assert begun.tick().train.steps == OVERRIDDEN_STEPS + 50
    assert begun.resume(FILE_STEPS) == "All values are those of the configuration's file."
    assert begun.tick().train.steps == FILE_STEPS
    assert begun.state.overrides == {}


def test_another_field_of_the_file_may_change_meanwhile(begun: Begun) -> None:
    begun.resume(OVERRIDDEN_STEPS)
    config = begun.tick(every_seconds=77.0)
    assert (config.train.steps, config.checkpoint.every_seconds) == (OVERRIDDEN_STEPS, 77.0)


def test_nothing_is_given_to_a_run_in_training(begun: Begun) -> None:
    begun.manifest.commit("segment began", take_lease(parent_process(), world_size=1))
    before = begun.manifest.load_head()
    with pytest.raises(RunBusyError, match="is being trained by process"):
        begun.give(OVERRIDDEN_STEPS)
    assert begun.manifest.load_head() == before


def test_what_was_given_holds_also_where_the_process_died_before_it_went_on(begun: Begun) -> None:
    begun.give(OVERRIDDEN_STEPS)
    assert begun.state.steps_total == FILE_STEPS
    assert begun.tick().train.steps == OVERRIDDEN_STEPS
    assert begun.state.steps_total == OVERRIDDEN_STEPS


def test_fewer_steps_than_are_made_are_not_given(begun: Begun, tmp_path: Path) -> None:
    manifest = begun.manifest
    kept = record_of(make_checkpoint(begun.store, tmp_path / "files", 50, lease_run(manifest)))
    manifest.commit("promoted", promote(kept, RetentionPolicy(newest=2)))
    before = manifest.load_head()
    with pytest.raises(IncompatibleRunError, match=r"has already made 50 steps; train\.steps = 45 is below"):
        begun.give(45)
    assert manifest.load_head() == before
