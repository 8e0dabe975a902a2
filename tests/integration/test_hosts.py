"""Hosts with addresses of their own: what their links do when they fail, and a segment of ranks over them."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import pytest

from storage.checkpoints.checkpoints import hash_weights
from storage.objects.local_store import LocalStore
from storage.runs.segments import find_outcome
from tasks.cluster.launchers import make_job, name_job
from tasks.cluster.orders import JobOrder
from tasks.cluster.processes import POLL_SECONDS
from tasks.configuration.cluster import ClusterConfig
from tests.helpers import hosts as hosts_module
from tests.helpers import slurm_cluster
from tests.helpers.commands import ROOT, processes_mentioning, wait_until
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.hosts import INTERFACE, Hosts, Way, running_hosts
from tests.helpers.runs import lease_run, make_run
from tests.helpers.slurm_cluster import SlurmCluster, running_slurm
from tests.helpers.training import checkpoint_at, make_spec, train_to_end
from training.agents.rank import TITLE

NAMES = ("h1", "h2", "h3")
RUN = "small"
PORT = 4711
# Longer than a packet takes from one end of the bridge to the other, however busy the machine is.
SILENCE_SECONDS = 0.5
ANSWERS = f"""
import socket
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("", {PORT}))
print("listens", flush=True)
while True:
    said, address = here.recvfrom(100)
    print(said.decode(), flush=True)
    here.sendto(socket.gethostname().encode(), address)
"""
WAITS_FOREVER = """
import time
from tests.helpers.hosts import running_hosts
import subprocess, sys

with running_hosts(["h1"]) as hosts:
    subprocess.Popen(hosts.command_on("h1", ["sleep", "600"]))
    print(hosts.bridge, flush=True)
    time.sleep(600)  # until it is killed
"""


@pytest.fixture(autouse=True)
def _needs_hosts() -> None:
    if reason := hosts_module.find_reason_to_skip():
        pytest.skip(reason)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with running_hosts(NAMES) as hosts:
        yield hosts


@pytest.fixture
def slurm_over_hosts(hosts: Hosts, tmp_path: Path) -> Iterator[SlurmCluster]:
    """Each of the hosts is a node of it."""
    if reason := slurm_cluster.find_reason_to_skip():
        pytest.skip(reason)
    (tmp_path / "slurm").mkdir()
    with running_slurm(tmp_path / "slurm", hosts=hosts) as cluster:
        yield cluster


@contextmanager
def answering(hosts: Hosts, name: str) -> Iterator[IO[str]]:
    """A process on the host that answers with the host's name; what it is told can be read."""
    command = hosts.command_on(name, [sys.executable, "-c", ANSWERS])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "listens\n"
        yield process.stdout
        process.kill()


def ask(address: str, words: str) -> str | None:
    """The answer of a host to these words from this machine; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here, suppress(TimeoutError):
        here.settimeout(SILENCE_SECONDS)
        here.sendto(words.encode(), (address, PORT))
        return here.recv(100).decode()
    return None


def test_a_link_loses_what_goes_in_the_direction_that_was_cut_and_is_mended(hosts: Hosts) -> None:
    address = hosts.address_of("h2")
    with answering(hosts, "h2") as heard:
        assert ask(address, "before") == "h2"
        answers = {}
        for ways in ((Way.TO_HOST,), (Way.FROM_HOST,), ()):
            hosts.cut("h2", *ways)
            answers[ways] = ask(address, f"cut {[way.value for way in ways]}")
            hosts.mend("h2")
        assert ask(address, "after") == "h2"
        hosts.kill("h2")
        said = heard.read().splitlines()
    assert set(answers.values()) == {None}
    assert said == ["before", "cut ['from the host']", "after"]


def test_a_host_that_is_cut_from_one_address_reaches_the_others(hosts: Hosts) -> None:
    connects = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2]), timeout=1)"

    def reaches(listener: socket.socket) -> bool:
        address, port = listener.getsockname()
        command = hosts.command_on("h1", [sys.executable, "-c", connects, address, str(port)])
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0

    with (
        socket.create_server((hosts.address, 0)) as machine,
        socket.create_server((hosts.store_address, 0)) as store,
    ):
        hosts.cut_from("h1", hosts.store_address)
        assert (reaches(machine), reaches(store)) == (True, False)
        hosts.mend("h1")
        assert reaches(store)


def test_a_slow_link_carries_so_many_bits_a_second_and_no_more(hosts: Hosts) -> None:
    kilobits_per_second, seconds = 1000, 1.0
    num_bytes = int(kilobits_per_second * 125 * seconds)
    sends = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2])).sendall(bytes(int(sys.argv[3])))"
    with socket.create_server((hosts.address, 0)) as listener:
        address, port = listener.getsockname()
        hosts.slow("h1", kilobits_per_second)
        command = hosts.command_on("h1", [sys.executable, "-c", sends, address, str(port), str(num_bytes)])
        with subprocess.Popen(command), listener.accept()[0] as connection:
            began = time.monotonic()
            received = sum(map(len, iter(lambda: connection.recv(65536), b"")))
            took = time.monotonic() - began
    assert received == num_bytes
    assert took > 0.9 * seconds  # a few packets go at once: `burst`


def test_nothing_is_left_of_hosts_whose_process_is_killed() -> None:
    command = [sys.executable, "-c", WAITS_FOREVER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        bridge = process.stdout.readline().strip()
        assert Path(f"/sys/class/net/{bridge}").exists()
        process.kill()
    assert wait_until(lambda: not Path(f"/sys/class/net/{bridge}").exists())
    assert not list(hosts_module.NAMESPACES.glob(f"{bridge}-*"))
    assert processes_mentioning(f"{bridge}-") == []


@pytest.mark.slurm
def test_a_segment_over_three_hosts_goes_over_their_links_and_ends_as_on_one_machine(
    slurm_over_hosts: SlurmCluster, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm_over_hosts.environment["SLURM_CONF"])
    monkeypatch.chdir(tmp_path)  # where Slurm leaves what it prints itself
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    fence = lease_run(make_run(store, RUN), ranks=len(NAMES))
    spec = make_spec(store, dataset, tmp_path / f"scratch/runs/{RUN}/{fence:08d}", fence, ranks=1)
    cluster = ClusterConfig(kind="slurm", nodes=len(NAMES))
    record = name_job(cluster, store, RUN, fence)
    interfaces: dict[str, str] = {}
    with make_job(record, JobOrder(segment=spec, cluster=cluster, grace_seconds=30), store) as job:
        while job.is_running(POLL_SECONDS):
            interfaces |= {name: found for name in NAMES if (found := find_interface(slurm_over_hosts, name))}
        log = job.read_log()
    outcome = find_outcome(store, RUN, fence)
    assert outcome is not None and (outcome.outcome, outcome.world_size) == ("completed", len(NAMES)), log
    assert interfaces == dict.fromkeys(NAMES, INTERFACE)
    assert all(f"node {name} on {name}, {hosts.address_of(name)}\n" in log for name in NAMES)
    over_hosts = checkpoint_at(store, 20, fence)
    # Each rank's part of a step's sum, which the others cannot know else: at least four bytes of each weight.
    weights = sum(over_hosts.index.files[name].num_bytes for name in over_hosts.index.model_files)
    assert all(hosts.read_bytes_sent(name) > 20 * weights for name in NAMES)
    alone = spec.model_copy(update={"fence": fence + 1, "scratch": str(tmp_path / "scratch/alone")})
    train_to_end(alone, store)
    assert hash_weights(store, over_hosts) == hash_weights(store, checkpoint_at(store, 20, fence + 1))


def find_interface(slurm: SlurmCluster, name: str) -> str | None:
    """What the rank on a host was told to use; None if there is none yet."""
    for process in slurm.find_job_processes(name):
        with suppress(psutil.NoSuchProcess):
            if "".join(process.cmdline()).startswith(TITLE):  # a zombie has none
                return process.environ()["GLOO_SOCKET_IFNAME"]
    return None
