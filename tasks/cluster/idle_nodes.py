"""A node whose segment was lost: it stays in its job, and waits there for the run's next segment.

A job that ends gives its nodes back, and the next one waits in the queue for as many. Invariant: the run's manifest
alone decides what is next. A node works for no fence but the one of a lease that names this node and its job.
"""

import os
import time
from contextlib import suppress
from dataclasses import replace

from storage.errors import ClusterUnavailableError, ConfigurationError, StoreError
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.run_state import Lease
from storage.runs.segments import find_outcome
from tasks.cluster.node_identity import NodeIdentity
from tasks.cluster.orders import JobOrder, NodeEnd, load_order, write_node_end
from tasks.cluster.requests import Requests
from tasks.cluster.slurm.commands import cancel

LOOK_SECONDS = 2.0


def may_wait_idle(store: Store, order: JobOrder, requests: Requests) -> bool:
    """Whether the segment did not end as ranks end one, and this node was not asked to leave. Raises `StoreError`."""
    if not order.keep_seconds or requests.is_stop:
        return False
    outcome = find_outcome(store, order.segment.run, order.segment.fence)
    return outcome is None or (outcome.outcome == "failed" and not outcome.is_final)


def wait_idle(
    store: Store, order: JobOrder, identity: NodeIdentity, requests: Requests, claim: int
) -> tuple[JobOrder, NodeIdentity] | None:
    """Wait for the next segment of this job: its order, and this node's identity in it. None: the node is to leave.

    The `claim` is the node's in the segment that is over. It is also to leave when it is asked to, or when it is not
    needed within the order's `keep_seconds`. Raises `StoreError` if it cannot record that it waits.
    """
    run, fence = order.segment.run, order.segment.fence
    end = NodeEnd(job=identity.job, node=identity.node, claim=claim, how="idle")
    write_node_end(store, run, fence, end)
    print(f"Segment {fence} is over. Waiting up to {order.keep_seconds:g} s for the next one.", flush=True)
    deadline = time.monotonic() + order.keep_seconds
    while time.monotonic() < deadline and not requests.is_stop:
        time.sleep(LOOK_SECONDS)  # the store sends no signal
        try:
            state = Manifest(store, run).load_head().state
            lease = state.lease
            if lease is None or lease.fence == fence:
                continue  # the segment is being settled
            if not _counts_on(lease, identity):
                break
            next_order = load_order(store, run, lease.fence)
            requests.is_for_end = False  # it was for the ranks that are gone
            return next_order, replace(identity, num_nodes=len(_nodes_of(lease)))
        except StoreError:
            continue  # the order comes after the lease; a store that does not answer is asked again
    else:
        if not requests.is_stop:  # the time is up
            _end_own_job()
    write_node_end(store, run, fence, end.model_copy(update={"how": "left"}))
    return None


def _end_own_job() -> None:
    """No other does it: a job whose batch script was on a node that is lost ends only when it is cancelled."""
    with suppress(ConfigurationError, ClusterUnavailableError):  # no commands of Slurm are here, or it does not answer
        cancel(int(os.environ["SLURM_JOB_ID"]))


def _counts_on(lease: Lease, identity: NodeIdentity) -> bool:
    return lease.job is not None and lease.job.name == identity.job and identity.node in _nodes_of(lease)


def _nodes_of(lease: Lease) -> list[str]:
    return (lease.job.nodes if lease.job is not None else None) or []
