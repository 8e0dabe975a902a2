"""Faults at a step of training, in the process of a rank.

Invariant: what is changed is what the product's `Trainer.take_step` is given, or whether it is called; never what it
does.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from tests.helpers.fault_plans import StepFault
from tests.helpers.imported_later import after_import
from tests.helpers.injected_process import InjectedProcess

# Standardised columns are a few units wide: nothing in a model that learnt from them is made for this.
SPIKE_VALUE = 1e6
SLOW_SECONDS = 0.1
PIECE, MOST_PIECES = 64 << 20, 64  # bytes


def install_step_faults(process: InjectedProcess, faults: Sequence[tuple[int, StepFault]]) -> None:
    """Let the rank's trainer meet these faults."""
    within = [(index, fault) for index, fault in faults if fault.point not in ("begin", "computing")]
    computing = [(index, fault) for index, fault in faults if fault.point == "computing"]
    before = [(index, fault) for index, fault in faults if fault.point == "begin"]
    at = {"step": -1}

    def change(trainer: Any) -> None:
        take_step = trainer.Trainer.take_step

        def meet_and_take_step(self: Any, step: int, microbatches: list[Any]) -> Any:
            at["step"] = step
            for index, fault in before:
                microbatches = _meet(process, index, fault, step, microbatches)
            return take_step(self, step, microbatches)

        trainer.Trainer.take_step = meet_and_take_step

    after_import("training.trainer", change)
    if within:
        _install_within(process, within, at)
    if computing:
        _install_computing(process, computing, at)


def _install_within(process: InjectedProcess, faults: Sequence[tuple[int, StepFault]], at: dict[str, int]) -> None:
    """What takes place at a point within the step that was begun last, or in a validation behind it."""

    def meet(point: str, step: int) -> None:
        for index, fault in faults:
            is_here = fault.point == point and fault.rank in (None, process.rank) and fault.step in (None, step)
            if is_here and process.claim(index, fault.times, step=step, point=point):
                if fault.effect == "lose_peer":
                    raise RuntimeError("[gloo/transport/tcp/pair.cc:0] Connection closed by peer: told to")
                process.strike(fault.effect)

    after_import(
        "training.gradients.exact_sum", lambda m: _after(m.ExactSum, "_send", lambda: meet("sent", at["step"]))
    )
    after_import(
        "training.optim.optimization", lambda m: _before(m.Optimization, "step", lambda: meet("summed", at["step"]))
    )
    after_import(
        "training.metrics.validation",
        lambda m: _before(m.Validator, "validate", lambda: meet("validate", at["step"] + 1)),
    )


def _install_computing(process: InjectedProcess, faults: Sequence[tuple[int, StepFault]], at: dict[str, int]) -> None:
    """What ends whoever computes a microbatch."""

    def change(trainer: Any) -> None:
        compute = trainer.Trainer._loss

        def meet_and_compute(self: Any, microbatch: Any) -> Any:
            for index, fault in faults:
                is_here = fault.rank in (None, process.rank) and fault.step in (None, at["step"])
                has_row = fault.row is None or fault.row in microbatch.rows
                if (
                    is_here
                    and has_row
                    and process.claim(index, fault.times, step=at["step"], microbatch=microbatch.index)
                ):
                    process.strike(fault.effect)
            return compute(self, microbatch)

        trainer.Trainer._loss = meet_and_compute

    after_import("training.trainer", change)


def _before(owner: Any, name: str, meet: Callable[[], None]) -> None:
    method = getattr(owner, name)

    def meet_and_go_on(*arguments: Any) -> Any:
        meet()
        return method(*arguments)

    setattr(owner, name, meet_and_go_on)


def _after(owner: Any, name: str, meet: Callable[[], None]) -> None:
    method = getattr(owner, name)

    def go_on_and_meet(*arguments: Any) -> Any:
        found = method(*arguments)
        meet()
        return found

    setattr(owner, name, go_on_and_meet)


def _meet(process: InjectedProcess, index: int, fault: StepFault, step: int, microbatches: list[Any]) -> list[Any]:
    """The microbatches as they are after the fault, if it is due."""
    is_here = fault.rank in (None, process.rank) and fault.step in (None, step)
    has_row = fault.row is None or any(fault.row in microbatch.rows for microbatch in microbatches)
    if fault.effect == "slow":
        return _be_slow(process, index, microbatches) if is_here else microbatches
    if not (is_here and has_row and process.claim(index, fault.times, step=step)) or fault.effect == "note":
        return microbatches
    if fault.effect in ("nan", "spike"):
        return [_poison(microbatch, fault) for microbatch in microbatches]
    if fault.effect == "out_of_memory":
        return [_exhaust(microbatches[0], step), *microbatches[1:]]
    if fault.effect == "take_memory":
        _take_memory()
    if fault.effect == "error":
        raise RuntimeError("Told to fail")
    if fault.effect == "exit":
        os._exit(3)
    if fault.effect == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        process.strike(fault.effect)
    return microbatches


def _exhaust(microbatch: Any, step: int) -> Any:
    """A microbatch for which there is no memory when it is first brought to the device."""
    import torch

    def fail(_device: Any) -> Any:
        object.__delattr__(microbatch, "to")  # who counts what it needs brings it there again
        raise torch.OutOfMemoryError(f"Told to fail at step {step}")

    object.__setattr__(microbatch, "to", fail)
    return microbatch


def _take_memory() -> NoReturn:
    """In pieces that are written to, as memory is only then taken; far more than a group of a test may have."""
    taken = [b"x" * PIECE for _ in range(MOST_PIECES)]
    raise RuntimeError(f"There were {len(taken)} x {PIECE:,} bytes, and the kernel did not mind.")


def _be_slow(process: InjectedProcess, index: int, microbatches: list[Any]) -> list[Any]:
    """The same microbatches, later."""
    process.claim(index, times=1)  # one mark is enough: it lasts
    time.sleep(SLOW_SECONDS)  # a machine that is slow
    return microbatches


def _poison(microbatch: Any, fault: StepFault) -> Any:
    """A microbatch in which the row's numeric columns are not what they were; the microbatch it was made of stays."""
    assert microbatch.numeric.shape[1] > 0, "poison goes into numeric columns, and this data set has none"
    numeric = microbatch.numeric.clone()
    numeric[(microbatch.rows == fault.row).nonzero()] = float("nan") if fault.effect == "nan" else SPIKE_VALUE
    return replace(microbatch, numeric=numeric)
