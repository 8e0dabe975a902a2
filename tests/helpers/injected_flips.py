"""Bits that change in the memory of a rank: of its weights, of what its optimizer keeps, of a sum of gradients.

Invariant: what is changed is memory, between two operations of the product; never what these operations do.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tests.helpers.fault_plans import FlipFault
from tests.helpers.imported_later import after_import

# Of a fault's number and how often it may take place: whether it takes place now. It notes the step, too.
Claim = Callable[..., bool]


def install_flips(faults: Sequence[tuple[int, FlipFault]], rank: int | None, claim: Claim) -> None:
    """Let this process, which is the rank of this number, meet those faults that are its own."""
    memory = _Memory([(index, fault) for index, fault in faults if fault.rank == rank], claim)
    after_import("training.trainer", memory.change_trainer)
    after_import("training.gradients.exact_sum", memory.change_sum)


class _Memory:
    """Where the faults take place; `step` is the one that is computed."""

    def __init__(self, faults: Sequence[tuple[int, FlipFault]], claim: Claim) -> None:
        self._faults = faults
        self._claim = claim
        self._step = -1

    def change_trainer(self, module: Any) -> None:
        take_step = module.Trainer.take_step

        def take_step_and_flip(trainer: Any, step: int, microbatches: list[Any]) -> Any:
            self._step = step
            figures = take_step(trainer, step, microbatches)
            self._flip("weights", [parameter.detach() for parameter in trainer.model.parameters()])
            self._flip("moments", list(trainer.optimization.tensors().values()))
            return figures

        module.Trainer.take_step = take_step_and_flip

    def change_sum(self, module: Any) -> None:
        begin_all_reduce = module.begin_all_reduce

        def flip_and_begin(words: Any, world: Any) -> list[Any]:
            self.flip_sent(words)
            return [_Work(work, words, self) for work in begin_all_reduce(words, world)]

        module.begin_all_reduce = flip_and_begin

    def flip_sent(self, words: Any) -> None:
        self._flip("sent", [words])

    def flip_sum(self, words: Any) -> None:
        self._flip("sum", [words])

    def _flip(self, of: str, tensors: list[Any]) -> None:
        for index, fault in self._faults:
            if (fault.of, fault.step) == (of, self._step) and self._claim(index, fault.times, step=self._step):
                _flip_bit(tensors, fault.bit)


class _Work:
    """A sum that is under way."""

    def __init__(self, real: Any, tensor: Any, memory: _Memory) -> None:
        self._real = real
        self._tensor = tensor
        self._memory = memory

    def wait(self) -> Any:
        done = self._real.wait()
        self._memory.flip_sum(self._tensor)
        return done


def _flip_bit(tensors: list[Any], bit: int) -> None:
    """Change one bit of all that the tensors hold, which lie in memory without gaps."""
    import torch

    bit %= sum(8 * tensor.nbytes for tensor in tensors)
    for tensor in tensors:
        if bit < 8 * tensor.nbytes:
            tensor.reshape(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8
            return
        bit -= 8 * tensor.nbytes
