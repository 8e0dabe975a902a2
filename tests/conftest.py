"""Fixtures that more than one test file uses.

Invariant: what is started for the session is stopped with it.
"""

import fcntl
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.helpers.command_server import running_command_server
from tests.helpers.cpu_times import CpuTimes
from tests.helpers.fork_server import start_fork_server, use_fork_server
from tests.helpers.prefect_server import running_prefect_server, starting_prefect_server, wait_until_healthy

# Who asks for one of these fixtures needs what the marker says; a store that is a parameter brings its marker itself.
NEEDED_BY_FIXTURE = {
    "prefect_server": "server",
    "s3_endpoint": "server",
    "ceph_endpoint": "ceph",
    "slurm": "slurm",
    "kubernetes": "server",
}
SERVER_MARKERS = set(NEEDED_BY_FIXTURE.values())
# These take minutes. Begun last they would run on alone, beside idle cores; xdist gives files out in this order.
LONGEST_FILES = (
    "test_interruptions.py", "test_deployments.py", "test_drill.py", "test_runbook.py", "test_divergence.py",
    "test_elastic.py", "test_after_training.py", "test_server_away.py", "test_launchers.py", "test_units.py",
)  # fmt: skip
EXIT_STATUS = pytest.StashKey[int]()
SHARED_SERVER = pytest.StashKey[dict[str, str]]()
RESOURCES = pytest.StashKey[ExitStack]()
TERMINATED = 128 + signal.SIGTERM
# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# In the background of a script Ctrl-C is ignored, and all that is started there inherits that. Some tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Threads of ranks that wait for each other sleep instead of spinning: there are more of them than cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class RunningTests:
    """Names the tests that still run when somebody, as a CI whose time is up, ends the run with SIGTERM."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        signal.signal(signal.SIGTERM, self._tell)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._began.pop(nodeid, None)

    def _tell(self, _number: int, _frame: object) -> None:
        now = time.monotonic()
        running = [f"{nodeid} for {now - began:.0f} s" for nodeid, began in self._began.items()]
        pytest.exit(f"ended by SIGTERM while these tests ran: {', '.join(running) or 'none'}", returncode=TERMINATED)


class OneAtATime:
    """When tests are collected Hypothesis reads the constants of all our modules, and leaves them on disk.

    The first of xdist's workers does that, for seconds; the others wait, and read what it has left.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config) -> Iterator[None]:
        folder = os.open(config.rootpath, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(folder)


def pytest_configure(config: pytest.Config) -> None:
    """Signals are for the process that prints what happens; a worker of xdist's is ended by that one."""
    gc.disable()  # while tests are collected, next to nothing of what is imported becomes garbage
    config.pluginmanager.register(CpuTimes())
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(OneAtATime())
        begin_elsewhere(config, config.workerinput)
        if (address := config.workerinput.get("fork_server")) is not None:
            use_fork_server(address)
    else:
        config.pluginmanager.register(RunningTests())


def begin_elsewhere(config: pytest.Config, worker: Mapping[str, Any]) -> None:
    """Have each worker of xdist's collect all files, but begin with others than the other workers.

    In a fresh clone a file's assertions are rewritten by the worker that collects it first; the others read what that
    one has left on disk.
    """
    tests = config.rootpath / "tests"
    if [Path(argument).absolute() for argument in config.args] != [tests]:
        return
    files = sorted(map(str, tests.rglob("test_*.py")))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args[:] = files[first:] + files[:first]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, before `-m` selects by it, and put the longest first. A unit test needs only files.

    The order is the same in all workers of xdist's, in whichever they have collected.
    """
    places = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: (places.get(item.path.name, len(places)), item.path))
    for item in items:
        for fixture in NEEDED_BY_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(NEEDED_BY_FIXTURE[fixture])
        if "/tests/unit/" in item.path.as_posix() and {mark.name for mark in item.iter_markers()} & SERVER_MARKERS:
            raise pytest.UsageError(f"{item.nodeid} needs a server: it belongs into tests/integration.")


def pytest_collection_finish() -> None:
    """What was imported stays: the collector of garbage need not look at it after each few tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that starts the workers of xdist: they use servers of its, where each would start its own."""
    config: pytest.Config = node.config
    if all("tests/unit" in argument for argument in config.args):
        return
    if SHARED_SERVER not in config.stash:
        resources = config.stash[RESOURCES] = ExitStack()
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="prefect-")))
        environment = resources.enter_context(starting_prefect_server(folder))
        config.stash[SHARED_SERVER] = resources.enter_context(running_command_server(folder, environment))
    node.workerinput["prefect_server"] = config.stash[SHARED_SERVER]
    node.workerinput["fork_server"] = start_fork_server()


@pytest.fixture(scope="session")
def prefect_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for subprocesses that are to use the one real Prefect server of all tests."""
    shared: dict[str, str] | None = getattr(pytestconfig, "workerinput", {}).get("prefect_server")
    if shared is None:
        with running_prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
            yield environment
    else:
        wait_until_healthy(shared)
        yield shared


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The package, an extra; who asks for it is skipped where it is not installed."""
    return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def peft() -> Any:
    """As above. To load it takes seconds, which no other test has to wait for."""
    return pytest.importorskip("peft")


@pytest.fixture(scope="session")
def installed(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The wheel and an environment with it, an `Installed`: one of all workers of xdist's."""
    # Here: it needs the product's own modules.
    from tests.helpers.wheels import installed_once

    folder = tmp_path_factory.getbasetemp()
    is_worker = hasattr(pytestconfig, "workerinput")  # its folder is within that of the process that started it
    return installed_once(folder.parent if is_worker else folder, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The session's one S3 server in this process."""
    # Seconds to import: other tests need not wait for it.
    from tests.helpers.s3_server import running_s3_server

    with running_s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_proxy(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A `FaultyProxy` before that server, which boto3 takes for it."""
    from tests.helpers.s3_server import running_hurried_proxy

    with running_hurried_proxy(s3_endpoint, tmp_path, monkeypatch) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def ceph_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the real S3 server has its settings, for who administers it."""
    return tmp_path_factory.mktemp("ceph")


@pytest.fixture(scope="session")
def ceph_endpoint(ceph_folder: Path) -> Iterator[str]:
    """The session's one real S3 server; who asks for it is skipped where it is not installed."""
    # As above: who needs no server need not wait for this.
    from tests.helpers.ceph_server import PACKAGES, find_missing_programs, running_ceph_server

    missing = find_missing_programs()
    if missing:
        pytest.skip(f"Ceph is not installed ({missing[0]} is missing); on Debian 12: apt-get install {PACKAGES}")
    with running_ceph_server(ceph_folder) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session's one real Slurm; who asks for it is skipped where there can be none. Tests ask for `slurm`."""
    from tests.helpers.slurm_cluster import find_reason_to_skip, running_slurm

    if reason := find_reason_to_skip():
        pytest.skip(reason)
    with running_slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster: Any) -> Iterator[Any]:
    """That cluster, a `SlurmCluster`, with idle nodes and without a job; what a test leaves there is ended with it."""
    yield slurm_cluster
    slurm_cluster.reset()


@pytest.fixture
def own_slurm(slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same cluster as this process's own, and a folder for what Slurm itself prints."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.chdir(tmp_path)
    return slurm


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Kubernetes of two nodes, a `KubernetesCluster`, as this process's own."""
    # As above.
    from tests.helpers.commands import processes_mentioning
    from tests.helpers.kubernetes_cluster import running_kubernetes

    with running_kubernetes(tmp_path / "kubernetes") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        yield cluster
        assert processes_mentioning(str(tmp_path / "store")) == []  # of pods, before their nodes are ended


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[EXIT_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave before Python takes its modules apart, when DuckDB's binding would print a page about leaks.

    A worker of xdist's has said its last words by then.
    """
    if RESOURCES in config.stash:
        config.stash[RESOURCES].close()
    if EXIT_STATUS in config.stash:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[EXIT_STATUS])
