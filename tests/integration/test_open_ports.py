"""Ranks of one machine are reached by nobody else: what torch listens on is the loopback, if at all."""

from pathlib import Path

import psutil

from storage.objects.local_store import LocalStore
from storage.objects.private_folder import PRIVATE_MODE
from tasks.cluster.ranks import RENDEZVOUS_FOLDER
from tests.helpers.commands import processes_mentioning, wait_until
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import launch, make_spec

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def test_two_ranks_listen_on_the_loopback_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=1_000_000, ranks=2)
    with launch(spec) as ranks:
        assert wait_until(lambda: bool(ranks.read_reports()) or not ranks.is_running(0))
        assert ranks.is_running(0), ranks.read_log()
        processes = [psutil.Process(pid) for pid in processes_mentioning(str(spec.scratch_folder))]
        assert len(processes) >= 3  # the agent and two ranks
        listening = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        (rendezvous,) = spec.scratch_folder.glob(f"{RENDEZVOUS_FOLDER}-*")
        assert rendezvous.stat().st_mode & 0o777 == PRIVATE_MODE
        ranks.kill()
    assert listening <= set(LOOPBACK), listening
