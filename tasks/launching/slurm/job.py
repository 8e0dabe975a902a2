"""A segment as one job of a Slurm cluster: each node's task is `node.py`, all else goes through the store.

Invariant: a job's name is made of the lease it works for, so whoever holds that lease finds the job that was submitted
for it, also where the answer to `sbatch` was lost; and a job that Slurm queued again is over for us: its fence is used.
"""

import shlex
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from storage.errors import ClusterUnavailableError
from storage.objects.digests import sha256_of_bytes
from storage.objects.store import Store
from tasks.launching.configuration import ClusterConfig
from tasks.launching.orders import JobOrder, write_order
from tasks.launching.processes import environment_of_installation
from tasks.launching.ranks import STACKS_SECONDS
from tasks.launching.relay import RELAY_SECONDS
from tasks.launching.relayed import Relayed
from tasks.launching.slurm.commands import (
    SlurmState,
    cancel,
    find_job,
    find_lost_nodes,
    read_state,
    send,
    submit,
)
from training.configuration import TrainConfig
from training.pulse import RankPulse
from training.specification import SegmentSpec
from training.watching.reporter import Report

ASK_SECONDS = 2.0
SUBMITTING_SECONDS = 120.0
# Beyond the time that the ranks have, for what Slurm itself does to end a job.
ENDING_SECONDS = 60.0
PREEMPTED = "Slurm gave the job's nodes to another job"
REQUEUED = "Slurm queued the job again: a node failed, another job took its nodes, or somebody asked for it"


class SlurmJob:
    """A `Job`, found by its name; without an `order` nothing can be submitted. `number` is Slurm's own for it."""

    def __init__(
        self, name: str, store: Store, run: str, fence: int, grace_seconds: float, order: JobOrder | None = None
    ) -> None:
        self._name, self._store, self._run, self._fence = name, store, run, fence
        self._grace_seconds = grace_seconds
        self._order = order
        self.number = 0
        self._state: SlurmState | None = SlurmState("PENDING")
        self._relayed = Relayed(store, run, fence)
        self._asked_at = 0.0
        self._stop_deadline: float | None = None
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
                if not self.find():
                    self._submit()
                return self
            except ClusterUnavailableError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(ASK_SECONDS)  # the controller may be starting; it may have taken the job, too

    def _submit(self) -> None:
        assert self._order is not None
        write_order(self._store, self._order)
        order = self._order
        options = submission(order.cluster, order.segment.train, order.grace_seconds, self._name)
        self.number = submit(options, batch_script(order.segment))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_left:
            return
        self.stop()
        while self.is_running(ASK_SECONDS):
            pass

    def is_running(self, wait_seconds: float) -> bool:
        """As every job's. Raises `ClusterUnavailableError` if the job does not end though it was killed.

        One that is only not over since a node of it does not answer is given up: its fence is, so it changes nothing.
        """
        time.sleep(wait_seconds)  # Slurm tells nobody when a job's state changes
        if time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._ask()
        if self._stop_deadline is not None and not self._is_over:
            self._see_to_its_end(time.monotonic() - self._stop_deadline)
        return not self._is_over

    @property
    def _is_over(self) -> bool:
        return self._state is None or self._state.is_over or self._is_given_up

    def _see_to_its_end(self, late_seconds: float) -> None:
        """A controller that does not answer is told the next time."""
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

    def read_reports(self) -> list[Report]:
        return self._relayed.read_reports(is_last=self._is_over)

    def read_pulses(self) -> list[RankPulse]:
        return self._relayed.read_pulses()

    def stop(self) -> None:
        """Slurm is told by whoever waits for the job: this may be another thread's wish."""
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + self._grace_seconds

    def write_stacks(self) -> None:
        """By SIGQUIT to what runs on the nodes, which puts them into the store."""
        with suppress(ClusterUnavailableError):
            send("QUIT", self.number)
            time.sleep(STACKS_SECONDS + 2 * RELAY_SECONDS)  # nobody tells when the last node is done

    def kill(self) -> None:
        """As `stop`, without time to leave."""
        self._stop_deadline = time.monotonic()

    def leave(self) -> None:
        self._is_left = True

    def describe_end(self) -> str | None:
        state = self._state
        if state is not None and state.was_preempted:
            return PREEMPTED
        if state is not None and state.restarts:
            return REQUEUED
        if state is None or state.name == "COMPLETED":
            return None
        if self._is_given_up:
            return f"Slurm could not end the job within {ENDING_SECONDS:.0f} s: a node of {state.nodes} does not answer"
        if state.name == "NODE_FAIL":
            return f"Slurm says {state}: {', '.join(find_lost_nodes(state.nodes)) or 'the node is back'}"
        return f"Slurm says {state}; what it printed is in {state.output}"

    def read_log(self) -> str:
        return self._relayed.read_log()

    def _ask(self) -> None:
        """A controller that does not answer, or is started anew, knows the job again when it is back."""
        self._asked_at = time.monotonic()
        with suppress(ClusterUnavailableError):
            self._state = read_state(self.number, self._name)
            if self._state is not None and self._state.is_waiting and self._state.restarts:
                cancel(self.number)


def job_name(store: Store, run: str, fence: int) -> str:
    """Of the job for a lease; two stores may have a run of the same name."""
    return f"holdfast-{run}-{fence:08d}-{sha256_of_bytes(store.address.encode())[:8]}"


def submission(cluster: ClusterConfig, train: TrainConfig, grace_seconds: float, name: str) -> list[str]:
    """The options of `sbatch` for a job."""
    options = {
        "--job-name": name,
        "--nodes": cluster.nodes if cluster.min_nodes is None else f"{cluster.min_nodes}-{cluster.nodes}",
        "--cpus-per-task": cluster.num_cpus(train),
        "--signal": f"TERM@{grace_seconds:.0f}",
        "--partition": cluster.partition,
        "--account": cluster.account,
        "--time": cluster.time_limit,
        "--gpus-per-node": cluster.gpus_per_node,
    }
    # Queued again by Slurm, a job would begin the steps anew that its ranks have saved: the next segment is a new one.
    return [
        "--no-requeue",
        *(f"{name}={value}" for name, value in options.items() if value is not None),
        *cluster.sbatch,
    ]


def batch_script(spec: SegmentSpec) -> str:
    """One task on each node; when one of them fails the others have nobody to go on with."""
    environment = environment_of_installation()
    command = [sys.executable, "-u", "-m", "tasks.launching.node", spec.store, spec.run, str(spec.fence)]
    command += ["--cache", spec.cache] if spec.cache is not None else []
    return "\n".join(
        [
            "#!/bin/bash",
            f"export PYTHONSAFEPATH=1 PYTHONPATH={shlex.quote(environment['PYTHONPATH'])}",
            'exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" '
            + shlex.join(command),
            "",
        ]
    )
