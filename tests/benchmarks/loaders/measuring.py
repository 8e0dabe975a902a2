"""What a loader costs: samples and tokens given, CPU seconds taken, on one rank or on several at once.

Holdfast and its peers are all measured by this file, each in an environment of its own, so it imports nothing but NumPy.
Invariant: the clocks of a rank start before its loader opens anything; its CPU seconds are those of all its threads.
"""

import json
import multiprocessing
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Ranks of training wait for each other at each step. This often is enough to keep one from running ahead of the others.
STEPS_BETWEEN_MEETINGS = 8
LONGEST_SECONDS = 600.0


class Rank(NamedTuple):
    """One of `size` processes that share the samples."""

    index: int
    size: int


class Padded(NamedTuple):
    """What goes through a model in one pass: tokens [B, T] int32, 0 behind each sample's, and their lengths [B]."""

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]


# The batches of one rank; each is one or more passes.
OpenBatches = Callable[[Rank], Iterator[list[Padded]]]


def measure(
    open_batches: OpenBatches,
    num_ranks: int,
    prepare: Callable[[Rank], None] = lambda rank: None,
    in_step: bool = False,
) -> None:
    """Run the ranks at once and print what they took, as one line of JSON.

    `prepare` is called before the clocks start. With `in_step` all ranks have the same number of batches, and none is
    far ahead of another.
    """
    # The imports are made once, and are not what is measured.
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(num_ranks)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_find_free_port()), "WORLD_SIZE": str(num_ranks)}
    os.environ["LOCAL_WORLD_SIZE"] = str(num_ranks)
    receivers, processes = [], []
    for index in range(num_ranks):
        receiver, sender = context.Pipe(duplex=False)
        rank = Rank(index, num_ranks)
        process = context.Process(target=_run, args=(rank, open_batches, prepare, meeting, in_step, sender))
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    counts = [receiver.recv() for receiver in receivers]
    for process in processes:
        process.join()
    print(json.dumps(_sum_up(counts)), flush=True)


def _run(
    rank: Rank,
    open_batches: OpenBatches,
    prepare: Callable[[Rank], None],
    meeting: Any,
    in_step: bool,
    sender: Connection,
) -> None:
    names = ("RANK", "LOCAL_RANK", "GLOBAL_RANK")
    os.environ |= dict.fromkeys(names, str(rank.index))
    prepare(rank)
    meeting.wait(LONGEST_SECONDS)
    began, began_cpu = time.perf_counter(), _cpu_seconds()
    first: tuple[float, float] | None = None
    rows = tokens = padded_tokens = 0
    for number, batch in enumerate(open_batches(rank)):
        if first is None:
            first = time.perf_counter() - began, _cpu_seconds() - began_cpu
        for part in batch:
            rows += len(part.lengths)
            tokens += int(part.lengths.sum())
            padded_tokens += part.tokens.size
        if in_step and number % STEPS_BETWEEN_MEETINGS == 0:
            meeting.wait(LONGEST_SECONDS)
    assert first is not None, "a rank without a batch"
    found = {"rows": rows, "tokens": tokens, "padded_tokens": padded_tokens, "cpu_seconds": _cpu_seconds() - began_cpu}
    sender.send(found | {"seconds": time.perf_counter() - began, "first_seconds": first[0], "first_cpu": first[1]})


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _sum_up(ranks: list[dict[str, float]]) -> dict[str, float]:
    """Sums over ranks; of times on the clock the longest."""
    clocks = ("seconds", "first_seconds")
    return {name: (max if name in clocks else sum)(rank[name] for rank in ranks) for name in ranks[0]}


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
