"""Over real hosts a slow machine and then a slow link are told apart and named, while the run goes on."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.configuration.cluster import ClusterConfig
from tasks.preemption.signals import StopRequest
from tasks.supervision import stragglers as stragglers
from tasks.supervision.hang import HangWatch
from tasks.supervision.watch import supervise
from tests.helpers import hosts as hosts_module
from tests.helpers import slurm_cluster
from tests.helpers.commands import wait_until
from tests.helpers.fault_plans import FaultPlan, read_fired
from tests.helpers.hosts import Hosts, running_hosts
from tests.helpers.leased_segments import ENDLESS, LeasedSegment
from tests.helpers.slurm_cluster import running_slurm

NAMES = ("h1", "h2", "h3")
SLOW_RANK = 1
WINDOW_SECONDS = 10.0  # a minute in the product
SLOW_KILOBITS = 1000  # a second: a step's messages take some tenths of a second


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Each of them is a node of the Slurm that this process uses."""
    if reason := hosts_module.find_reason_to_skip() or slurm_cluster.find_reason_to_skip():
        pytest.skip(reason)
    (tmp_path / "slurm").mkdir()
    with running_hosts(NAMES) as hosts, running_slurm(tmp_path / "slurm", hosts=hosts) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        monkeypatch.chdir(tmp_path)  # where Slurm leaves what it prints itself
        yield hosts


@pytest.mark.slow
@pytest.mark.slurm
def test_a_slow_host_and_then_a_slow_link_are_named_while_the_run_goes_on(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stragglers, "WINDOW_SECONDS", WINDOW_SECONDS)
    for name, value in FaultPlan().slow(SLOW_RANK).environment(tmp_path / "faults", [tmp_path / "store"]).items():
        monkeypatch.setenv(name, value)
    segment = LeasedSegment(tmp_path, ClusterConfig(kind="slurm", nodes=len(NAMES)), ENDLESS, grace_seconds=5)
    caplog.set_level(logging.WARNING)
    with segment.make_job() as job:
        following = threading.Thread(target=supervise, args=(job, HangWatch(600), StopRequest(), lambda _: None))
        following.start()
        try:
            assert wait_until(lambda: len(caplog.messages) == 1)
            (host,) = {rank_status.host for rank_status in job.read_rank_statuses() if rank_status.rank == SLOW_RANK}
            for name in NAMES:
                hosts.slow(name, SLOW_KILOBITS)
            assert wait_until(lambda: len(caplog.messages) == 2)
        finally:
            job.kill()
            following.join()
    slow, network = caplog.messages
    assert len(read_fired(tmp_path / "faults")) == 1
    assert slow.startswith(f"Rank {SLOW_RANK} on {host} is slower than the others: it computes a microbatch in ")
    assert network.startswith("What the ranks send each other takes ")
    assert "The network between h1, h2 and h3 has become slower; it is not broken." in network
