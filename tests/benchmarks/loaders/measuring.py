"""What a loader costs: samples and tokens given, CPU seconds taken, on one rank or on several at once.

Holdfast and its peers are all measured by this file, each in an environment of its own: it imports NumPy alone.
Invariant: until the first batch and from there on are two figures, and samples are counted after it: what a loader does
once, before it gives anything, is not spread over an epoch. CPU seconds of a rank are those of all its threads and
children, without what it takes to meet the other ranks: that is this file's doing.
"""

import json
import multiprocessing
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Ranks of training wait for each other at each step. This often is enough to keep one from running ahead of the others.
STEPS_BETWEEN_MEETINGS = 8
LONGEST_SECONDS = 600.0


class Rank(NamedTuple):
    """One of `size` processes that share the samples."""

    number: int
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
    for number in range(num_ranks):
        receiver, sender = context.Pipe(duplex=False)
        rank = Rank(number, num_ranks)
        arguments = (rank, open_batches, prepare, meeting, in_step, sender)
        process = context.Process(target=_run, args=arguments, daemon=True)  # one that fails ends them all
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
    os.environ |= dict.fromkeys(names, str(rank.number))
    prepare(rank)
    meeting.wait(LONGEST_SECONDS)
    began, began_cpu = time.perf_counter(), _cpu_seconds()
    batches = open_batches(rank)
    next(batches)
    started, started_cpu = time.perf_counter(), _cpu_seconds()
    padded_tokens, meeting_seconds = 0, 0.0
    lengths: list[NDArray[np.int64]] = []  # to be added up when the clocks have stopped
    for number, batch in enumerate(batches):
        for part in batch:
            lengths.append(part.lengths)
            padded_tokens += part.tokens.size
        if in_step and number % STEPS_BETWEEN_MEETINGS == 0:
            came = time.thread_time()
            meeting.wait(LONGEST_SECONDS)
            meeting_seconds += time.thread_time() - came
    cpu = {
        "start_cpu_seconds": started_cpu - began_cpu,
        "cpu_seconds": _cpu_seconds() - started_cpu - meeting_seconds,
    }
    clocks = {"start_seconds": started - began, "seconds": time.perf_counter() - started}
    counts = {"rows": sum(map(len, lengths)), "tokens": sum(int(own.sum()) for own in lengths)}
    sender.send(counts | {"padded_tokens": padded_tokens} | cpu | clocks)


def _cpu_seconds() -> float:
    """Of this process and its children, those that run too."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_cpu_seconds_of, _running_children()))


def _running_children() -> list[str]:
    children: list[str] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            children += path.read_text().split()
    return children


def _cpu_seconds_of(pid: str) -> float:
    """The first number of schedstat is the time on a processor in nanoseconds: of each thread."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _sum_up(ranks: list[dict[str, float]]) -> dict[str, float]:
    """Sums over ranks; of times on the clock the longest."""
    clocks = ("seconds", "start_seconds")
    return {name: (max if name in clocks else sum)(rank[name] for rank in ranks) for name in ranks[0]}


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
