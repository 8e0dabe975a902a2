"""A segment as one job of a Slurm cluster: each node's task is `cluster/node.py`, all else goes through the store.

Invariant: a job's name is made of the lease it was submitted for, so the holder of that lease finds the job, also where
the answer to `sbatch` was lost; and a job that Slurm queued again is over for us: its fence is used. A job whose
segment was lost may serve the next one, with the nodes that are left: nothing waits in the queue then.
"""

import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from storage.errors import ClusterUnavailableError, StoreError
from storage.objects.store import Store
from tasks.cluster.orders import JobOrder, write_order, write_order_once
from tasks.cluster.ranks import STACKS_SECONDS
from tasks.cluster.relay import RELAY_SECONDS
from tasks.cluster.relayed import Relayed
from tasks.cluster.slurm.commands import (
    SlurmState,
    cancel,
    count_idle_nodes,
    find_job,
    find_lost_nodes,
    give_back,
    read_state,
    send,
    submit,
)
from tasks.cluster.slurm.nodes import SegmentNodes
from tasks.cluster.slurm.submission import batch_script, submission
from tasks.text import count_of
from training.metrics.reporter import Report
from training.rank_status import RankStatus

RUNNING = "RUNNING"
ASK_SECONDS = 2.0
ASK_ABOUT_IDLE_SECONDS = 30.0
SUBMITTING_SECONDS = 120.0
# Beyond the time that the ranks have, for what Slurm itself does to end a job.
ENDING_SECONDS = 60.0
PREEMPTED = "Slurm gave the job's nodes to another job"
REQUEUED = "Slurm queued the job again: a node failed, another job took its nodes, or a user asked for it"


class SlurmJob:
    """A `Job`, found by its name; without an `order` nothing can be submitted. `number` is Slurm's own for it.

    With `nodes` it is a job that served the segment before, and these of its nodes wait for this one.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        run: str,
        fence: int,
        grace_seconds: float,
        order: JobOrder | None = None,
        nodes: list[str] | None = None,
    ) -> None:
        self._name, self._store = name, store
        self._is_kept = nodes is not None
        self._nodes = SegmentNodes(store, run, fence, name, nodes)
        self._grace_seconds = grace_seconds
        self._order = order
        self.number = 0
        self._state: SlurmState | None = SlurmState("PENDING")
        self._relayed = Relayed(store, run, fence)
        self._asked_at = self._grow_at = 0.0
        self._stop_deadline: float | None = None
        self._end_deadline: float | None = None
        self._is_done = False
        self._is_asked_to_leave = self._is_killed = self._is_left = self._is_given_up = False

    def find(self) -> bool:
        """Whether the controller remembers such a job. Raises `ClusterUnavailableError`."""
        found = find_job(self._name)
        self.number = found or 0
        return found is not None

    def __enter__(self) -> Self:
        deadline = time.monotonic() + SUBMITTING_SECONDS
        while True:
            try:
                self._take_up() if self.find() else self._submit()
                return self
            except ClusterUnavailableError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(ASK_SECONDS)  # the controller may be starting; it may have taken the job, too

    def _take_up(self) -> None:
        if self._order is not None:
            write_order_once(self._store, self._order)

    def _submit(self) -> None:
        assert self._order is not None
        if self._is_kept:
            self._state = None  # it is gone; one that is submitted now has other nodes
            return
        write_order(self._store, self._order)
        order = self._order
        options = submission(order.cluster, order.segment.train, order.grace_seconds, self._name)
        options = [*(["--no-kill"] if order.goes_on else []), *options]
        self.number = submit(options, batch_script(order.segment, order.goes_on))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_left or self._is_over:
            return
        self.stop()
        while self.is_running(ASK_SECONDS):
            pass

    def is_running(self, wait_seconds: float) -> bool:
        """As every job's. Raises `ClusterUnavailableError` if the job does not end though it was killed.

        One that is only not over since a node of it does not answer is given up: its fence is, so it changes nothing.
        """
        time.sleep(wait_seconds)  # Slurm does not signal that a job's state changes
        if time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._ask()
        if self._end_deadline is not None and self._stop_deadline is None and time.monotonic() >= self._end_deadline:
            self._stop_deadline = time.monotonic()
        if self._stop_deadline is not None and not self._is_over:
            self._see_to_its_end(time.monotonic() - self._stop_deadline)
        return not self._is_over

    @property
    def _is_over(self) -> bool:
        return self._state is None or self._state.is_over or self._is_done or self._is_given_up

    def _see_to_its_end(self, late_seconds: float) -> None:
        """A controller that does not answer is asked again the next time."""
        with suppress(ClusterUnavailableError):
            if late_seconds >= 0:
                self._kill()
            else:
                self._ask_to_leave()
        if late_seconds <= ENDING_SECONDS:
            return
        self._is_given_up = self._state is not None and self._state.is_ending
        if not self._is_given_up:
            raise ClusterUnavailableError(
                f"Slurm job {self.number} ({self._name}) was cancelled and did not end within {ENDING_SECONDS:.0f} s: "
                f"{self._state}. Look at it with `scontrol show job {self.number}`; when it is over, run this again."
            )

    def _ask_to_leave(self) -> None:
        if not self._is_asked_to_leave:
            if self._state is not None and self._state.is_waiting:
                cancel(self.number)
            else:
                send("TERM", self.number)
            self._is_asked_to_leave = True

    def _kill(self) -> None:
        if not self._is_killed:
            send("KILL", self.number)
            cancel(self.number)
            self._is_killed = True

    def describe_wait(self) -> str | None:
        if self._state is None or not self._state.is_waiting:
            return None
        return f"Slurm job {self.number} waits in the queue{self._state.reason and f': {self._state.reason}'}"

    def describe_growth(self) -> str | None:
        """Asked of Slurm every half minute, once the segment has run for as long as configured."""
        cluster = self._order.cluster if self._order is not None else None
        is_due = time.monotonic() >= self._grow_at
        if cluster is None or cluster.grow_seconds is None or not is_due or self._stop_deadline is not None:
            return None
        state, is_first = self._state, self._grow_at == 0
        if state is None or state.name != RUNNING:
            return None
        self._grow_at = time.monotonic() + (cluster.grow_seconds if is_first else ASK_ABOUT_IDLE_SECONDS)
        missing = cluster.nodes - state.num_nodes
        with suppress(ClusterUnavailableError):
            idle = 0 if is_first or missing <= 0 else count_idle_nodes(state.partition)
            return _describe_growth(state, min(idle, missing)) if idle else None
        return None

    def read_reports(self) -> list[Report]:
        return self._relayed.read_reports(is_last=self._is_over)

    def read_rank_statuses(self) -> list[RankStatus]:
        return self._relayed.read_rank_statuses()

    def stop(self) -> None:
        """The thread that waits for the job asks Slurm: this may be another thread's request to stop."""
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + self._grace_seconds

    def write_stacks(self) -> None:
        """By SIGQUIT to what runs on the nodes, which puts them into the store."""
        with suppress(ClusterUnavailableError):
            send("QUIT", self.number)
            time.sleep(STACKS_SECONDS + 2 * RELAY_SECONDS)  # nothing signals that the last node is done

    def kill(self) -> None:
        """End the ranks as `stop` does, without time to leave. In a job that may go on only the ranks are killed."""
        if self._order is None or not self._order.goes_on:
            self._stop_deadline = time.monotonic()
        elif self._end_deadline is None:
            self._end_deadline = time.monotonic() + ENDING_SECONDS

    def find_idle_nodes(self) -> list[str]:
        """The nodes that wait for the next segment; none of a job that is over. Raises `ClusterUnavailableError`."""
        if not self.find():
            return []
        state = read_state(self.number, self._name)
        return self._nodes.find_idle_nodes(state.nodes) if state is not None and state.name == RUNNING else []

    def release(self) -> None:
        """End it, whose nodes wait for a segment that will not come. Raises `ClusterUnavailableError`."""
        if self.find():
            give_back(self.number)

    def leave(self) -> None:
        self._is_left = True

    def describe_end(self) -> str | None:
        state = self._state
        if state is not None and state.was_preempted:
            return PREEMPTED
        if state is not None and state.restarts:
            return REQUEUED
        # Slurm, which cancels a job that is given back, knows not why; and its answer to that may have been lost.
        if self._is_done or self._nodes.have_left:
            return self._nodes.describe_lost()
        if state is None or state.name == "COMPLETED":
            return None
        if self._is_given_up:
            return f"Slurm could not end the job within {ENDING_SECONDS:.0f} s: a node of {state.nodes} does not answer"
        if state.name == "NODE_FAIL":
            return f"Slurm reports {state}: {', '.join(find_lost_nodes(state.nodes)) or 'the node is back'}"
        return f"Slurm reports {state}; what it printed is in {state.output}"

    def read_log(self) -> str:
        return self._relayed.read_log()

    def _ask(self) -> None:
        """A controller that does not answer, or is started anew, knows the job again when it is back."""
        self._asked_at = time.monotonic()
        with suppress(ClusterUnavailableError):
            self._state = read_state(self.number, self._name)
            if self._state is not None and self._state.is_waiting and self._state.restarts:
                cancel(self.number)
            if self._state is not None and self._state.name == RUNNING:
                self._look_at_nodes(self._state.nodes)

    def _look_at_nodes(self, held: str) -> None:
        """Whether they are done with the segment; a store that does not answer is asked the next time."""
        with suppress(StoreError):
            self._nodes.look(held)
            if self._nodes.must_be_killed(is_wanted=self._end_deadline is not None):
                send("USR1", self.number)
                self._nodes.note_killed()
            if self._nodes.have_left:
                give_back(self.number)
            self._is_done = self._nodes.are_idle or self._nodes.have_left


def _describe_growth(state: SlurmState, idle: int) -> str:
    free = "1 more is idle" if idle == 1 else f"{idle} more are idle"
    return (
        f"The Slurm job has {count_of(state.num_nodes, 'node')}, and {free} in partition {state.partition}: the ranks "
        "are asked to save and leave, and the next job takes them too (cluster.grow_seconds)."
    )
