"""Steps of one model, timed, and on a GPU profiled.

`python -m tests.benchmarks.gpu.step DEVICE SIZE MICROBATCHES SUM HOW`; HOW is eager or compiled. The last line that it
prints is JSON.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from tests.benchmarks.timing import seconds_of
from tests.helpers.synthetic_steps import ALONE, make_microbatches, make_trainer, synthetic_dataset
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.model_configuration import EncoderConfig
from training.models.precision import choose_precision
from training.process_group import join_process_group
from training.trainer import Trainer

STEPS, WARM_UP_STEPS = 8, 3
ATTENTION = ("fmha", "flash", "attention")
MATRICES = ("gemm", "cutlass", "nvjet", "cublas", "splitk")


class Size(NamedTuple):
    """A model, and the batch of one step of it: about 180 tokens a sample."""

    model: EncoderConfig
    vocabulary_size: int
    batch_size: int
    precision: str


SIZES = {
    "tiny": Size(EncoderConfig(width=64, layers=2, heads=4, feedforward=128), 500, 24, "fp32"),
    "150 M": Size(EncoderConfig(width=768, layers=22, heads=12, feedforward=1728), 50_368, 364, "bf16"),
    "400 M": Size(EncoderConfig(width=1024, layers=28, heads=16, feedforward=3936), 50_368, 364, "bf16"),
}


def main() -> None:
    """Measure what the arguments ask for."""
    device, size, num_microbatches, sum_, how = sys.argv[1:]
    train = TrainConfig.model_validate(
        {"device": device, "precision": SIZES[size].precision, "batch_size": SIZES[size].batch_size, "sum": sum_}
        | {"microbatches": int(num_microbatches), "steps": 1000, "compile": how == "compiled"}
    )
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_measure(SIZES[size], train, Path(folder))), flush=True)
    os._exit(0)  # as a rank leaves: taking a process group apart could hang


def _measure(size: Size, train: TrainConfig, folder: Path) -> dict[str, Any]:
    precision = choose_precision(train, ALONE)
    join_process_group(train, precision, ALONE)
    dataset = synthetic_dataset(size.vocabulary_size)
    began = time.perf_counter()
    trainer = make_trainer(size.model, train, dataset, precision, folder)
    start_seconds = time.perf_counter() - began
    microbatches = make_microbatches(size.model, train, dataset, pin=precision.device.type == "cuda")
    seconds = [_take_step(trainer, step, microbatches) for step in range(STEPS)][WARM_UP_STEPS:]
    num_tokens = sum(int(microbatch.lengths.sum()) for microbatch in microbatches)
    return {
        "parameters": trainer.num_parameters,
        "tokens": num_tokens,
        "start_seconds": round(start_seconds, 1),
        "step_seconds": round(statistics.median(seconds), 4),
        "all_step_seconds": [round(one, 4) for one in seconds],
        "tokens_per_second": round(num_tokens / statistics.median(seconds)),
        **(_profile(trainer, microbatches) if precision.device.type == "cuda" else {}),
    }


def _take_step(trainer: Trainer, step: int, microbatches: list[Microbatch]) -> float:
    return seconds_of(lambda: trainer.take_step(step, microbatches), trainer.device)


def _profile(trainer: Trainer, microbatches: list[Microbatch]) -> dict[str, Any]:
    """Kernels of one step: how many, their milliseconds by kind, and by which attention is computed."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        _take_step(trainer, STEPS, microbatches)
    kernels = [e for e in profiled.key_averages() if e.device_type.name == "CUDA"]
    milliseconds = {"attention": 0.0, "matrices": 0.0, "else": 0.0}
    for kernel in kernels:
        milliseconds[_kind(kernel.key)] += kernel.self_device_time_total / 1000
    return {
        "kernels": sum(kernel.count for kernel in kernels),
        "busy_ms": {kind: round(total, 1) for kind, total in milliseconds.items()},
        "attention_kernels": sorted({kernel.key[:100] for kernel in kernels if _kind(kernel.key) == "attention"}),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def _kind(kernel: str) -> str:
    name = kernel.lower()
    if any(part in name for part in ATTENTION):
        return "attention"
    return "matrices" if any(part in name for part in MATRICES) else "else"


if __name__ == "__main__":
    main()
