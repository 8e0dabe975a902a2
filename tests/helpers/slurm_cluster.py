"""A real Slurm on this machine: a controller, two nodes and a partition that preempts the other, as Debian packages it.

Invariant: nothing of it outlives the block, no daemon and no process of a job, however the block is left, nor the test
process if that is killed. A process of it is found by SLURM_CONF in its environment, with SLURMD_NODENAME if it is one
of a node, by its descent, or by its log: Slurm's own process of a job step has no environment and no parent.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from tests.helpers.hosts import Hosts
from tests.helpers.prefect_server import find_free_port
from tests.helpers.swept import swept_behind

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
PACKAGES = "slurmctld slurmd slurm-client munge"
NODES = ("n1", "n2")
PARTITION, PREEMPTING_PARTITION = "main", "urgent"
SERVES_REQUEUED_AFTER_SECONDS = 5
# From SIGTERM to SIGKILL.
KILL_WAIT_SECONDS = 30
START_SECONDS = 60.0
LONGEST_SECONDS = 120.0  # for what hangs, not for what is slow
POLL_SECONDS = 0.05
LAST_LINES = 8
LONGEST_SOCKET_PATH = 107  # Linux's limit; the longest of them is a job step's, in the folder of its node
LOOPBACK_ADDRESS = "127.0.0.1"
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
# A requeued job waits as long as the credential of its earlier start is valid: 120 s if nothing is said.
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_seconds}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# No cgroups, whatever this machine has of them; nodes have more CPUs than the machine, so that any machine will do.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Nobody waits for a minute where a second will do; a save has half a minute between SIGTERM and SIGKILL.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdTimeout=5
KillWait={kill_wait_seconds}
MinJobAge=300
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName={partition} Nodes=ALL Default=YES PriorityTier=1 PreemptMode={mode} GraceTime={grace}
PartitionName={preempting} Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
# The controller calls a node that does not answer again and again for so long, 10 s if nothing is said, before that is
# a missing answer. Clients and nodes keep the 10 s: they wait for a controller that may be slow.
FOR_THE_CONTROLLER = """
MessageTimeout=3
DebugFlags=NO_CONF_HASH
"""


@contextmanager
def running_slurm(
    folder: Path,
    nodes: Sequence[str] = NODES,
    preempt_mode: str = "REQUEUE",
    grace_seconds: int = 10,
    hosts: Hosts | None = None,
) -> Iterator["SlurmCluster"]:
    """A cluster that lives as long as the block, on ports of its own, as root or not; its logs are in the folder.

    A job of the partition `urgent` preempts those of `main`, which is the default. `preempt_mode` is REQUEUE or CANCEL.
    With `hosts` each of them is a node, at its own address; without, all nodes are at this machine's loopback.
    Raises `RuntimeError` with the last lines of the logs if not all nodes are idle within START_SECONDS.
    """
    names = tuple(nodes if hosts is None else hosts.names)
    cluster = SlurmCluster(folder.resolve(), names, preempt_mode, grace_seconds, hosts)
    with swept_behind(sweep, str(cluster.settings)):
        cluster.bring_up()
        yield cluster


def find_reason_to_skip() -> str | None:
    """Why there can be no cluster on this machine, in one sentence; None if there can."""
    missing = [program for program in PROGRAMS if _find_program(program) is None]
    if missing:
        return f"Slurm is not installed ({missing[0]} is missing); on Debian 12: apt-get install {PACKAGES}"
    return None


class SlurmCluster:
    """A cluster of this machine. Its nodes are names: what a node runs is told by `SLURMD_NODENAME`."""

    def __init__(
        self, folder: Path, nodes: tuple[str, ...], preempt_mode: str, grace_seconds: int, hosts: Hosts | None
    ) -> None:
        self.folder = folder
        self.nodes = nodes
        self._hosts = hosts
        self._address = LOOPBACK_ADDRESS if hosts is None else hosts.address
        self.settings = folder / "slurm.conf"
        own = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SCANCEL_", "SQUEUE_", "SINFO_", "SCONTROL_", "MUNGE_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        # For a subprocess that is to use this cluster, or to be set in a test's own environment.
        self.environment: dict[str, str] = clean | {"SLURM_CONF": str(self.settings)}
        self._preemption = (preempt_mode, grace_seconds)
        self._controller_port = find_free_port()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def bring_up(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        self._write_settings()
        self._start_munge()
        self.start_controller()
        for node in self.nodes:
            self._start_node(node)
        self.wait_until_idle(START_SECONDS)

    def call(self, program: str, *arguments: str, folder: Path | None = None) -> str:
        """What a program of Slurm prints, as a user who has nothing set would call it; an error if it fails."""
        result = subprocess.run(
            [program, *arguments], env=self.environment, cwd=folder or self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LONGEST_SECONDS,
        )  # fmt: skip
        if result.returncode != 0:
            raise RuntimeError(f"{program} {' '.join(arguments)}: exit code {result.returncode}: {result.stderr}")
        return result.stdout

    def submit(self, script: str, *options: str, folder: Path | None = None) -> int:
        """Submit a batch script, given by its text, from this folder; the job's id."""
        with (self.folder / "submitted.sh").open("w") as file:
            file.write(script if script.startswith("#!") else f"#!/bin/bash\n{script}\n")
        return int(self.call("sbatch", "--parsable", *options, file.name, folder=folder))

    def read_job(self, job: int) -> dict[str, str]:
        """What `scontrol show job` says of a job, also for MinJobAge seconds (300) after its end."""
        return _read_fields(self.call("scontrol", "show", "job", "-o", str(job)))

    def read_node(self, node: str) -> dict[str, str]:
        """What `scontrol show node` says of a node."""
        return _read_fields(self.call("scontrol", "show", "node", "-o", node))

    def wait_for_job(self, job: int, *states: str) -> dict[str, str]:
        """Wait until a job's state is one of these, as RUNNING or NODE_FAIL; what is known of it then."""
        known: dict[str, str] = {}

        def is_there() -> bool:
            known.clear()
            known.update(self.read_job(job))
            return known["JobState"] in states

        self.wait_until(f"job {job} is {' or '.join(states)}", is_there, lambda: f"It is {known}")
        return known

    def wait_until(
        self, what: str, holds: Callable[[], bool], describe: Callable[[], str] = str, seconds: float = LONGEST_SECONDS
    ) -> None:
        """Wait for a condition; an error with the last lines of the logs if it does not hold in time."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() >= deadline:
                self._fail(f"waited {seconds:.0f} s until {what}. {describe()}")
            time.sleep(POLL_SECONDS)  # Slurm calls nobody back

    def wait_until_idle(self, seconds: float = LONGEST_SECONDS) -> None:
        """Wait until every node is idle and no job is left, neither running nor waiting."""
        self.wait_until("all nodes are idle", self._is_idle, self._describe, seconds)

    def kill_node(self, node: str) -> None:
        """A dead machine: SIGKILL for all that runs on it. Slurm is not told; it notices within about 10 s."""
        _kill_all(lambda: find_processes(self.settings, node))

    def start_node(self, node: str) -> None:
        """Start a node that was killed, once Slurm has noticed; returns when Slurm gives it jobs again.

        Earlier the jobs it had would be taken for running: Slurm tells by the time of its boot that a machine was away
        for a moment, and all nodes have that of this machine.
        """
        self.wait_until(f"{node} is given up", lambda: "DOWN" in self.read_node(node)["State"], self._describe)
        self._start_node(node)
        usable = ("IDLE", "MIXED", "ALLOCATED")
        self.wait_until(f"{node} is back", lambda: self.read_node(node)["State"] in usable, self._describe)

    def stop_controller(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the controller. It saves its state at SIGTERM; with SIGKILL up to five seconds of it are lost.

        A job submitted in these is unknown then, and its number is given again: a node that still runs it is drained.
        """
        daemon = self._daemons["slurmctld"]
        daemon.send_signal(how)
        daemon.wait(LONGEST_SECONDS)

    def start_controller(self) -> None:
        """Start the controller with the state that there is; returns when it answers."""
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.folder / "controller.conf"))
        self.wait_until("slurmctld answers", self._controller_answers, seconds=START_SECONDS)

    def restart_controller(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the controller and start it again; nodes and jobs are left alone."""
        self.stop_controller(how)
        self.start_controller()

    def set_preemption(self, mode: str, grace_seconds: int) -> None:
        """What happens to jobs of `main` that a job of `urgent` preempts: REQUEUE or CANCEL, and after how long."""
        words = (f"PartitionName={PARTITION}", f"PreemptMode={mode}", f"GraceTime={grace_seconds}")
        self.call("scontrol", "update", *words)

    def reset(self) -> None:
        """As after `bring_up`: all daemons run, jobs and their processes are gone, nodes idle, preemption as it was."""
        if self._daemons["slurmctld"].poll() is not None:
            self.start_controller()
        self.call("scancel", "--quiet", "--user", str(os.geteuid()))
        _kill_all(lambda: [one for node in self.nodes for one in self.find_job_processes(node)])
        for node in self.nodes:
            if self._daemons[node].poll() is not None:
                self._start_node(node)
            if "DRAIN" in self.read_node(node)["State"]:
                self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.set_preemption(*self._preemption)
        self.wait_until_idle()

    def find_job_processes(self, node: str) -> list[psutil.Process]:
        """What jobs run on a node, Slurm's own process of a job step among them."""
        return [one for one in find_processes(self.settings, node) if one.pid != self._daemons[node].pid]

    def _write_settings(self) -> None:
        deepest = self.folder / max(self.nodes, key=len) / f"{max(self.nodes, key=len)}_1000.4294967291"
        if len(str(deepest)) > LONGEST_SOCKET_PATH:
            raise ValueError(f"Slurm has sockets below {self.folder}: expected a path that is shorter.")
        host = socket.gethostname().partition(".")[0]
        line = "NodeName={} NodeHostname={} NodeAddr={} Port={} CPUs=4 RealMemory=4000"
        facts = {
            "host": host, "address": self._address, "controller_port": self._controller_port, "folder": self.folder,
            "user": psutil.Process().username(), "requeue_seconds": SERVES_REQUEUED_AFTER_SECONDS,
            "kill_wait_seconds": KILL_WAIT_SECONDS,
            "nodes": "\n".join(
                line.format(node, host, self._address_of(node), find_free_port()) for node in self.nodes
            ),
            "partition": PARTITION, "preempting": PREEMPTING_PARTITION,
            "mode": self._preemption[0], "grace": self._preemption[1],
        }  # fmt: skip
        configuration = CONFIGURATION.format(**facts)
        self.settings.write_text(configuration)
        (self.folder / "controller.conf").write_text(configuration + FOR_THE_CONTROLLER)
        for name in ("state", *self.nodes):
            (self.folder / name).mkdir(parents=True)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "seed")}
        options = [f"--{name}{'-file' * (name != 'socket')}={path}" for name, path in files.items()]
        log = self.folder / "munge.log"
        own = [f"--key-file={key}", f"--log-file={log}", f"--origin={self._address}"]
        self._start("munged", "munged", "--foreground", "--force", *own, *options)
        self.wait_until("munged listens", files["socket"].exists, seconds=START_SECONDS)

    def _start_node(self, node: str) -> None:
        command = [_find_program("slurmd") or "slurmd", "-D", "-f", str(self.settings), "-N", node]
        command = command if self._hosts is None else self._hosts.command_on(node, command)
        self._start(node, *command, SLURMD_NODENAME=node)

    def _address_of(self, node: str) -> str:
        return LOOPBACK_ADDRESS if self._hosts is None else self._hosts.address_of(node)

    def _start(self, name: str, program: str, *arguments: str, **environment: str) -> None:
        command = [_find_program(program) or program, *arguments]
        with (self.folder / f"{name}.out.log").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment | environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _controller_answers(self) -> bool:
        if self._daemons["slurmctld"].poll() is not None:
            self._fail(f"slurmctld ended with exit code {self._daemons['slurmctld'].returncode}")
        with (
            suppress(OSError, RuntimeError),
            socket.create_connection((self._address, self._controller_port), timeout=1),
        ):
            return "is UP" in self.call("scontrol", "ping")
        return False  # not asked before it listens: a client of Slurm repeats that for seconds

    def _is_idle(self) -> bool:
        ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
        if ended:
            self._fail(f"{ended[0]} ended with exit code {self._daemons[ended[0]].returncode}")
        states = self.call("sinfo", "--noheader", "--Node", "--format=%T", f"--partition={PARTITION}").split()
        return states == ["idle"] * len(self.nodes) and not self.call("squeue", "--noheader")

    def _describe(self) -> str:
        return "Slurm reports:\n" + self.call("sinfo", "--Node", "--long") + self.call("squeue")

    def _fail(self, what: str) -> NoReturn:
        said = []
        for log in sorted(self.folder.glob("*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            said += [f"{log.name}:", *(f"    {line}" for line in lines[-LAST_LINES:])]
        raise RuntimeError("\n".join([f"The Slurm cluster in {self.folder} is not as expected: {what}", *said]))


def sweep(settings: str) -> None:
    """SIGKILL for all that belongs to the cluster with these settings; returns when nothing of it is left."""
    _kill_all(lambda: find_processes(Path(settings)))


def _find_program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _read_fields(line: str) -> dict[str, str]:
    """Of `Name=value Name=value`: a word without a `=` goes on with the value before it."""
    fields: dict[str, str] = {}
    name = ""
    for word in line.split():
        before, equals, after = word.partition("=")
        if equals and before[:1].isalpha():
            name = before
            fields[name] = after
        elif name:
            fields[name] += f" {word}"
    return fields


def find_processes(settings: Path, node: str | None = None) -> list[psutil.Process]:
    """The living processes of a cluster or of one node of it, Slurm's own first; never this process.

    Clients are among the former: whatever has this SLURM_CONF in its environment.
    """
    found = [one for one in psutil.process_iter() if _belongs(one, settings, node)]
    for one in list(found):
        with suppress(psutil.NoSuchProcess):
            found += one.children(recursive=True)
    living = [one for one in dict.fromkeys(found) if one.pid != os.getpid() and _is_alive(one)]
    return sorted(living, key=lambda one: not _is_slurms_own(one))


def _belongs(process: psutil.Process, settings: Path, node: str | None) -> bool:
    with suppress(psutil.Error, OSError):
        environment = process.environ()
        if environment.get("SLURM_CONF") == str(settings):
            return node in (None, environment.get("SLURMD_NODENAME"))
        if _is_slurms_own(process):
            logs = [Path(opened.path) for opened in process.open_files()]
            return any(
                log.match(f"slurmd-{node}.log" if node else "slurm*.log") and log.parent == settings.parent
                for log in logs
            )
    return False


def _is_slurms_own(process: psutil.Process) -> bool:
    """Whether it is a daemon or a process of a job step, which would tell the controller of what dies beside it."""
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith("slurm") and not process.name().startswith("slurm_script")
    return False


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill_all(find: Callable[[], list[psutil.Process]]) -> None:
    """SIGKILL until none is found any more: one may start another while it is killed."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while processes := find():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"processes survived SIGKILL for {LONGEST_SECONDS:.0f} s: {processes}")
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=POLL_SECONDS)
