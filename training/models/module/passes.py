"""Passes through the user's module whose bits are compared: made here, and by another process, in the same way.

Invariant: a pass is a function of seed, weights and microbatch, as in training, if the module is one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from storage.datasets import DatasetManifest
from training.batches.seeds import seed_everything, seed_initial_weights
from training.batches.tensors import Microbatch
from training.determinism import pin_attention
from training.model_configuration import ModuleConfig
from training.models.module.network import build_classifier, inputs_of
from training.models.objective import Objective
from training.models.precision import Precision
from training.targets.registry import kind_of


@dataclass(frozen=True)
class Pass:
    """Logits of a microbatch, the digest of all bits that came of it, and the parameters that it gave no gradient."""

    logits: Tensor
    digest: str
    unused: frozenset[str]


def build_anew(config: ModuleConfig, dataset: DatasetManifest, seed: int, precision: Precision) -> nn.Module:
    """The module with its first weights, on the device, in training mode."""
    pin_attention(precision.device.type)
    seed_initial_weights(seed)
    return build_classifier(config, inputs_of(dataset, kind_of(dataset.target).num_outputs)).to(precision.device)


def make_pass(model: nn.Module, objective: Objective, microbatch: Microbatch, seed: int, precision: Precision) -> Pass:
    """Forward and backward of one microbatch, as at step 0."""
    model.zero_grad(set_to_none=True)
    seed_everything(seed, 0, microbatch.index)
    moved = microbatch.to(precision.device)
    with precision.autocast():
        logits = model(moved)
    shape = (len(microbatch.rows), objective.kind.num_outputs)
    if isinstance(logits, Tensor) and logits.shape == shape and logits.requires_grad:
        objective(logits, moved.labels, moved.weights).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    bits = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    digest = digest_of(bits | ({"": logits} if isinstance(logits, Tensor) else {}))
    return Pass(logits, digest, frozenset(gradients.keys() - bits.keys()))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        data = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name}\0".encode())
        digest.update(data.numpy().data)
    return digest.hexdigest()
