"""Entry point on each node of a job: `python -m tasks.cluster.node STORE RUN FENCE`, started by the cluster.

Invariant: a fence is worked on by one incarnation of one job. A job that the cluster queued again, or a node that comes
back after another process took the run up, finds that in the store and leaves: its checkpoints could not be promoted.
A node of this incarnation that comes to a segment under way joins it, if it has several nodes and the others would go
on without one (`joining.py`).
"""

import argparse
import glob
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
from tasks.cluster.joining import Joining
from tasks.cluster.node_identity import NodeIdentity, read_identity
from tasks.cluster.node_views import NodeViews, name_segment
from tasks.cluster.orders import (
    FirstNode,
    JobOrder,
    NodeEnd,
    NodeStatuses,
    elect_first_node,
    load_order,
    write_node_end,
    write_node_statuses,
)
from tasks.cluster.own_folders import require_own_folder, why_not_own
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Ranks, Rendezvous
from tasks.cluster.relay import Relay
from tasks.cluster.rendezvous import NodeMeeting, introduce
from tasks.cluster.requests import Requests
from tasks.cluster.roster import NodePlace, Roster
from tasks.preemption.signals import StopRequest
from tasks.preemption.sources import open_sources
from tasks.preemption.watch import watching
from training.agents.locks import require_locks
from training.model_configuration import ModuleConfig

LEASE_SECONDS = 30.0
LAST_PUTS = 5
SECONDS_BETWEEN_LAST_PUTS = 5.0
# Between a node's name and its claim, in the names of folders: no host's name has it.
AGAIN = "~"


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
        self._roster = Roster(store, spec.run, spec.fence, spec.train.ranks)
        self._joining: Joining | None = None
        self._views = NodeViews(store, self._spec, identity.job, order.cluster)
        self._look_at_lease = time.monotonic() + LEASE_SECONDS
        self._is_lease_lost = threading.Event()
        self._trouble: Exception | None = None
        self._notice = StopRequest()

    @property
    def is_outside(self) -> bool:
        """Whether it has no part in the segment: what becomes of it is not the segment's.

        It came to a segment under way, and was not taken in; or another process has its place.
        """
        return self._views.is_replaced or (self._joining is not None and not self._views.has_joined)

    @property
    def claim(self) -> int:
        """With which it came to the segment; 0: it met the others as it began."""
        return self._views.claim

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
        is_late = first != own and first.incarnation == self._identity.incarnation and self._roster.find()
        is_second_start = self._identity.num_nodes == 1 and first != own and not is_late
        if first.incarnation != self._identity.incarnation or is_second_start:
            print("This segment was worked on before the job was queued again: the run's next segment goes on.")
            return False
        try:
            place = self._claim() if is_late else None
        except InterruptedError as stopped:
            print(stopped, flush=True)
            return False
        self._make_folder(own)
        relay = Relay(self._store, self._spec, self._identity.node, log_name=self._spec.scratch_folder.name)
        if place is not None:
            relay.go_on()
        relay.pass_on()
        try:
            rendezvous = self._meet(first, listening if first == own else None, place)
            if rendezvous is not None:
                self._views.begin(self._spec, self._roster, place or self._roster.places[rendezvous.index])
            self._work(rendezvous, relay)
        except InterruptedError as stopped:
            print(stopped, flush=True)
        finally:
            self._views.close()
            self._pass_on_the_rest(relay)
            if self._views.has_left:
                self._have_nobody_wait()
            shutil.rmtree(self._spec.scratch_folder, ignore_errors=True)
        return not (self._views.is_left_out or self._views.has_left)

    def _claim(self) -> NodePlace:
        """A place among the nodes of a segment under way. Raises as `Joining.claim`."""
        requests = self._requests
        self._joining = Joining(self._store, self._spec, self._order.cluster, self._roster, name_segment(self._spec))
        place = self._joining.claim(
            self._identity.node, self._views.port, lambda: requests.is_stop or requests.is_for_end
        )
        # Of its own: an earlier process of this node may not have heard yet that it is over.
        folder = f"{self._spec.scratch}{AGAIN}{place.claim}"
        self._spec = self._spec.model_copy(update={"scratch": folder})
        print(f"Node {place.node} comes to a segment under way, as number {place.index}.", flush=True)
        return place

    def _make_folder(self, own: FirstNode) -> None:
        folder, node = self._spec.scratch_folder, glob.escape(self._identity.node)
        if self._order.private_folder is not None:
            if Path(self._order.private_folder) not in folder.parents:
                raise ValueError(f"scratch is to be below {self._order.private_folder}, and is {folder.parent}")
            make_private_folder(Path(self._order.private_folder), "scratch")
        # Of segments before that died with this node; one that came back works for a fence that is over.
        for segment in folder.parents[1].glob("*"):
            is_of_others = segment == folder.parent and self._joining is not None
            if why_not_own(segment, folder.parents[1]) is None and not is_of_others:
                for left in [segment / self._identity.node, *segment.glob(f"{node}{AGAIN}*")]:
                    shutil.rmtree(left, ignore_errors=True)  # which refuses a link
        folder.mkdir(parents=True)
        require_locks(folder)
        (folder / LOG_NAME).write_text(f"node {own.node} on {socket.gethostname()}, {', '.join(own.addresses)}\n")

    def _meet(self, first: FirstNode, listening: socket.socket | None, place: NodePlace | None) -> Rendezvous | None:
        """None for a node that is alone. `listening` is the first node's. Raises as `NodeMeeting`, and `StoreError`."""
        num_nodes, requests = self._identity.num_nodes, self._requests
        if place is not None and self._joining is not None:
            return self._joining.meet_at(place)
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
        found = meeting.join(self._identity.node) if listening is None else meeting.host(listening)
        self._roster.begin(found.nodes)
        if listening is not None and self._can_others_join:
            self._roster.put()
        return found

    @property
    def _can_others_join(self) -> bool:
        """Whether the others would go on when a node is lost; on GPUs its ranks find that they cannot."""
        is_wanted = self._spec.work == "train" and self._order.cluster.silent_seconds is not None
        return is_wanted and self._spec.train.sum == "exact"

    def _work(self, rendezvous: Rendezvous | None, relay: Relay) -> None:
        sources = open_sources(self._order.notices)
        with (
            self._talking_to_the_store(relay),
            watching(sources, self._notice, print),
            Ranks(self._spec, self._order.grace_seconds, rendezvous) as ranks,
        ):
            while ranks.is_running(POLL_SECONDS):
                self._requests.is_stop |= self._notice.is_made
                if self._requests.is_stop:
                    self._views.leave()
                if self._views.must_stop or self._views.is_left_alone:
                    ranks.stop()
                if self._views.is_left_out:
                    ranks.kill()  # asked to leave, they would ask those to leave, too, who have not gone on yet
                if self._joining is not None and self.is_outside:
                    self._joining.require_patience("they did not train together with its ranks")
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
    def _talking_to_the_store(self, relay: Relay) -> Iterator[None]:
        """In a thread: a store that does not answer does not delay stopping the ranks."""
        is_over = threading.Event()

        def talk() -> None:
            try:
                while not is_over.wait(POLL_SECONDS):
                    relay.pass_on()
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

    def _have_nobody_wait(self) -> None:
        """For who supervises the job: what ranks said last that have left is no sign that they stand still."""
        try:
            no_ranks = NodeStatuses(ranks=[])
            write_node_statuses(self._store, self._spec.run, self._spec.fence, self._identity.node, no_ranks)
        except StoreError as error:
            print(f"The store did not take that the ranks of this node have left: {error}", flush=True)

    def _pass_on_the_rest(self, relay: Relay) -> None:
        for _ in range(LAST_PUTS):
            if relay.pass_on(at_once=True) and self._put_kept_outcome():
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
    node = None
    try:
        node = Node(store, order, identity, requests)
        has_worked = node.run()
    except (ValueError, TimeoutError, RuntimeError) as error:
        if node is not None and node.is_outside:
            raise SystemExit(f"node {identity.node}: {error}") from error
        write_failure(store, order, f"node {identity.node}: {error}", is_final=isinstance(error, ValueError))
        if order.goes_on:
            claim = node.claim if node is not None else 0
            failed = NodeEnd(job=identity.job, node=identity.node, claim=claim, how="failed")
            write_node_end(store, run, fence, failed)
        raise SystemExit(str(error)) from error
    if node.is_outside:
        return None
    if has_worked and may_wait_idle(store, order, requests):
        return wait_idle(store, order, identity, requests, node.claim)
    if order.goes_on:
        left = NodeEnd(job=identity.job, node=identity.node, claim=node.claim, how="left")
        write_node_end(store, run, fence, left)
    return None


if __name__ == "__main__":
    main()
