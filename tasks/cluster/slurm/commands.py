"""Slurm's own commands, and the state of a job that they report.

Invariant: a controller that does not answer is no evidence about a job; only an answer ends one.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import ClusterUnavailableError, ConfigurationError

COMMAND_SECONDS = 30.0
# These a client has to keep; all others are about the job in which this process may run itself.
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
# squeue(1), JOB STATE CODES: in these a job waits, or has not left its nodes.
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
ENDING = "COMPLETING"
UNDER_WAY = ("RUNNING", ENDING, "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")
NOTHING = "None"
NOT_AVAILABLE = "Requested node configuration is not available"
# sinfo(1): in these a node gets no job now, and may later.
OUT_OF_SERVICE = "down,drain,fail,maint,no_respond"
LIST_NODES = ("sinfo", "--noheader", "--Node", "--format=%N")
UNKNOWN_JOB = "Invalid job id"
NO_ANSWER = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Socket timed out",
    "Zero Bytes were transmitted",
)


@dataclass(frozen=True)
class SlurmState:
    """State of a job, as the controller reports it."""

    name: str
    reason: str = ""
    restarts: int = 0
    was_preempted: bool = False
    nodes: str = ""
    num_nodes: int = 0
    partition: str = ""
    output: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.name in WAITING

    @property
    def is_ending(self) -> bool:
        """Whether Slurm is ending it and waits for its nodes' answers."""
        return self.name == ENDING

    @property
    def is_over(self) -> bool:
        return self.name not in WAITING + UNDER_WAY

    def __str__(self) -> str:
        return f"{self.name}, {self.reason}" if self.reason else self.name


def submit(options: Sequence[str], script: str) -> int:
    """Hand a batch script in; the job's number. Raises `ConfigurationError` if Slurm refuses it."""
    return int(_call(["sbatch", "--parsable", *options], script).strip().partition(";")[0])


def require_acceptable(options: Sequence[str]) -> None:
    """Raise `ConfigurationError` if Slurm would refuse a job with these, or is not here. Nothing is submitted."""
    try:
        _call(["sbatch", "--test-only", *options], script="#!/bin/sh\n")
    except ConfigurationError as error:
        # A test fails in the same way when there are enough nodes and some are down; a job that is submitted waits for
        # them.
        if NOT_AVAILABLE not in str(error) or not _call([*LIST_NODES, f"--states={OUT_OF_SERVICE}"]).strip():
            raise


def find_job(name: str) -> int | None:
    """The newest job of this name that the controller still remembers, or None."""
    numbers = _call(["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A"]).split()
    return max(map(int, numbers), default=None)


def read_state(job: int, name: str) -> SlurmState | None:
    """None if the controller has forgotten the job: it is over, since it remembers all others.

    One that dies within seconds of a submission forgets it, and gives its number to the next job.
    """
    try:
        text = _call(["scontrol", "show", "job", "--oneliner", str(job)])
    except ConfigurationError as error:
        if UNKNOWN_JOB in str(error):
            return None
        raise
    fields = dict(part.split("=", 1) for part in text.split() if "=" in part)
    if fields["JobName"] != name:
        return None
    reason = fields.get("Reason", NOTHING)
    return SlurmState(
        name=fields["JobState"],
        reason="" if reason == NOTHING else reason,
        restarts=int(fields.get("Restarts", 0)),
        was_preempted=fields.get("PreemptTime", NOTHING) != NOTHING,
        nodes=fields.get("NodeList", ""),
        num_nodes=int(fields.get("NumNodes", "0").partition("-")[0]),
        partition=fields.get("Partition", ""),
        output=fields.get("StdOut", ""),
    )


def find_lost_nodes(nodes: str) -> list[str]:
    """Of these, in Slurm's way of writing several, those that are down, each with the reason that Slurm gives."""
    lines = _call(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--states=down", "--format=%N (%E)"])
    return sorted(set(lines.splitlines()))  # one line for each partition that has the node


def count_idle_nodes(partition: str) -> int:
    """Machines of a partition that nothing runs on."""
    return len(set(_call([*LIST_NODES, f"--partition={partition}", "--states=idle", "--responding"]).split()))


def list_names(nodes: str) -> list[str]:
    """Each of several nodes, given in Slurm's way of writing them."""
    return _call(["scontrol", "show", "hostnames", nodes]).split() if nodes else []


def send(signal_name: str, job: int) -> None:
    """A signal to all tasks of a job's steps. A job that is over, or waits, is left as it is."""
    _scancel([f"--signal={signal_name}", str(job)])


def cancel(job: int) -> None:
    """SIGTERM, and after Slurm's KillWait SIGKILL; a job that waits is over at once."""
    _scancel([str(job)])


def give_back(job: int) -> None:
    """End a job in which no rank has anything to save: `srun` is killed, which would wait for nodes that are lost."""
    _scancel(["--signal=KILL", "--batch", str(job)])
    cancel(job)


def _scancel(arguments: list[str]) -> None:
    try:
        _call(["scancel", *arguments])
    except ConfigurationError as error:
        if UNKNOWN_JOB not in str(error):
            raise


def _call(command: list[str], script: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    environment |= {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, env=environment, timeout=COMMAND_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"cluster.kind = 'slurm', but {command[0]} is not on this machine's PATH. Run this where Slurm's commands "
            "are, for instance on a login node of the cluster."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ClusterUnavailableError(f"Slurm did not answer {command[0]} within {COMMAND_SECONDS:.0f} s.") from error
    stderr = done.stderr.strip()
    if done.returncode == 0:
        return done.stdout
    if any(words in stderr for words in NO_ANSWER):
        raise ClusterUnavailableError(f"Slurm's controller does not answer {command[0]}: {stderr}")
    raise ConfigurationError(f"Slurm refused {' '.join(command)}: {stderr}")
