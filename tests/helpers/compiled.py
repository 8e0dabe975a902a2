"""A compiled block of the encoder by itself, without a data set and a segment."""

import torch

from training.model import compilation
from training.standalone.holdfast_network import Architecture, EncoderBlock

WIDTH = 64
# Around where compilers change their mind on a CPU and on a GPU.
SIZES = (2, 7, 1000, 4096, 4097, 20_479, 20_480, 70_000)


def compiled_block(device: torch.device, precision: torch.dtype, example: int) -> EncoderBlock:
    """A block with seeded weights, compiled from an example of so many tokens; other sizes that fail it raise."""
    torch.manual_seed(0)
    block = EncoderBlock(Architecture(WIDTH, 1, 4, 128, 0.0, 16, 100, 64, 0, (), 3)).to(device)
    torch.compiler.set_stance("default")
    with compilation.compiling_blocks([block]):
        gradients_of(block, device, precision, example)
    torch.compiler.set_stance("fail_on_recompile")
    return block


def gradients_of(block: EncoderBlock, device: torch.device, precision: torch.dtype, num_tokens: int) -> bytes:
    """The gradients of the block's parameters and of what it was given, for seeded tokens, byte for byte."""
    generator = torch.Generator().manual_seed(num_tokens)
    hidden = torch.randn(num_tokens, WIDTH, generator=generator).to(device).requires_grad_()
    with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
        given = hidden * 1.0
        mixed = block.before_mixing(given)[:, :WIDTH].clone(memory_format=torch.contiguous_format)
        out = block.after_mixing(given, mixed)
    block.zero_grad()
    loss = (out.float() * torch.linspace(0, 1, WIDTH, device=device)).sum()
    torch.autograd.backward(loss)
    gradients = [hidden.grad, *(p.grad for p in block.parameters() if p.grad is not None)]
    return b"".join(g.detach().float().cpu().numpy().tobytes() for g in gradients if g is not None)
