"""Entry point on each node of a job: `python -m tasks.cluster.node STORE RUN FENCE`, started by the cluster.

Invariant: a fence is worked on by one incarnation of one job. A job that the cluster queued again, or a node that comes
back after another process took the run up, finds that in the store and leaves: its checkpoints could not be promoted.
"""

import argparse
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from storage.errors import StoreError
from storage.logs import LOG_NAME
from storage.objects.addresses import open_store
from storage.objects.private_folder import make_private_folder
from storage.objects.store import Store
from storage.runs.holders import this_process
from storage.runs.kept_outcomes import Launch, settle_outcome
from storage.runs.manifest import Manifest
from storage.runs.segments import OutcomeRecord, find_outcome, write_outcome
from tasks.cluster.idle_nodes import may_wait_idle, wait_idle
from tasks.cluster.node_identity import NodeIdentity, read_identity
from tasks.cluster.node_views import NodeViews, name_segment
from tasks.cluster.orders import FirstNode, JobOrder, NodeEnd, elect_first_node, load_order, write_node_end
from tasks.cluster.own_folders import require_own_folder, why_not_own
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Ranks, Rendezvous
from tasks.cluster.relay import Relay
from tasks.cluster.rendezvous import NodeMeeting, introduce
from tasks.cluster.requests import Requests
from training.agents.locks import require_locks
from training.model_configuration import ModuleConfig

LEASE_SECONDS = 30.0
LAST_PUTS = 5
SECONDS_BETWEEN_LAST_PUTS = 5.0


class Node:
    """The ranks of one node, from the order in the store to the last report there."""

    def __init__(self, store: Store, order: JobOrder, identity: NodeIdentity, requests: Requests) -> None:
        spec = order.segment
        if isinstance(spec.model, ModuleConfig) or spec.train.optimizer_factory is not None:
            raise ValueError("the order names code of a user's own, and none is imported that a store names")
        require_own_folder(Path(spec.scratch), spec.run, spec.fence)
        folder = Path(spec.scratch) / identity.node
        self._store, self._order, self._identity, self._requests = store, order, identity, requests
        self._spec = spec.model_copy(update={"scratch": str(folder)})
        self._relay = Relay(store, self._spec, identity.node)
        self._views = NodeViews(store, self._spec, identity.job, order.cluster)
        self._look_at_lease = time.monotonic() + LEASE_SECONDS
        self._is_lease_lost = threading.Event()
        self._trouble: Exception | None = None

    def run(self) -> bool:
        """Returns when the ranks of this node have ended.

        False if the segment is none that this job may work for, or if the others go on without this node.

        Raises `ValueError`, `TimeoutError` and `StoreError`, and `RuntimeError` where this program itself has failed.
        """
        own, listening = introduce(self._identity.incarnation, self._identity.node, self._order.cluster.interface)
        with listening, closing(self._views):
            return self._run_as(own, listening)

    def _run_as(self, own: FirstNode, listening: socket.socket) -> bool:
        first = elect_first_node(self._store, self._spec.run, self._spec.fence, own)
        is_second_start = self._identity.num_nodes == 1 and first != own
        if first.incarnation != self._identity.incarnation or is_second_start:
            print("This segment was worked on before the job was queued again: the run's next segment goes on.")
            return False
        self._make_folder(own)
        self._relay.pass_on()
        try:
            rendezvous = self._meet(first, listening if first == own else None)
            if rendezvous is not None:
                self._views.begin(rendezvous.nodes, rendezvous.index)
            self._work(rendezvous)
        except InterruptedError as stopped:
            print(stopped, flush=True)
        finally:
            self._views.close()
            self._pass_on_the_rest()
            shutil.rmtree(self._spec.scratch_folder, ignore_errors=True)
        return not self._views.is_left_out

    def _make_folder(self, own: FirstNode) -> None:
        folder = self._spec.scratch_folder
        if self._order.private_folder is not None:
            if Path(self._order.private_folder) not in folder.parents:
                raise ValueError(f"scratch is to be below {self._order.private_folder}, and is {folder.parent}")
            make_private_folder(Path(self._order.private_folder), "scratch")
        # Of segments before that died with this node; one that came back works for a fence that is over.
        for segment in folder.parents[1].glob("*"):
            if why_not_own(segment, folder.parents[1]) is None:
                shutil.rmtree(segment / self._identity.node, ignore_errors=True)  # which refuses a link
        folder.mkdir(parents=True)
        require_locks(folder)
        (folder / LOG_NAME).write_text(f"node {own.node} on {socket.gethostname()}, {', '.join(own.addresses)}\n")

    def _meet(self, first: FirstNode, listening: socket.socket | None) -> Rendezvous | None:
        """None for a node that is alone. `listening` is the first node's. Raises as `NodeMeeting`."""
        num_nodes, requests = self._identity.num_nodes, self._requests
        if num_nodes == 1:
            return None
        meeting = NodeMeeting(
            self._order.cluster,
            name_segment(self._spec),
            num_nodes,
            first,
            self._views.port,
            lambda: requests.is_stop or requests.is_for_end,
        )
        return meeting.join(self._identity.node) if listening is None else meeting.host(listening)

    def _work(self, rendezvous: Rendezvous | None) -> None:
        with self._talking_to_the_store(), Ranks(self._spec, self._order.grace_seconds, rendezvous) as ranks:
            while ranks.is_running(POLL_SECONDS):
                if self._requests.is_stop or self._views.must_leave:
                    ranks.stop()
                if self._requests.is_for_end:
                    self._requests.is_for_end = False
                    ranks.kill()
                if self._requests.is_for_stacks:
                    self._requests.is_for_stacks = False
                    ranks.write_stacks()
                if self._is_lease_lost.is_set():
                    print("The run's lease is another segment's: the ranks of this node are killed.", flush=True)
                    ranks.kill()
                if self._trouble is not None:
                    ranks.kill()
                    raise RuntimeError(f"nothing could be passed on to the store any more: {self._trouble!r}")

    @contextmanager
    def _talking_to_the_store(self) -> Iterator[None]:
        """In a thread: a store that does not answer does not delay stopping the ranks."""
        is_over = threading.Event()

        def talk() -> None:
            try:
                while not is_over.wait(POLL_SECONDS):
                    self._relay.pass_on()
                    if self._has_lost_the_lease():
                        self._is_lease_lost.set()
            except Exception as error:  # noqa: BLE001 - whatever it is, the ranks must not train on unseen
                self._trouble = error

        talking = threading.Thread(target=talk, name="store", daemon=True)
        talking.start()
        try:
            yield
        finally:
            is_over.set()
            talking.join()

    def _has_lost_the_lease(self) -> bool:
        """Asked now and then: a process that took the run up elsewhere notes it in the store alone."""
        if time.monotonic() < self._look_at_lease:
            return False
        self._look_at_lease = time.monotonic() + LEASE_SECONDS
        try:
            head = Manifest(self._store, self._spec.run).find_head()
        except StoreError:
            return False
        lease = head.state.lease if head is not None else None
        return head is not None and (lease is None or lease.fence != self._spec.fence)

    def _pass_on_the_rest(self) -> None:
        for _ in range(LAST_PUTS):
            if self._relay.pass_on(at_once=True) and self._put_kept_outcome():
                return
            time.sleep(SECONDS_BETWEEN_LAST_PUTS)  # the store did not answer; nothing signals that it does again

    def _put_kept_outcome(self) -> bool:
        """Put what ranks could not put: nobody else sees this folder. False if it has to wait."""
        spec = self._spec
        launch = Launch(store=self._store.address, run=spec.run, fence=spec.fence, supervisor=this_process())
        try:
            settle_outcome(self._store, spec.scratch_folder, launch)
        except StoreError as error:
            print(f"The store did not take how the segment ended; it is put again: {error}", flush=True)
            return False
        return True


def write_failure(store: Store, order: JobOrder, cause: str, is_final: bool = False) -> None:
    """Why no rank could begin, unless a reason was recorded before."""
    spec = order.segment
    step = spec.resume.step if spec.resume is not None else 0
    record = OutcomeRecord(
        outcome="failed",
        cause=cause,
        is_final=is_final,
        first_step=step,
        last_step=step,
        world_size=order.cluster.nodes * spec.train.ranks,
        seconds=0.0,
        phases={},
    )
    if find_outcome(store, spec.run, spec.fence) is None:
        write_outcome(store, spec.run, spec.fence, record)


def main() -> None:
    """Do this node's part."""
    requests = Requests()
    requests.listen()
    parser = argparse.ArgumentParser(description="One node's part in a segment; started by the cluster.")
    parser.add_argument("store")
    parser.add_argument("run")
    parser.add_argument("fence", type=int)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    store = open_store(options.store, options.cache)
    part: tuple[JobOrder, NodeIdentity] | None = load_order(store, options.run, options.fence), read_identity()
    while part is not None:
        part = _do_part(store, *part, requests)


def _do_part(
    store: Store, order: JobOrder, identity: NodeIdentity, requests: Requests
) -> tuple[JobOrder, NodeIdentity] | None:
    """Work for one segment; what is to be done after it, or None."""
    run, fence = order.segment.run, order.segment.fence
    try:
        has_worked = Node(store, order, identity, requests).run()
    except (ValueError, TimeoutError, RuntimeError) as error:
        write_failure(store, order, f"node {identity.node}: {error}", is_final=isinstance(error, ValueError))
        if order.keep_seconds:
            write_node_end(store, run, fence, NodeEnd(job=identity.job, node=identity.node, how="failed"))
        raise SystemExit(str(error)) from error
    if has_worked and may_wait_idle(store, order, requests):
        return wait_idle(store, order, identity, requests)
    if order.keep_seconds:
        write_node_end(store, run, fence, NodeEnd(job=identity.job, node=identity.node, how="left"))
    return None


if __name__ == "__main__":
    main()
