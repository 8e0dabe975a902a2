"""What ranks owe whoever supervises them, wherever they run: one suite over this machine, Slurm and Kubernetes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints.checkpoints import hash_weights
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.segments import find_outcome
from tasks.cluster.job import Job
from tasks.cluster.launchers import make_job, name_job
from tasks.cluster.orders import JobOrder
from tasks.cluster.processes import POLL_SECONDS
from tasks.configuration.cluster import ClusterConfig, KubernetesConfig
from tests.helpers.commands import processes_mentioning, wait_until
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.kubernetes_cluster import IMAGE
from tests.helpers.kubernetes_server import NAMESPACE
from tests.helpers.runs import lease_run, make_run
from tests.helpers.slurm_cluster import SlurmCluster
from tests.helpers.training import checkpoint_at, make_spec
from training.metrics.reporter import Report

# Of all ranks, wherever they are.
WORLD_SIZE = 2
RUN = "small"
everywhere = pytest.mark.parametrize("launch", ["local", "slurm", "kubernetes"], indirect=True)
# Pods that are asked to leave are evicted ones in `test_kubernetes_pods.py`, too; ranks of this machine are asked in
# `test_interruptions.py`.
mostly = pytest.mark.parametrize(
    "launch",
    ["slurm", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("local", "kubernetes"))],
    indirect=True,
)


@dataclass
class Launched:
    """A segment that can be launched, and where its things are."""

    store: LocalStore
    fence: int
    make: Callable[[], Job]
    scratch: Path


Launch = Callable[..., Launched]


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Makes a segment with a lease in a manifest: two ranks of this machine, or one on each of two nodes."""
    cluster = ClusterConfig()
    if request.param == "slurm":
        slurm: SlurmCluster = request.getfixturevalue("slurm")
        monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        monkeypatch.chdir(tmp_path)  # where Slurm leaves what it prints itself
        cluster = ClusterConfig(kind="slurm", nodes=WORLD_SIZE)
    elif request.param == "kubernetes":
        request.getfixturevalue("kubernetes")
        own = KubernetesConfig(image=IMAGE, namespace=NAMESPACE)
        cluster = ClusterConfig(kind="kubernetes", nodes=WORLD_SIZE, kubernetes=own)
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)

    def make(**train: Any) -> Launched:
        fence = lease_run(make_run(store, RUN), WORLD_SIZE)
        scratch = tmp_path / "runs" / RUN / f"{fence:08d}"
        spec = make_spec(store, dataset, scratch, fence, **{"ranks": WORLD_SIZE // cluster.nodes, **train})
        order = JobOrder(segment=spec, cluster=cluster, grace_seconds=30)
        record = name_job(cluster, store, RUN, fence)
        return Launched(store, fence, lambda: make_job(record, order, store), scratch)

    yield make
    assert processes_mentioning(str(tmp_path / "segment")) == []


def follow(job: Job, until: Callable[[list[Report]], bool] = lambda reports: False) -> list[Report]:
    """What is reported until that holds, or until the ranks have ended."""
    reports: list[Report] = []
    while job.is_running(POLL_SECONDS) and not until(reports):
        reports += job.read_reports()
    return reports + job.read_reports()


def has_stepped(reports: list[Report]) -> bool:
    return any(report.step > 0 for report in reports)


@everywhere
def test_a_segment_trains_to_its_end_and_what_it_reports_comes_in_order(launch: Launch) -> None:
    launched = launch()
    with launched.make() as job:
        reports = follow(job)
        assert "\n[rank0]: Saved step 20" in job.read_log()
    outcome = find_outcome(launched.store, RUN, launched.fence)
    assert outcome is not None and (outcome.outcome, outcome.last_step) == ("completed", 20)
    assert outcome.world_size == WORLD_SIZE
    steps = [report.step for report in reports]
    assert steps == sorted(steps) and steps[-1] == 20
    assert [report.checkpoint.step for report in reports if report.checkpoint is not None] == [7, 14, 20]
    weights = hash_weights(launched.store, checkpoint_at(launched.store, 20, launched.fence))
    assert weights == WEIGHTS.setdefault("of the first", weights)


# Of one test's runs on every kind: whichever comes first says what the others must come to.
WEIGHTS: dict[str, str] = {}


@mostly
def test_ranks_that_are_asked_to_leave_save_first(launch: Launch) -> None:
    launched = launch(steps=1_000_000)
    with launched.make() as job:
        follow(job, has_stepped)
        job.stop()
        job.stop()
        follow(job)
    outcome = find_outcome(launched.store, RUN, launched.fence)
    assert outcome is not None and outcome.outcome == "preempted"
    assert checkpoint_at(launched.store, outcome.last_step, launched.fence).index.step == outcome.last_step


@pytest.mark.slow
@everywhere
def test_ranks_say_where_they_are_and_end_when_their_block_is_left(launch: Launch) -> None:
    launched = launch(steps=1_000_000)
    with pytest.raises(KeyboardInterrupt), launched.make() as job:
        follow(job, has_stepped)
        wait_until(lambda: len(job.read_rank_statuses()) == WORLD_SIZE)
        assert sorted(rank_status.rank for rank_status in job.read_rank_statuses()) == list(range(WORLD_SIZE))
        assert wait_until(lambda: asked_for_stacks(job) == {"0:", "1:"})
        raise KeyboardInterrupt
    assert not job.is_running(0)
    outcome = find_outcome(launched.store, RUN, launched.fence)
    assert outcome is not None and outcome.outcome == "preempted"


def asked_for_stacks(job: Job) -> set[str]:
    """The ranks whose stacks are in the log. On a busy machine the time that they are given may be too short."""
    job.write_stacks()
    _, *stacks = job.read_log().split("stacks of rank ")
    return {of_rank[:2] for of_rank in stacks if "training/agents/rank.py" in of_rank}


@pytest.mark.slow
@everywhere
def test_ranks_that_are_killed_leave_no_process_and_the_lease_to_whoever_settles_it(launch: Launch) -> None:
    launched = launch(steps=1_000_000)
    with launched.make() as job:
        follow(job, has_stepped)
        job.kill()
        follow(job)
    assert wait_until(lambda: processes_mentioning(str(launched.scratch)) == [])
    assert Manifest(launched.store, RUN).load_head().state.lease is not None
