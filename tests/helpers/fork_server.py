"""The server from which tests fork ranks: one of all workers of xdist's, for it loads libraries for eight seconds.

Of its own, where a process is told of none, each process starts one when it first needs it.
"""

import multiprocessing
import os
from multiprocessing import forkserver, resource_tracker

CONTEXT = multiprocessing.get_context("forkserver")
# What ranks load otherwise, each of them anew: those of a pretrained model two seconds of computing, torch's compiler,
# which DDP and activation checkpointing load, three, and who calls a function of a test what tests load, half a second.
# What is not installed is left out. Our own helpers are the last: what they import makes some of the modules before
# them lazy ones, which an import executes no more.
_LOADED_BY_RANKS = ["training.targets.classification", "training.models.encoder.network", "pyarrow.compute", "numpy.ma"]
_OF_PRETRAINED = ["training.models.pretrained.lora", "transformers.models.bert.modeling_bert"]
_OF_TESTS = ["pytest", "tests.helpers.elastic_kills"]
CONTEXT.set_forkserver_preload([*_LOADED_BY_RANKS, *_OF_PRETRAINED, "torch._dynamo", *_OF_TESTS])
# Python gives this one to children of the process that has it, and has no function that gives it to others.
_SERVER = forkserver._forkserver


def start_fork_server() -> str:
    """Start one, which ends with this process; its address, for `use_fork_server`. It loads beside what comes next."""
    forkserver.ensure_running()
    address: str = vars(_SERVER)["_forkserver_address"]
    return address


def use_fork_server(address: str) -> None:
    """Have this process fork from that one. Its ranks are no descendants of this process."""
    unused = os.open(os.devnull, os.O_RDONLY)  # in place of that by which a server hears of the end of its own process
    vars(_SERVER).update(
        _forkserver_address=address, _forkserver_alive_fd=unused, ensure_running=resource_tracker.ensure_running
    )
