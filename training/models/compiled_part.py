"""A part of a model as code that takes any number of tokens, and is compiled within a block that asks for it.

Invariant: the compiler knows nothing of the number of tokens; see `compilation.py`.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class CompiledPart:
    """A function of vectors of tokens [N, D] or [B, T, D], each [.., D'], compiled as one of [N, D] with any N."""

    def __init__(self, function: Callable[..., Tensor], note: Callable[[int], object]) -> None:
        self.is_compiling = True

        def compute(*tensors: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():
                note(len(tensors[0]))
            return function(*tensors)

        self._compute = torch.compile(compute, dynamic=True)

    def __call__(self, *tensors: Tensor) -> Tensor:
        flat = [tensor.flatten(0, -2) for tensor in tensors]
        if self.is_compiling:
            for tensor in flat:
                torch._dynamo.decorators.mark_unbacked(tensor, 0)
        result: Tensor = self._compute(*flat)
        return result.reshape(*tensors[0].shape[:-1], result.shape[-1])


def end_compiling(parts: Iterable[CompiledPart]) -> None:
    """Compile nothing from here on, in the whole process: what the code does not take is computed without it."""
    for part in parts:
        part.is_compiling = False
    torch.compiler.set_stance("eager_on_recompile")


def noting_once(note: Callable[[str], object]) -> Callable[[int], None]:
    """What is called with the number of tokens of each input that no code takes; `note` is called for the first."""
    sizes: list[int] = []

    def without_compiled_code(num_tokens: int) -> None:
        sizes.append(num_tokens)
        if len(sizes) == 1:
            note(
                f"train.compile: the compiled code does not take a microbatch of {num_tokens:,} tokens, which is "
                "computed without it, in every process alike: slower than with it, and the model is the same on any "
                "number of ranks. Others like it are not reported."
            )

    return without_compiled_code
