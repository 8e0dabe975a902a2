"""How the members of a new view come to one state: whoever is behind, or new, is given that of one that is furthest.

All ranks do the same in the same order, so at the moment when a rank dies the others differ by one step at most, or by
what is done between two steps. What shows how far a rank has come is compared here. Invariant: training goes on in a
view only when all its members have the same state; a rank that was given a part of one has none. Who was given one
is compared with who gave it, bit for bit; and what a wrong sum has changed is given to nobody.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.checkpointing.equality import wrong_sum
from training.checkpointing.state_hashes import require_equal_now
from training.checkpointing.under_way import Fate, SaveStanding, decide_fate
from training.collectives import all_reduce, broadcast
from training.parts import Segment
from training.rank_status import Collective
from training.views.membership import CannotGoOnError

NO_STEP = -1


class Standing(NamedTuple):
    """How far one rank has come, in the order in which ranks come to it; and what else all have to know of it."""

    has_state: int
    step: int
    is_validated: int
    num_sealed: int
    saved_step: int
    ledger_end: int
    owes_save: int  # this and what follows is not compared
    wrong_step: int
    save: SaveStanding

    @property
    def position(self) -> tuple[int, ...]:
        return tuple(self[:6])

    @property
    def numbers(self) -> tuple[int, ...]:
        return (*self[:-1], *self.save)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Standing":
        num_own = len(cls._fields) - 1
        return cls._make([*numbers[:num_own], SaveStanding(*numbers[num_own:])])


def take_over(segment: Segment) -> None:
    """Give all members the state of the one that has come furthest, and deal what there is to do anew. A collective.

    Raises `CannotGoOnError` on all of them alike where none has a state, or the best model would be lost, and
    `UnequalRanksError` where one has received a wrong sum, or not all have the same in the end.
    """
    all_standings = _compare(segment)
    furthest = max(range(len(all_standings)), key=lambda rank: (all_standings[rank].position, -rank))
    if not all_standings[furthest].has_state:
        raise CannotGoOnError("No rank is left that has the state of training.")
    if wrong_step := max(standing.wrong_step for standing in all_standings):
        raise wrong_sum(wrong_step, segment.trainer.wrong_step > 0, segment.world)
    fate = decide_fate([one.save for one in all_standings], [one.has_state > 0 for one in all_standings])
    if fate.is_lost and all_standings[furthest].save.is_beyond_repair:
        raise CannotGoOnError("The ranks died that held a share of the best model's checkpoint.")
    if fate.is_complete or fate.is_let_go:
        segment.checkpointer.end_with_others(fate.is_complete)
    are_behind = [standing.position != all_standings[furthest].position for standing in all_standings]
    if any(are_behind):
        _give_state(segment, furthest, are_behind[segment.world.rank])
        require_equal_now(segment.trainer, segment.world, segment.state.step)
    _settle_save(segment, all_standings, fate)
    segment.membership.has_state = True  # from here on it has all of it, the save under way included
    segment.source.deal_anew(segment.state.step)
    segment.checkpointer.deal_anew()


def _compare(segment: Segment) -> list[Standing]:
    world, own = segment.world, _standing_of(segment).numbers
    rows = torch.zeros(world.size, len(own), dtype=torch.int64)
    rows[world.rank] = torch.tensor(own)
    all_reduce(rows, world, Collective.VIEW)
    return [Standing.of(row) for row in rows.tolist()]


def _standing_of(segment: Segment) -> Standing:
    state, records, save = segment.state, segment.checkpointer.records, segment.checkpointer.standing()
    if not segment.membership.has_state:
        return Standing(0, NO_STEP, 0, 0, NO_STEP, 0, 0, 0, save)
    return Standing(
        has_state=1,
        step=state.step,
        is_validated=int(state.validated_step == state.step),
        num_sealed=records.num_sealed,
        saved_step=records.saved[0],
        ledger_end=records.ledger_end,
        owes_save=int(segment.save_is_owed),
        wrong_step=segment.trainer.wrong_step,
        save=save,
    )


def _settle_save(segment: Segment, all_standings: list[Standing], fate: Fate) -> None:
    """A save under way goes on if all shares of it are held by somebody; else it is begun anew as soon as it can be."""
    checkpointer = segment.checkpointer
    if fate.goes_on:
        told = checkpointer.tell_save() if segment.world.rank == fate.source else None
        checkpointer.go_on_saving(_pass_words(segment, fate.source, told), fate)
    if fate.is_lost:
        checkpointer.lose_writer()
    segment.save_is_owed = fate.is_lost or any(standing.owes_save for standing in all_standings)
    segment.has_waited_for_save = segment.has_reported_save = False


def _give_state(segment: Segment, source: int, is_behind: bool) -> None:
    """Give all of it to who is behind: weights, optimizer, what was consumed, and everything else as JSON.

    Who is not takes part with its own tensors, which have the same bits.
    """
    told = _pass_words(segment, source, _tell(segment) if segment.world.rank == source else None)
    if is_behind:
        segment.membership.has_state = False  # until all of it is here
    steps, words = _consumption(segment, told) if is_behind else segment.trainer.consumption.as_words()
    optimizer = _optimizer_tensors(segment, told, is_behind)
    for tensor in (*segment.trainer.model.state_dict().values(), *optimizer.values(), steps, words):
        broadcast(tensor.detach(), source, segment.world, Collective.STATE)
    if is_behind:
        segment.trainer.consumption.replace(steps, words.to(segment.trainer.device))
        segment.trainer.optimization.load_tensors(optimizer)
        _hear(segment, told)


def _pass_words(segment: Segment, source: int, told: dict[str, Any] | None) -> dict[str, Any]:
    """What `source` has told, on every rank; nothing is pickled."""
    data = bytearray(json.dumps(told).encode())
    size = torch.tensor([len(data)])
    broadcast(size, source, segment.world, Collective.STATE)
    words = torch.empty(int(size), dtype=torch.uint8)
    if told is not None:
        words.copy_(torch.frombuffer(data, dtype=torch.uint8))
    broadcast(words, source, segment.world, Collective.STATE)
    heard: dict[str, Any] = json.loads(words.numpy().tobytes())
    return heard


def _tell(segment: Segment) -> dict[str, Any]:
    """What is no tensor. Raises `DivergedError` where the losses that were not read yet say so."""
    segment.state.curve.read(segment.state.step)
    steps, _ = segment.trainer.consumption.as_words()
    return {
        "state": segment.state.state_dict(),
        "optimization": segment.trainer.optimization.state_dict(),
        "has_optimizer_state": segment.trainer.optimization.has_state,
        "num_steps_consumed": len(steps),
        "saves": segment.checkpointer.records.state_dict(),
        "reports": segment.reporter.state_dict(),
        "first_step": segment.first_step,
        # Monotonic time is one machine's.
        "seconds_since_save": time.monotonic() - segment.last_save,
        "has_noted_rounding": segment.has_noted_rounding,
        "budget": segment.flag.budget_seconds,
    }


def _hear(segment: Segment, told: dict[str, Any]) -> None:
    segment.state.load_state_dict(told["state"])
    segment.trainer.optimization.load_state_dict(told["optimization"])
    segment.checkpointer.records.load_state_dict(told["saves"])
    segment.reporter.load_state_dict(told["reports"])
    segment.first_step, segment.last_save = told["first_step"], time.monotonic() - told["seconds_since_save"]
    segment.has_noted_rounding = told["has_noted_rounding"]
    segment.flag.start_budget(told["budget"])
    segment.reporter.step = segment.world.rank_status.step = segment.state.step


def _consumption(segment: Segment, told: dict[str, Any]) -> tuple[Tensor, Tensor]:
    num_steps = told["num_steps_consumed"]
    _, own = segment.trainer.consumption.as_words()
    return torch.empty(num_steps, dtype=torch.int64), own.new_empty(num_steps, own.shape[1])


def _optimizer_tensors(segment: Segment, told: dict[str, Any], is_behind: bool) -> dict[str, Tensor]:
    """In one order on all ranks; of who is behind to be filled, on the CPU: Gloo sends a GPU's tensors from there."""
    optimization = segment.trainer.optimization
    if not told["has_optimizer_state"]:
        return {}
    if is_behind:
        kinds = optimization.expected
        return {name: torch.empty(kinds[name].shape, dtype=kinds[name].dtype) for name in sorted(kinds)}
    tensors = optimization.tensors()
    return {name: tensors[name].contiguous() for name in sorted(optimization.expected)}
