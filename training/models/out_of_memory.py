"""A microbatch for which the device has not enough memory: the error, the settings that help and what they would save.

Invariant: the savings in a message were counted for this model and this microbatch; a setting that changes the model is
given as one for a new run.
"""

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import nn

from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.models.activation_bytes import count_kept_bytes
from training.models.precision import Precision
from training.models.source import ModelSource

RECOMPUTE = "activation_checkpointing"
MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


class MicrobatchOutOfMemoryError(torch.OutOfMemoryError):
    """The message is for people; `recomputing_helps` if that setting is off and would save memory in this run."""

    def __init__(self, message: str, recomputing_helps: bool) -> None:
        super().__init__(message)
        self.recomputing_helps = recomputing_helps


def explain(
    error: torch.OutOfMemoryError,
    source: ModelSource,
    model: nn.Module,
    microbatch: Microbatch,
    precision: Precision,
    config: TrainConfig,
) -> NoReturn:
    """Raise the error again, as a `MicrobatchOutOfMemoryError`; `source` has built the model."""

    def count(recomputing: bool) -> str:
        source.set_activation_checkpointing(model, recomputing)
        try:
            return f"about {_size(count_kept_bytes(model, microbatch, precision))}"
        except Exception:  # noqa: BLE001 - that memory ran out is the error, not what counting it met
            return "an amount that could not be counted here"
        finally:
            source.set_activation_checkpointing(model, config.activation_checkpointing)

    helps = not config.activation_checkpointing and not config.compile
    sentences = [
        f"out of memory on {precision.device} in a microbatch of {len(microbatch.rows):,} samples with "
        f"{microbatch.tokens.numel():,} tokens: {_first_sentence(error)}",
        _describe_recomputing(config, count),
        _describe_sharing(config),
        f"For a new run: more microbatches (train.microbatches = {2 * config.microbatches} halves what a microbatch "
        "keeps), a smaller train.batch_size, train.precision = 'bf16', or shorter texts (data.max_tokens).",
    ]
    raise MicrobatchOutOfMemoryError(" ".join(filter(None, sentences)), helps) from error


def _describe_recomputing(config: TrainConfig, count: Callable[[bool], str]) -> str:
    """What recomputing blocks would save. `count` gives what the model keeps, with blocks recomputed or not."""
    if config.compile:
        return ""
    kept = count(config.activation_checkpointing)
    if config.activation_checkpointing:
        return f"The model keeps {kept} between forward and backward of it, blocks being recomputed already."
    return (
        f"The model keeps {kept} between forward and backward of it; with train.{RECOMPUTE} = true {count(True)}. That "
        "changes no bit of the model, costs one more forward pass in a step, and may be set for this run: by you, or "
        "with segment.out_of_memory = 'adapt' by the run itself."
    )


def _describe_sharing(config: TrainConfig) -> str:
    if not config.share_gpus:
        return ""
    return "Ranks share this GPU, and each has its own weights and microbatch: fewer train.ranks need less."


def _first_sentence(error: torch.OutOfMemoryError) -> str:
    """The first sentences of torch's message; what follows is about its allocator."""
    return str(error).partition(". See documentation")[0].strip().rstrip(".") + "."


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIBIBYTE:.1f} GiB" if num_bytes >= GIBIBYTE else f"{num_bytes / MEBIBYTE:.1f} MiB"
