"""Faults at a step of training, in the process of a rank.

Invariant: what is changed is what the product's `Trainer.take_step` is given, or whether it is called; never what it
does.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.helpers.fault_plans import StepFault
from tests.helpers.imported_later import after_import
from tests.helpers.injected_process import InjectedProcess

# Standardised columns are a few units wide: nothing in a model that learnt from them is made for this.
SPIKE_VALUE = 1e6
SLOW_SECONDS = 0.1


def install_step_faults(process: InjectedProcess, faults: Sequence[tuple[int, StepFault]]) -> None:
    """Let the rank's trainer meet these faults."""

    def change(trainer: Any) -> None:
        take_step = trainer.Trainer.take_step

        def meet_and_take_step(self: Any, step: int, leaves: list[Any]) -> Any:
            for index, fault in faults:
                leaves = _meet(process, index, fault, step, leaves)
            return take_step(self, step, leaves)

        trainer.Trainer.take_step = meet_and_take_step

    after_import("training.trainer", change)


def _meet(process: InjectedProcess, index: int, fault: StepFault, step: int, leaves: list[Any]) -> list[Any]:
    """The leaves as they are after the fault, if it is due."""
    is_here = fault.rank in (None, process.rank) and fault.step in (None, step)
    has_row = fault.row is None or any(fault.row in leaf.rows for leaf in leaves)
    if fault.effect == "slow":
        return _be_slow(process, index, leaves) if is_here else leaves
    if not (is_here and has_row and process.claim(index, fault.times, step=step)):
        return leaves
    if fault.effect in ("nan", "spike"):
        return [_poison(leaf, fault) for leaf in leaves]
    if fault.effect == "out_of_memory":
        return [_exhaust(leaves[0], step), *leaves[1:]]
    if fault.effect == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        process.strike(fault.effect)
    return leaves


def _exhaust(leaf: Any, step: int) -> Any:
    """A leaf for which there is no memory when it is first brought to the device."""
    import torch

    def fail(_device: Any) -> Any:
        object.__delattr__(leaf, "to")  # who counts what it needs brings it there again
        raise torch.OutOfMemoryError(f"Told to fail at step {step}")

    object.__setattr__(leaf, "to", fail)
    return leaf


def _be_slow(process: InjectedProcess, index: int, leaves: list[Any]) -> list[Any]:
    """The same leaves, later."""
    process.claim(index, times=1)  # one mark is enough: it lasts
    time.sleep(SLOW_SECONDS)  # a machine that is slow
    return leaves


def _poison(leaf: Any, fault: StepFault) -> Any:
    """A leaf in which the row's numeric columns are not what they were; the leaf it was made of stays."""
    assert leaf.numeric.shape[1] > 0, "poison goes into numeric columns, and this data set has none"
    numeric = leaf.numeric.clone()
    numeric[(leaf.rows == fault.row).nonzero()] = float("nan") if fault.effect == "nan" else SPIKE_VALUE
    return replace(leaf, numeric=numeric)
