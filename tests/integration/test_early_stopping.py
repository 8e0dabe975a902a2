"""Early stopping follows from the validations alone: interrupted or not, a run ends at one step, with one best."""

import functools
import random
import time
from pathlib import Path
from typing import Any

import pytest

from storage.backoff import Backoff
from storage.checkpoints.checkpoints import FoundCheckpoint
from storage.errors import StoreError
from storage.runs.segments import find_outcome
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import Runner, call_here
from tests.helpers.elastic_kills import kill_at_a_random_moment
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.operators import CONFIGURATION
from tests.helpers.processes import train_segment
from tests.helpers.training import read_log, read_state, train_forked
from training import loop
from training.checkpointing import writer as writer_module
from training.metrics.reporter import Report
from training.metrics.validation import Validator
from training.spec import SegmentSpec
from training.trainer import Trainer
from training.world import World

# Tests take the place of functions in it that it only imports.
checkpoint_writer: Any = writer_module

# Of a model that soon has learned what there is.
VALIDATED_EVERY_STEPS = 5
PATIENT: dict[str, Any] = {
    "steps": 400,
    "patience": 2,
    "every_steps": 1000,
    "validate_every_steps": VALIDATED_EVERY_STEPS,
    "keep_best": 1,
}


def end_of(runs: Runs, checkpoints: dict[int, FoundCheckpoint]) -> tuple[int, dict[str, Any]]:
    """The last step and the best validation."""
    state = read_state(runs.store, checkpoints[max(checkpoints)])
    assert state["validated_step"] == max(checkpoints)
    assert state["validations_without_better"] == PATIENT["patience"]
    return max(checkpoints), state["best"]


def test_killed_and_continued_on_other_numbers_of_ranks_it_ends_at_the_same_step_with_the_same_best_checkpoint(
    tmp_path: Path,
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"kill of seed {seed}")
    runs = Runs(tmp_path)
    often = PATIENT | {"every_steps": 3}
    expected = runs.train(1, **often)
    end, best = end_of(runs, expected)
    assert end == best["step"] + VALIDATED_EVERY_STEPS * PATIENT["patience"] < PATIENT["steps"]
    assert best["step"] in expected
    killed = runs.next_spec(2, **often)
    kill_at_a_random_moment(killed, runs, random.Random(seed))
    spec = runs.next_spec(3, runs.newest_of(killed), **often)
    outcome = train_forked(spec, runs.store)
    assert (outcome.outcome, outcome.last_step, outcome.patience) == ("completed", end, 2), read_log(spec)
    assert f"since step {best['step']} gave a better macro_f1 than {best['value']:.4f}" in outcome.cause
    found = runs.checkpoints_of(killed) | runs.checkpoints_of(spec)
    assert end_of(runs, found) == (end, best)
    for step in (best["step"], end):
        require_the_same(found[step], expected[step], runs)


def test_the_best_step_has_a_checkpoint_also_where_another_save_is_under_way_there(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    spec = runs.next_spec(2, **(PATIENT | {"every_steps": 1, "background": True}))
    assert train_forked(spec, runs.store).patience == PATIENT["patience"], read_log(spec)
    found = runs.checkpoints_of(spec)
    best = -1.0
    for validation in read_state(runs.store, found[max(found)])["history"]["validation"]:
        value = validation["metrics"]["macro_f1"]
        assert value <= best or validation["step"] in found
        best = max(best, value)


def test_without_patience_too_the_best_model_has_a_checkpoint(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    found = runs.train(1, steps=20, every_steps=1000, validate_every_steps=2, keep_best=1)
    last = read_state(runs.store, found[20])
    assert last["best"]["step"] in found
    best = -1.0
    for validation in last["history"]["validation"]:
        value = validation["metrics"]["macro_f1"]
        assert (validation["step"] in found) == (value > best or validation["step"] == 20)
        best = max(best, value)


def with_a_slow_save_of_the_best(spec: SegmentSpec, world: World, failures: int, seconds: float = 0.7) -> Any:
    """The save of step 10, the best of a run whose validations give ever less, is slow and fails at first."""
    put, begun = checkpoint_writer.put_checkpoint_file, list[float]()
    checkpoint_writer.ATTEMPTS, checkpoint_writer.BACKOFF = 1, Backoff(0.01, 0.02)
    loop.LONGEST_STAY_SECONDS = 0.01

    def worse(validator: Validator, *_arguments: Any) -> dict[str, float]:
        begun.append(0.0)
        return {"loss": 1.0, "macro_f1": 1 / len(begun)}

    def slow_put(store: Any, path: str, *rest: Any) -> Any:
        if "/000000000010-" in path and path.endswith("model.safetensors"):
            time.sleep(seconds)  # 0.7: the run has come to its end by then
            failed = spec.scratch_folder / "failed"
            failed.touch()
            if len(failed.read_text()) < failures:
                failed.write_text(failed.read_text() + "x")
                raise StoreError("not now")
        return put(store, path, *rest)

    Validator.validate = worse  # type: ignore[method-assign, assignment]
    checkpoint_writer.put_checkpoint_file = slow_put
    return train_segment(spec, world)


def test_at_its_regular_end_a_run_waits_for_the_save_of_the_best_model_and_repeats_one_that_failed(
    tmp_path: Path,
) -> None:
    runs = Runs(tmp_path)
    spec = runs.next_spec(2, steps=20, every_steps=1000, keep_best=1, background=True)
    target = functools.partial(with_a_slow_save_of_the_best, failures=2)
    assert train_forked(spec, runs.store, target).outcome == "completed", read_log(spec)
    assert list(runs.checkpoints_of(spec)) == [20, 10], read_log(spec)
    assert (spec.scratch_folder / "failed").read_text() == "xx"
    straight = runs.train(
        1, steps=20, every_steps=10, target=functools.partial(with_a_slow_save_of_the_best, failures=0)
    )
    require_the_same(runs.checkpoints_of(spec)[20], straight[20], runs)


def with_a_best_model_that_cannot_be_saved(spec: SegmentSpec, world: World) -> Any:
    """With steps that leave time for three tries between two saves."""
    take_step, loop.LONG_SAVE_SECONDS = Trainer.take_step, 2.0

    @functools.wraps(take_step)
    def slow_step(*arguments: Any) -> Any:
        time.sleep(0.05)  # what leaves time for three tries to save between two saves
        return take_step(*arguments)

    Trainer.take_step = slow_step  # type: ignore[method-assign, assignment]
    return with_a_slow_save_of_the_best(spec, world, failures=1000, seconds=0.01)


def test_a_best_model_whose_save_keeps_failing_does_not_keep_others_from_being_saved(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    spec = runs.next_spec(2, steps=30, every_steps=10, keep_best=1, background=True)
    assert train_forked(spec, runs.store, with_a_best_model_that_cannot_be_saved).outcome == "completed", read_log(spec)
    found = runs.checkpoints_of(spec)
    assert 10 not in found and 30 in found and len(found) > 1, read_log(spec)
    reports = [Report.model_validate_json(line) for line in spec.progress_file.read_text().splitlines()]
    # On a slow machine there is another one: that a save takes long.
    alarms = [report.alarm for report in reports if "could not be written" in (report.alarm or "")]
    assert len(alarms) == 1, alarms
    assert any("The model of step 10, the best so far, gets no checkpoint" in (report.note or "") for report in reports)


@pytest.mark.slow
def test_a_run_that_lost_patience_goes_on_with_more_of_it(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    expected = runs.train(1, **(PATIENT | {"patience": 3}))
    early = runs.train(2, **PATIENT)
    spec = runs.next_spec(1, early[max(early)], **PATIENT)
    train_forked(spec, runs.store)
    outcome = find_outcome(runs.store, spec.run, spec.fence)
    assert outcome is not None
    assert (outcome.first_step, outcome.last_step, outcome.patience) == (max(early), max(early), 2)
    later = runs.train(1, resume=early[max(early)], **(PATIENT | {"patience": 3}))
    assert max(later) == max(expected) > max(early)
    require_the_same(later[max(later)], expected[max(expected)], runs)


@pytest.mark.slow
def test_the_command_ends_early_says_so_and_goes_on_when_it_is_given_more(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    generate_corpus(tmp_path / "corpus", "policy", 600)
    (tmp_path / "run.toml").write_text(CONFIGURATION)
    settings = {
        "run": "early",
        "store": tmp_path / "store",
        "train__steps": 4000,
        "train__patience": 1,
        "validation__every_steps": 10,
    }
    runner = Runner(tmp_path / "run.toml", settings, prefect_server)
    first = runner.call("run")
    early = runner.status()
    assert (early["state"], early["metrics_step"]) == ("completed", early["step"] - 10)  # the best one's
    assert early["step"] < early["steps_total"] == 4000
    assert f"step     {early['step']:,} of 4,000, ended early" in first.stdout, first.stderr
    assert "ended early by train.patience = 1: no validation since step" in runner.call("status").stdout
    exported = call_here(["export", f"{tmp_path}/store/runs/early", tmp_path / "model", "--no-onnx"])
    card = (tmp_path / "model" / "README.md").read_text()
    assert exported.returncode == 0 and "not evaluated" not in card, exported.stderr
    assert f"| macro-F1 | {early['kept'][1]['metric']:.4f} | {early['metrics']['macro_f1']:.4f} |" in card
    rows = next((tmp_path / "corpus").glob("*.parquet"))
    predicted = call_here(["predict", tmp_path / "model", rows, tmp_path / "result.parquet", "--calibrated"])
    assert predicted.returncode == 0, predicted.stderr
    runner.run()
    assert runner.status()["segments"] == early["segments"]
    runner.run(train__patience=2)
    later = runner.status()
    assert later["state"] == "completed" and later["step"] > early["step"]
    assert runner.call("audit").returncode == 0
