"""A run over three hosts with addresses of their own, in a bucket; ranks of it stand still where a fault is to happen.

Invariant: one rank on each host, so that whose host it is that something happens to is known by its rank.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.faults.campaign.clusters import is_stopped, job_of
from tests.faults.campaign.network import new_bucket_run, running_server
from tests.faults.campaign.site import STEPS, Site, start_logged
from tests.helpers import hosts as hosts_helper
from tests.helpers import slurm_cluster
from tests.helpers.commands import wait_until
from tests.helpers.fault_plans import FaultPlan, read_fired
from tests.helpers.faulty_proxy import running_proxy
from tests.helpers.hosts import Hosts, running_hosts
from tests.helpers.slurm_cluster import KILL_WAIT_SECONDS, SlurmCluster, running_slurm
from training.agents.rank import TITLE
from training.views.view import View

NAMES = ("h1", "h2", "h3")
SETTINGS: dict[str, Any] = {
    "cluster__kind": "slurm",
    "cluster__nodes": len(NAMES),
    "cluster__min_nodes": len(NAMES) - 1,
    "train__ranks": 1,
    "segment__hang_seconds": 60,
    "segment__lost_seconds": 15,
    "segment__grace_seconds": 10,
    "retry__attempts": 3 * STEPS,
}
# A store that does not answer is asked again after so long, 10 and 60 s if nothing is said.
STORE_SECONDS = 5
COMMAND_SECONDS = 600
# A host that comes back is told then that its job is over: the job has so long from SIGTERM to SIGKILL, and its srun so
# long again for its step.
SLURM_ENDS_SECONDS = 2 * KILL_WAIT_SECONDS + 10
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class HostCluster:
    """Hosts, the cluster whose nodes they are, and the address of the store that all of them reach."""

    hosts: Hosts
    slurm: SlurmCluster
    endpoint: str


@contextmanager
def running_cluster(site: Site) -> Iterator[HostCluster]:
    """All of it, on this machine, as long as the block lasts. Raises `RuntimeError` where there can be none."""
    reason = hosts_helper.find_reason_to_skip() or slurm_cluster.find_reason_to_skip()
    if reason is not None:
        raise RuntimeError(reason)
    folder = site.new_folder("hosts")
    folder.mkdir(parents=True)
    with (
        running_hosts(NAMES) as hosts,
        running_server(site) as server,
        running_proxy(server, hosts.store_address) as proxy,
        running_slurm(folder, hosts=hosts) as slurm,
    ):
        yield HostCluster(hosts, slurm, proxy.endpoint)


def lose_power(cluster: HostCluster, host: str) -> None:
    """No process is left, and nobody is told."""
    cluster.hosts.cut(host)
    cluster.slurm.kill_node(host)


def get_power_back(cluster: HostCluster, host: str) -> None:
    cluster.hosts.mend(host)
    cluster.slurm.start_node(host)


def cut_from_hosts(cluster: HostCluster, host: str) -> None:
    """Slurm and the store hear of it as before; what it has to say to other ranks is lost."""
    for name in {*NAMES} - {host}:
        cluster.hosts.cut_from(host, cluster.hosts.address_of(name))


class HostRun:
    """The command of such a run, from its start on, which meets a plan; `settings` come before those of all."""

    def __init__(self, site: Site, cluster: HostCluster, name: str, plan: FaultPlan, **settings: Any) -> None:
        self.cluster = cluster
        self._log, self._folder = site.new_folder(name).with_suffix(".log"), site.new_folder(name)
        self._folder.mkdir(parents=True)
        profile = self._folder / "aws"
        profile.write_text(f"[default]\nread_timeout = {STORE_SECONDS}\nconnect_timeout = {STORE_SECONDS}\n")
        output = f'["--output={self._folder}/job-%j.out"]'
        self.runner = new_bucket_run(site, cluster.endpoint, **{**SETTINGS, **settings, "cluster__sbatch": output})
        self.runner.environment = {
            **self.runner.environment,
            "AWS_CONFIG_FILE": str(profile),
            "SLURM_CONF": cluster.slurm.environment["SLURM_CONF"],
        }
        with plan.injected(self.runner, self._folder):
            self.command: subprocess.Popen[bytes] = start_logged(self.runner, self._log)

    def said(self) -> str:
        """What the command has printed."""
        return self._log.read_text()

    def printed(self) -> list[str]:
        """The lines of the output of its jobs."""
        return [line for job in self._folder.glob("job-*.out") for line in _read_lines(job)]

    def look(self) -> None:
        """Called again and again while something is waited for."""

    def find_left_behind(self) -> str | None:
        """What runs on the hosts though the run is complete and Slurm has had the time to end all of it, in words."""
        self.cluster.slurm.wait_until_idle()
        deadline = time.monotonic() + SLURM_ENDS_SECONDS
        while (left := self._find_job_processes()) and time.monotonic() < deadline:
            self.look()
            time.sleep(POLL_SECONDS)  # Slurm calls nobody back
        self.look()
        return f"processes are left: {left}" if left else None

    def wait_for_still_rank(self, fault: int) -> int:
        """The process that this fault of the plan has stopped."""
        self.wait(lambda: bool(self._find_still(fault)))
        return self._find_still(fault)[0]

    def read_marks(self, fault: int) -> list[dict[str, Any]]:
        """Where this fault of the plan took place."""
        return [mark for mark in self.read_fired() if mark["fault"] == fault]

    def read_fired(self) -> list[dict[str, Any]]:
        """Where any fault of the plan took place."""
        return read_fired(self._folder)

    def find_joined(self) -> set[int]:
        """The ranks that have joined in a view, where all nodes have it in their scratch: ranks look for it there."""
        folders = list(Path(self.runner.settings["scratch"]).glob("**/views"))
        return set.intersection(*map(_find_joined, folders)) if folders else set()

    def find_host(self, rank: int, job: int) -> str:
        """Where this rank of a job is; of an earlier job there may be one, too, on a host that is not free yet."""
        for name in NAMES:
            for process in self.cluster.slurm.find_job_processes(name):
                with suppress(psutil.NoSuchProcess):
                    if f"{TITLE} {rank} " in "".join(process.cmdline()) and job_of(process.pid) == job:
                        return name
        raise RuntimeError(f"rank {rank} is on no host: {self.said()[-800:]}")

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until it holds. Raises `RuntimeError` if the command ends before."""

        def holds() -> bool:
            self.look()
            return condition()

        if not wait_until(holds, self.command):
            raise RuntimeError(f"the command ended too early: {self.said()[-800:]}")

    def _find_job_processes(self) -> dict[str, list[psutil.Process]]:
        return {name: found for name in NAMES if (found := self.cluster.slurm.find_job_processes(name))}

    def _find_still(self, fault: int) -> list[int]:
        return [mark["pid"] for mark in self.read_marks(fault) if is_stopped(mark["pid"])]


def _read_lines(path: Path) -> list[str]:
    """Of a file that is written meanwhile."""
    return path.read_text(errors="replace").splitlines()


def _find_joined(folder: Path) -> set[int]:
    views = (View.model_validate_json(path.read_text()) for path in folder.glob("[0-9]*[0-9].json"))
    return {member.slot for view in views for member in view.joined}
