"""A compiled block of the encoder by itself, without a data set and a segment."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from training.determinism import pin_compiler
from training.export.standalone.holdfast_network import Architecture, EncoderBlock
from training.models.encoder.network import compiling_blocks

WIDTH = 64
# Flat microbatches [N], and some that are padded to one length [B, T]: from one token on, and on both sides of where
# compilers change their mind on a CPU and on a GPU.
SHAPES = ((1,), (2,), (7,), (1000,), (4096,), (4097,), (20_479,), (20_480,), (70_000,), (1, 9), (16, 256), (17, 256))


@contextmanager
def compiled_block(
    device: torch.device, precision: torch.dtype, example: int, folder: Path
) -> Iterator[tuple[EncoderBlock, list[str]]]:
    """A block with seeded weights, compiled from an example of so many tokens; and what is noted of other shapes."""
    torch.manual_seed(0)
    block = EncoderBlock(Architecture(WIDTH, 1, 4, 128, 0.0, 16, 100, 64, 0, (), 3)).to(device)
    notes: list[str] = []
    pin_compiler(folder)
    try:
        with compiling_blocks([block], notes.append):
            gradients_of(block, device, precision, (example,))
        yield block, notes
    finally:
        torch.compiler.set_stance("default")
        torch.compiler.reset()


def gradients_of(block: EncoderBlock, device: torch.device, precision: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """The gradients of the block's parameters and of what it was given, for seeded tokens, byte for byte."""
    generator = torch.Generator().manual_seed(sum(shape))
    hidden = torch.randn(*shape, WIDTH, generator=generator).to(device).requires_grad_()
    with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
        given = hidden * 1.0
        mixed = block.before_mixing(given)[..., :WIDTH].clone(memory_format=torch.contiguous_format)
        out = block.after_mixing(given, mixed)
    block.zero_grad()
    loss = (out.float() * torch.linspace(0, 1, WIDTH, device=device)).sum()
    torch.autograd.backward(loss)
    gradients = [hidden.grad, *(p.grad for p in block.parameters() if p.grad is not None)]
    return b"".join(g.detach().float().cpu().numpy().tobytes() for g in gradients if g is not None)
