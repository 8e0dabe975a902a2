"""Milliseconds of what a step does once over all values: `python -m tests.benchmarks.gpu.passes DEVICE`.

On a CPU (`make bench-passes`) one thread computes, whose processor time is taken, so that others may compute beside it.
The values are as many as a MiniLM has; of the gradient, half belongs to the table of token vectors, of which a
microbatch uses one row in a hundred. The last line that it prints is JSON.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from tests.benchmarks.timing import seconds_of
from training.determinism import pin_numerics
from training.gradients import fixed_point
from training.gradients.fixed_point import NUM_TALLIES, FixedPoint
from training.linear_hash import ROW_WORDS, hash_of_bits, linear_hash
from training.optim.adamw import AdamW
from training.optim.kernels import Group

NUM_VALUES = {"cuda": 150_000_000, "cpu": 22_700_000}
TABLE_ROWS, TABLE_WIDTH, ROW_USED = 30_000, 384, 100
REPETITIONS = 10


def main() -> None:
    """Measure on the device of the argument."""
    pin_numerics(1)
    device = torch.device(sys.argv[1])
    num_values = NUM_VALUES[device.type]
    total = torch.zeros(num_values, dtype=torch.int64, device=device)
    copy_ms = _milliseconds(total.clone, device)
    found: dict[str, float] = {"values": num_values, "GB/s of a copy": round(16 * num_values / copy_ms / 1e6)}
    gradient = torch.randn(num_values, device=device)
    found["ms of a plain fp32 addition"] = _milliseconds(lambda: gradient.add_(1.0), device)
    if device.type == "cpu":
        found |= _time_sum_of_table(total, gradient)
    else:
        found["of the exact sum"] = _time_sum(total, gradient, device)
    if device.type == "cuda":
        fixed_point._gpu_kernel = lambda: None  # type: ignore[assignment]
        found["of the same by torch's operators"] = _time_sum(total, gradient, device)
    hashed = total[: num_values // ROW_WORDS * ROW_WORDS]
    found["of the hash of a sum, which a step takes twice"] = _milliseconds(lambda: linear_hash(hashed), device)
    found["of the hash of fp32 weights"] = _milliseconds(lambda: hash_of_bits(gradient), device)
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    optimizer = AdamW([Group(params=[parameter], weight_decay=0.01, rate_factor=1.0)], (0.9, 0.98))
    found["of AdamW"] = _milliseconds(optimizer.step, device)
    print(json.dumps(found))


def _time_sum(total: torch.Tensor, gradient: torch.Tensor, device: torch.device) -> float:
    """torch's operators use the gradient up, so it soon is infinite, which takes as long."""
    tallies, largest = torch.zeros(NUM_TALLIES, dtype=torch.int64, device=device), torch.zeros((), device=device)
    return _milliseconds(lambda: FixedPoint(32).add_to(total, gradient, tallies, largest), device)


def _time_sum_of_table(total: torch.Tensor, gradient: torch.Tensor) -> dict[str, float]:
    """Of a step's first microbatch, and of another, with the table and with none of its rows zero."""
    found = {}
    table = torch.zeros(TABLE_ROWS, TABLE_WIDTH)
    table[::ROW_USED] = 1.0
    with_table = gradient.clone()
    with_table[: table.numel()] = table.view(-1)
    for name, values in (("", with_table), (", no row of zeros", gradient)):
        for which, is_first in (("the first", True), ("another", False)):
            found[f"of the exact sum, {which} microbatch{name}"] = _time_once(total, values, is_first)
    return found


def _time_once(total: torch.Tensor, values: torch.Tensor, is_first: bool) -> float:
    """The sum uses values up, so each repetition has its own, which is made before the clock runs."""
    device = torch.device("cpu")
    tallies, largest = torch.zeros(NUM_TALLIES, dtype=torch.int64), torch.zeros(())

    def once() -> float:
        own = values.clone()
        add = partial(FixedPoint(32).add_to, total, own, tallies, largest, is_first=is_first)
        return _seconds_of(add, device)

    return round(1000 * statistics.median(once() for _ in range(REPETITIONS)), 2)


def _seconds_of(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cpu":
        return seconds_of(work, device)
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """The median of some repetitions."""
    return round(1000 * statistics.median(_seconds_of(work, device) for _ in range(REPETITIONS)), 2)


if __name__ == "__main__":
    main()
