"""GET /metrics: figures in the Prometheus text format, over HTTP, for as long as a block lasts.

Invariant: with a registry of its own, so nothing else of this process is shown; and a port that cannot be had is a
warning, never an error.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from tasks.console.announce import announce, warn

LOOPBACK = "127.0.0.1"
OF_A_SEGMENT = (
    "Training goes on without them. Give another segment.metrics_port, or end what uses this one; each segment tries."
)
OF_ALL_RUNS = "The work goes on without them. Give another port, or end what uses this one, and start again."


def serving_all_runs(figures: Collector, port: int | None, host: str = LOOPBACK) -> AbstractContextManager[None]:
    """`serving`, for a process that looks at all runs again and again; by default for this machine alone."""
    return serving(figures, host, port, "all runs", OF_ALL_RUNS)


@contextmanager
def serving(
    figures: Collector, host: str, port: int | None, whose: str = "this segment", advice: str = OF_A_SEGMENT
) -> Iterator[None]:
    """Serve `figures` on `host`:`port` from a thread; nothing if no port is given.

    Where the port cannot be had a warning says `whose` figures they are, and gives the `advice`.
    """
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(figures)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        warn(f"The metrics of {whose} cannot be served on {host}, port {port}: {error.strerror or error}. {advice}")
        yield
        return
    announce(f"Metrics for Prometheus: http://{host}:{port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
