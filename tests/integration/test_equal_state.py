"""A bit that changes in one rank's memory reaches no checkpoint: the ranks compare what they have, and name the rank.

What the hash shows of all possible changes is in `unit/training/test_linear_hash.py`.
"""

import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.checkpoints.checkpoints import hash_weights
from tests.helpers.commands import Runner
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.fault_plans import FaultPlan, FlipFault, Memory, read_fired
from tests.helpers.injected_flips import install_flips
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.processes import train_segment
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.training import read_log, train_forked
from training.spec import SegmentSpec
from training.trainer import Trainer
from training.world import World

NUM_RANDOM = 8
SAVED_AT = 5  # the first checkpoint of a segment of `Runs`
NOT_EQUAL = f"At step {SAVED_AT} not all ranks have the same state, so no checkpoint was made of it: "


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(2**32)
    print(f"bits of seed {seed}")  # shown when a test fails
    return random.Random(seed)


def flip(of: Memory, rank: int, step: int, chance: random.Random) -> FlipFault:
    """Of a bit at a random place."""
    return FlipFault(of, rank, step, chance.randrange(2**48))


def with_a_flip(spec: SegmentSpec, world: World, fault: FlipFault) -> Any:
    install_flips([(0, fault)], world.rank, lambda *_, **__: True)
    return train_segment(spec, world)


def fail(runs: Runs, ranks: int, fault: FlipFault, **train: Any) -> str:
    """The cause for which a segment failed in which this bit changed; it left no checkpoint of it or after it."""
    spec = runs.next_spec(ranks, **train)
    outcome = train_forked(spec, runs.store, partial(with_a_flip, fault=fault))
    assert (outcome.outcome, outcome.is_final) == ("failed", False), f"{outcome}\n{read_log(spec)}"
    assert max(runs.checkpoints_of(spec), default=0) <= fault.step
    return outcome.cause


@pytest.mark.parametrize(
    ("of", "background", "sum"),
    [
        ("moments", False, "exact"),
        ("weights", True, "fast"),
        pytest.param("weights", True, "exact", marks=pytest.mark.slow),  # as in the run below
        pytest.param("moments", True, "exact", marks=pytest.mark.slow),
        pytest.param("moments", True, "fast", marks=pytest.mark.slow),
        pytest.param("weights", False, "exact", marks=pytest.mark.slow),
    ],
)
def test_a_bit_that_changed_in_a_rank_ends_the_segment_at_the_next_save_and_names_the_rank(
    of: Memory, background: bool, sum: str, tmp_path: Path, chance: random.Random
) -> None:
    """The save is begun at the boundary after the change; beside training it may end some steps later.

    With the exact sum the weights that come of other moments are found in the step after that.
    """
    rank = chance.randrange(3)
    fault = flip(of, rank, SAVED_AT - 1, chance)
    cause = fail(Runs(tmp_path), 3, fault, background=background, sum=sum, steps=40)
    kind = "the weights" if of == "weights" else "the optimizer's"
    told = re.sub(r"^At step 6 ", "At step 5 ", cause) if (of, background, sum) == ("moments", True, "exact") else cause
    assert told.startswith(f"{NOT_EQUAL}rank {rank} differs from most of the 3 ranks in {kind} '"), f"{fault} {cause}"
    assert re.search(r"', of \d+ tensors\. ", cause)


@pytest.mark.slow
def test_the_save_on_which_ranks_leave_compares_too(tmp_path: Path, chance: random.Random) -> None:
    fault = flip("moments", 2, 3, chance)
    cause = fail(Runs(tmp_path), 3, fault, steps=4, every_steps=100, background=True)
    assert "At step 4 not all ranks have the same state" in cause and ": rank 2 differs from" in cause, fault


def test_weights_that_differ_are_found_in_the_next_step_before_a_gradient_of_them_changes_any(
    tmp_path: Path, chance: random.Random
) -> None:
    """A change of the lowest bit goes by itself when the optimizer rounds; what it does to a sum does not."""
    rank, step = chance.randrange(3), chance.randrange(3)
    fault = replace(flip("weights", rank, step, chance), bit=32 * chance.randrange(2**40))
    cause = fail(Runs(tmp_path), 3, fault, every_steps=100)
    assert cause.startswith(f"At step {step + 1} not all ranks have the same state"), f"{fault} {cause}"
    assert f": rank {rank} differs from most of the 3 ranks in the weights '" in cause


def with_a_weight_that_changes_back(spec: SegmentSpec, world: World) -> Any:
    """One of the second rank's weights is another while the third step's gradients are computed, and no longer."""
    take_step = Trainer.take_step

    def change_and_take_step(trainer: Trainer, step: int, microbatches: Any) -> Any:
        if (step, world.rank) == (2, 1):
            weights, compare = trainer.model.get_parameter("head.weight").detach(), trainer.require_equal
            before = weights.clone()
            weights.view(-1)[0] += 1e-3

            def change_back_and_compare(step: int) -> None:
                weights.copy_(before)
                compare(step)

            trainer.require_equal = change_back_and_compare
        return take_step(trainer, step, microbatches)

    Trainer.take_step = change_and_take_step  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


def test_weights_that_are_the_same_again_when_ranks_compare_are_named_by_what_their_gradients_were_of(
    tmp_path: Path,
) -> None:
    runs = Runs(tmp_path)
    spec = runs.next_spec(3)
    outcome = train_forked(spec, runs.store, with_a_weight_that_changes_back)
    assert (outcome.outcome, outcome.is_final) == ("failed", False), f"{outcome}\n{read_log(spec)}"
    assert outcome.cause.startswith("In step 3 rank 1 computed gradients of other weights than most of the ranks, ")
    assert runs.checkpoints_of(spec) == {}


def test_of_two_ranks_none_is_named(tmp_path: Path, chance: random.Random) -> None:
    cause = fail(Runs(tmp_path), 2, flip("weights", 1, SAVED_AT - 1, chance))
    assert f"{NOT_EQUAL}rank 0 against rank 1, they differ in the weights" in cause
    assert "No majority shows which is right: either may be wrong." in cause


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 2])
def test_a_bit_that_changed_in_a_sum_ends_the_segment_at_that_step_and_names_the_rank(
    ranks: int, tmp_path: Path, chance: random.Random
) -> None:
    """The run below has one of three ranks."""
    rank, step = chance.randrange(ranks), chance.randrange(1, 9)
    fault = flip("sum", rank, step, chance)
    cause = fail(Runs(tmp_path), ranks, fault)
    assert cause.startswith(f"In step {step + 1} rank {rank} received another sum of the gradients than "), fault


def test_a_bit_that_changed_before_it_was_sent_is_noticed_by_all(tmp_path: Path, chance: random.Random) -> None:
    fault = flip("sent", chance.randrange(3), 6, chance)
    cause = fail(Runs(tmp_path), 3, fault)
    assert cause.startswith("In step 7 all ranks received another sum of the gradients than "), fault


def with_an_infinite_weight(spec: SegmentSpec, world: World) -> Any:
    """One of the second rank's weights becomes infinite before the third step."""
    take_step = Trainer.take_step

    def flip_and_take_step(trainer: Trainer, step: int, microbatches: Any) -> Any:
        if (step, world.rank) == (2, 1):
            trainer.model.get_parameter("head.weight").detach().view(-1)[0] = torch.inf
        return take_step(trainer, step, microbatches)

    Trainer.take_step = flip_and_take_step  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


def test_a_change_that_looks_like_a_divergence_is_no_reason_to_leave_out_samples(tmp_path: Path) -> None:
    """Long before the next save the gradient is not finite: the ranks compare before they change their weights."""
    runs = Runs(tmp_path)
    spec = runs.next_spec(3, every_steps=100)
    outcome = train_forked(spec, runs.store, with_an_infinite_weight)
    assert (outcome.outcome, outcome.is_final) == ("failed", False), f"{outcome}\n{read_log(spec)}"
    assert "At step 2 not all ranks have the same state" in outcome.cause
    assert ": rank 1 differs from most of the 3 ranks in the weights 'head.weight', of " in outcome.cause


@pytest.mark.slow
@pytest.mark.parametrize("of", ["weights", "moments", "sum", "sent"])
@pytest.mark.parametrize("sum", ["exact", "fast"])
def test_bits_at_random_places_and_steps_are_found_each_time(
    of: Memory, sum: str, tmp_path: Path, chance: random.Random
) -> None:
    """Up to four steps before the save. A change that has gone by then, to the bit, is in no checkpoint either.

    With fast sums what was computed of it may be.
    """
    if sum == "fast" and of in ("sum", "sent"):
        pytest.skip("floats have no such check")
    runs, num_gone = Runs(tmp_path), 0
    undisturbed = runs.train(3, sum=sum, steps=SAVED_AT)[SAVED_AT]
    for _ in range(NUM_RANDOM):
        fault = flip(of, chance.randrange(3), chance.randrange(SAVED_AT), chance)
        spec = runs.next_spec(3, sum=sum, steps=SAVED_AT, background=chance.random() < 0.5)
        outcome = train_forked(spec, runs.store, partial(with_a_flip, fault=fault))
        if outcome.outcome == "completed":
            num_gone += 1
            if sum == "exact":
                require_the_same(runs.checkpoints_of(spec)[SAVED_AT], undisturbed, runs)
            continue
        assert outcome.outcome == "failed" or (sum == "fast" and outcome.outcome == "diverged"), f"{fault} {outcome}"
        assert runs.checkpoints_of(spec) == {}
        named = "all ranks" if of == "sent" else f"rank {fault.rank}"
        assert named in outcome.cause or outcome.outcome == "diverged", f"{fault} {outcome}"
    print(f"{num_gone} of {NUM_RANDOM} changes had gone before the save")
    assert num_gone <= (NUM_RANDOM // 2 if of == "moments" else 0)


def test_ranks_that_are_alone_compare_nothing(tmp_path: Path, chance: random.Random) -> None:
    """There is nobody to compare with: the change goes into the checkpoint."""
    runs = Runs(tmp_path)
    fault = replace(flip("weights", 0, SAVED_AT - 1, chance), bit=3)  # small: it must not end as a divergence
    changed = runs.train(1, target=partial(with_a_flip, fault=fault))[SAVED_AT]
    assert hash_weights(runs.store, changed) != hash_weights(runs.store, runs.train(1)[SAVED_AT])


@pytest.mark.slow
def test_what_is_compared_reaches_no_bit(tmp_path: Path) -> None:
    """Without saves beside training in `test_elastic.py`."""
    runs = Runs(tmp_path)
    alone, together = (runs.train(ranks, background=True)[12] for ranks in (1, 3))
    require_the_same(together, alone, runs)


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(tmp_path, "flipped", tmp_path / "store", tmp_path / "data")
    settings = {"run": "flipped", "store": tmp_path / "store", "train__ranks": 3, "retry__delay_seconds": 0.1}
    return Runner(configuration, settings, prefect_server)


def test_a_run_in_which_bits_change_goes_back_each_time_and_ends_with_the_same_model(
    runner: Runner, tmp_path: Path, chance: random.Random
) -> None:
    """Four steps: the last one's save is the one on which the ranks leave. One agent serves all segments."""
    flips = [flip("weights", 1, 3, chance), flip("sum", 0, 2, chance)]
    with FaultPlan(tuple(flips)).injected(runner, tmp_path / "plan"):
        runner.run(retry__attempts=5)
    fired = read_fired(tmp_path / "plan")
    assert {mark["fault"] for mark in fired} == {0, 1} and len(fired) == 2
    assert len(list((tmp_path / "plan" / "family").glob("launcher-*"))) == 1
    status = runner.status()
    *failed, last = status["segments"]
    assert [segment["outcome"] for segment in failed] == ["failed"] * len(failed) and last["outcome"] == "completed"
    causes = "\n".join(segment["cause"] for segment in failed)
    assert "In step 3 rank 0 received another sum of the gradients" in causes
    assert "At step 4 not all ranks have the same state" in causes
    runner.settings["run"] = "undisturbed"
    runner.run(train__ranks=1)
    assert runner.status()["promoted"]["weights_sha256"] == status["promoted"]["weights_sha256"]
