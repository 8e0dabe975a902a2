"""GET /metrics: figures in the Prometheus text format, over HTTP, for as long as a block lasts.

Invariant: with a registry of its own, so nothing else of this process is shown; and a port that cannot be had is a
warning, never an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from tasks.console.announce import announce, warn


@contextmanager
def serving(figures: Collector, host: str, port: int | None) -> Iterator[None]:
    """Serve `figures` on `host`:`port` from a thread; nothing if no port is given."""
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(figures)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        warn(
            f"The metrics of this segment cannot be served on {host}, port {port}: {error.strerror or error}. Training "
            "goes on without them. Give another segment.metrics_port, or end what uses this one; each segment tries."
        )
        yield
        return
    announce(f"Metrics for Prometheus: http://{host}:{port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
