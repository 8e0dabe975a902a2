"""Ranks on hosts of their own, forked from a server that has loaded torch: on two cores 32 of them begin in seconds.

Invariant: a rank enters its host's network before it opens a connection. All that it does is the product's, but that
a microbatch takes as long as a device would, which is slept.
"""

import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.benchmarks.scaling.model import Link
from tests.helpers.hosts import INTERFACE, NAMESPACES, Hosts
from tests.helpers.processes import assembling_ahead, work_and_leave
from training.configuration import TrainConfig
from training.meeting import Meeting
from training.models.precision import choose_precision
from training.process_group import join_process_group
from training.segment import run_segment
from training.spec import SegmentSpec
from training.stopping import StopFlag, follow_parent
from training.trainer import Trainer
from training.world import World

_CONTEXT = multiprocessing.get_context("forkserver")
# This module is the last: what it imports makes the first a lazy one, which an import executes no more.
_CONTEXT.set_forkserver_preload(["training.targets.classification", "torch._dynamo", "tests.benchmarks.scaling.ranks"])
_LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000  # sched.h
LONGEST_SECONDS = 900.0
ROUNDS = 9
MANY_BYTES = 1 << 22


def measure_link(hosts: Hosts, folder: Path) -> Link:
    """Between the first two hosts, by the sums that ranks make: of one value, and of many."""
    result = folder / "link.json"
    _run_ranks(hosts, 2, folder, partial(_time_sums, result))
    few, many = json.loads(result.read_text())
    return Link(latency=few / 2, bytes_per_second=MANY_BYTES / (many - few))


@dataclass(frozen=True)
class Steps:
    """Of the first rank, on average: seconds from one step's beginning to the next, and of the processor."""

    seconds: float
    cpu_seconds: float


def time_steps(hosts: Hosts, spec: SegmentSpec, num_ranks: int, microbatch_seconds: float) -> Steps:
    """Train the segment; what a step took, but for the first, in which loaders start, and the last."""
    result = spec.scratch_folder / "steps.json"
    _run_ranks(
        hosts, num_ranks, spec.scratch_folder, partial(_train, result, spec.model_dump_json(), microbatch_seconds)
    )
    began = json.loads(result.read_text())
    _, (first, first_cpu), *_, (last, last_cpu) = began
    return Steps((last - first) / (len(began) - 2), (last_cpu - first_cpu) / (len(began) - 2))


def _run_ranks(hosts: Hosts, num_ranks: int, folder: Path, work: Callable[[World], Any]) -> None:
    """One on each host, until all have ended. Raises `RuntimeError` with a rank's words if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    ranks: list[BaseProcess] = []
    try:
        for rank, name in enumerate(hosts.names[:num_ranks]):
            namespace = str(NAMESPACES / f"{hosts.bridge}-{name}")
            meet = Meeting(address=hosts.address, port=meeting.port)
            world = World(rank, num_ranks, 0, 1, meeting=meet)
            process: BaseProcess = _CONTEXT.Process(target=_be_a_rank, args=(namespace, world, folder, work))
            process.start()
            ranks.append(process)
        deadline = time.monotonic() + LONGEST_SECONDS
        # One that failed is told at once: the others would wait for it.
        while (running := [process for process in ranks if process.is_alive()]) and time.monotonic() < deadline:
            if any(process.exitcode not in (None, 0) for process in ranks):
                break
            multiprocessing.connection.wait([process.sentinel for process in running], deadline - time.monotonic())
        failed = [rank for rank, process in enumerate(ranks) if process.exitcode != 0]
        failed.sort(key=lambda rank: ranks[rank].exitcode is None)  # those that ended by themselves first
        if failed:
            raise RuntimeError(f"rank {failed[0]} failed: {(folder / f'rank-{failed[0]}.log').read_text()[-2000:]}")
    finally:
        for process in ranks:
            process.kill()


def _be_a_rank(namespace: str, world: World, folder: Path, work: Callable[[World], Any]) -> None:
    follow_parent()
    _enter_network(namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    torch.set_num_threads(1)
    work_and_leave(lambda: work(world), folder / f"rank-{world.rank}.log")


def _enter_network(namespace: str) -> None:
    """Of this thread, and of all that it starts."""
    with Path(namespace).open("rb") as file:
        if _LIBC.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns({namespace})")


def _train(result: Path, spec_json: str, microbatch_seconds: float, world: World) -> Any:
    spec = SegmentSpec.model_validate_json(spec_json)
    own = spec.model_copy(update={"scratch": str(spec.scratch_folder / f"host-{world.rank}")})
    own.scratch_folder.mkdir(parents=True, exist_ok=True)
    world.rank_status.begin(own.scratch_folder, world.rank)
    began: list[tuple[float, float]] = []
    take_step = Trainer.take_step

    def sleep_and_take_step(self: Trainer, step: int, microbatches: list[Any]) -> Any:
        began.append((time.monotonic(), time.process_time()))
        time.sleep(microbatch_seconds * len(microbatches))  # the device computes
        return take_step(self, step, microbatches)

    Trainer.take_step = sleep_and_take_step  # type: ignore[method-assign]
    kept = run_segment(own, world, StopFlag(), assembling_ahead(world))
    if world.is_first:
        result.write_text(json.dumps(began))
    return kept


def _time_sums(result: Path, world: World) -> None:
    config = TrainConfig(device="cpu")
    join_process_group(config, choose_precision(config, world), world)
    seconds = []
    for num_bytes in (8, MANY_BYTES):
        words, took = torch.zeros(num_bytes // 8, dtype=torch.int64), []
        for _ in range(ROUNDS):
            began = time.monotonic()
            dist.all_reduce(words)
            took.append(time.monotonic() - began)
        seconds.append(statistics.median(took[1:]))
    if world.is_first:
        result.write_text(json.dumps(seconds))
