"""The environment of an agent and its ranks: what they and their libraries read when they start.

Invariant: it follows from what they inherit, the number of threads and the network's interface, and from nothing that
is one segment's.
"""

import os
from collections.abc import Mapping

from tasks.cluster.processes import environment_of_installation
from training.configuration import TrainConfig
from training.determinism import numerics_environment
from training.stopping import SUPERVISOR_VARIABLE

# What allocators do with the pages of what is freed: each new one takes the kernel a microsecond or more. Arrow's keeps
# them for longer than from one row group of a bucket, or one block of microbatches, to the next; glibc's for good, up
# to a bound, or each step would begin with as many new pages as its gradients have. What a user has set stands.
ALLOCATOR = {
    "MIMALLOC_PURGE_DELAY": "10000",  # ms
    "MALLOC_MMAP_THRESHOLD_": str(2**28),  # bytes: what is larger is given back at once
    "MALLOC_TRIM_THRESHOLD_": str(2**30),  # bytes: more at the end of the heap is given back
}
# Threads that libraries would start when they are loaded: a process that has some cannot be forked.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
LOOPBACK = "lo"


def environment_of_ranks(
    train: TrainConfig, interface: str | None = None, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Of ranks with this configuration, which talk to those of other nodes over `interface`, if there are any."""
    return {
        **ALLOCATOR,
        **numerics_environment(environment_of_installation(inherited), train.threads),
        **ONE_THREAD,
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait take a busy machine from those they wait for
        "GLOO_SOCKET_IFNAME": interface or LOOPBACK,
        **({} if interface is None else {"NCCL_SOCKET_IFNAME": f"={interface}"}),  # with = it is no prefix
        "PYTHONUNBUFFERED": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        SUPERVISOR_VARIABLE: str(os.getpid()),
    }
