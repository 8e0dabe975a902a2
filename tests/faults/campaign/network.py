"""A store in a bucket behind a network that fails, and machines that die in the middle of a request.

The server is Ceph's where it is installed, else moto in this process; the proxy before it fails.
Invariant: a request at which a machine dies is either never seen by the server, or done without an answer.
"""

import re
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.faults.campaign.disturbances import continue_to_end, find_unclear
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import Site
from tests.helpers.ceph_server import find_missing_programs, running_ceph_server
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan
from tests.helpers.faulty_proxy import Failure, Fault, FaultyProxy, running_proxy
from tests.helpers.injected_process import kill_family
from tests.helpers.s3_server import BUCKET, running_s3_server, s3_environment

CHANGING = ("PUT", "POST", "DELETE")
FOREVER = 10**9
VANISHED_SECONDS = 60.0
VARYING = (
    (r"/runs/[^/]+", "/runs/RUN"),
    (r"^/[^/]+/[0-9a-f]{32}/", "/"),
    (r"\d{8,}", "N"),
    (r"[0-9a-f]{32,}", "RANDOM"),
)


@dataclass(frozen=True)
class NetworkFault:
    """Requests of this method with `part` in their path fail so many times, from the run's first one on."""

    name: str
    failure: Failure
    method: str
    part: str
    times: int


NETWORK_FAULTS = (
    NetworkFault("the bucket answers 503 three times", Failure.SLOW_DOWN, "PUT", "/checkpoints/", 3),
    NetworkFault("the bucket resets a connection in a save", Failure.RESET, "PUT", "/checkpoints/", 2),
    NetworkFault("the bucket resets a connection in a restore", Failure.RESET, "GET", "/checkpoints/", 2),
    NetworkFault("the bucket hangs in a save", Failure.HANG, "PUT", "/checkpoints/", 1),
    NetworkFault("the bucket hangs in a commit", Failure.HANG, "PUT", "/manifest/", 1),
    NetworkFault("the reply to a save is lost", Failure.REPLY_LOST, "PUT", "/checkpoints/", 3),
    NetworkFault("the reply to a commit is lost", Failure.REPLY_LOST, "PUT", "/manifest/", 3),
    NetworkFault("a commit that was done is answered with 500", Failure.REPLY_IS_ERROR, "PUT", "/manifest/", 2),
    NetworkFault("half of a checkpoint arrives", Failure.CUT, "GET", "/checkpoints/", 2),
)


@dataclass
class _RequestFault(Fault):
    """Fails the first request whose path is `part` when what varies is left out."""

    def takes(self, method: str, path: str) -> bool:
        return self.fired < self.times and (method, place_of_request(path)) == (self.method, self.part)


def place_of_request(path: str) -> str:
    """A request's path and query without what differs from run to run."""
    for pattern, name in VARYING:
        path = re.sub(pattern, name, path)
    return path


@contextmanager
def running_server(site: Site) -> Iterator[str]:
    """The endpoint of a server on loopback."""
    folder = site.new_folder("ceph")
    folder.mkdir(parents=True)
    with running_ceph_server(folder) if has_ceph() else running_s3_server() as endpoint:
        yield endpoint


@contextmanager
def running_bucket(site: Site) -> Iterator[FaultyProxy]:
    """A server and the proxy before it, for `new_bucket_run`."""
    with running_server(site) as server, running_proxy(server) as proxy:
        yield proxy


def has_ceph() -> bool:
    """Whether a real server can be had on this machine."""
    return not find_missing_programs()


def new_bucket_run(site: Site, endpoint: str, **settings: Any) -> Runner:
    """A run whose store is an empty prefix of the bucket of the server at `endpoint`."""
    scratch = site.new_folder("scratch")
    scratch.mkdir(parents=True)
    runner = site.new_run("bucket", f"s3://{BUCKET}/{uuid.uuid4().hex}/prefix", scratch=scratch, **settings)
    runner.environment = {**runner.environment, **s3_environment(endpoint)}
    return runner


def meet(site: Site, proxy: FaultyProxy, fault: NetworkFault) -> Attempt:
    """Continue a run that a machine left when it died while the network fails."""
    runner = new_bucket_run(site, proxy.endpoint)
    site.leave_dead(runner)
    failing = proxy.fail(fault.failure, fault.method, fault.part, fault.times)
    problem = continue_to_end(site, runner)
    fired = failing.fired
    proxy.faults.clear()
    note = problem or f"{_server()}; requests that failed: {fired}"
    return Attempt(1, int(fired == fault.times), "bad" if problem else "equal", note)


def vanish(site: Site, proxy: FaultyProxy, failure: Failure = Failure.RESET) -> Attempt:
    """Let the bucket be out of reach, or refuse, for a minute from the middle of training on."""
    runner = new_bucket_run(site, proxy.endpoint)
    site.leave_dead(runner)
    gone = _Vanishing(failure)
    proxy.faults.append(gone)
    ended = runner.call("run")
    gone.come_back()
    problem = find_unclear(ended.returncode, ended.stderr) if ended.returncode != 0 else None
    problem = problem or continue_to_end(site, runner)
    how = "by itself" if ended.returncode == 0 else "when started again"
    note = problem or f"{_server()}; requests that failed: {gone.fired}; {how}"
    return Attempt(1, int(gone.fired > 0), "bad" if problem else "equal", note)


def _server() -> str:
    return "Ceph" if has_ceph() else "moto"


class _Vanishing(Fault):
    """Every request fails for a minute, which begins with the first one that saves a checkpoint."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure, "", "", FOREVER)
        self._timer: threading.Timer | None = None

    def takes(self, method: str, path: str) -> bool:
        if self._timer is None and method == "PUT" and "/checkpoints/" in path:
            self._timer = threading.Timer(VANISHED_SECONDS, self._end)
            self._timer.start()
        return self._timer is not None and super().takes(method, path)

    def come_back(self) -> None:
        """At once, if it has not happened yet."""
        if self._timer is not None:
            self._timer.cancel()
        self._end()

    def _end(self) -> None:
        self.times = 0


def find_requests(site: Site, proxy: FaultyProxy) -> list[tuple[str, str]]:
    """Every kind of request that changes something when a run is continued that a machine left: method and place."""
    runner = new_bucket_run(site, proxy.endpoint)
    site.leave_dead(runner)
    before = len(proxy.requests)
    runner.run()
    made = ((method, place_of_request(path)) for method, path in proxy.requests[before:] if method in CHANGING)
    return [request for request in dict.fromkeys(made) if "/probe/" not in request[1]]


def die_at_each(
    site: Site,
    proxy: FaultyProxy,
    requests: Sequence[tuple[str, str]],
    failure: Failure,
    on_point: Callable[[str], None],
) -> Attempt:
    """The machine dies at each of these requests, time after time in the same runs, as in `chains.py`."""
    left, fired = deque(requests), 0
    problems: list[str] = []
    while left:
        runner, num_left = new_bucket_run(site, proxy.endpoint), len(left)
        site.leave_dead(runner)
        while left and _dies_at(site, proxy, runner, left[0], failure, on_point):
            left.popleft()
            fired += 1
        if len(left) == num_left:
            problems.append(f"never met: {left.popleft()}")
        problem = continue_to_end(site, runner)
        if problem is not None:
            problems.append(problem)
    return Attempt(len(requests), fired, "bad" if problems else "equal", "; ".join(problems) or _server())


def _dies_at(
    site: Site,
    proxy: FaultyProxy,
    runner: Runner,
    request: tuple[str, str],
    failure: Failure,
    on_point: Callable[[str], None],
) -> bool:
    on_point(" ".join(request))
    folder = site.new_folder("struck")
    fault = _RequestFault(failure, *request)
    proxy.strike = lambda: kill_family(folder)
    proxy.faults.append(fault)
    with FaultPlan().injected(runner, folder):
        runner.call("run")
    proxy.faults.clear()
    return fault.fired == 1
