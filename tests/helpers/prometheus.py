"""What Prometheus reads of a run in training."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

PROMETHEUS_FORMAT = "text/plain; version="
# One for all questions: each client of its own would read the certificates of the machine. A connection is not kept,
# since who listens at a port may be another one the next time.
CLIENT = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def scrape(port: int) -> dict[str, float]:
    """The figures by name, those that have run and store as their labels alone; nothing if nobody answers."""
    try:
        answer = CLIENT.get(f"http://127.0.0.1:{port}/metrics")
    except httpx.TransportError:
        return {}
    assert answer.headers["Content-Type"].startswith(PROMETHEUS_FORMAT)
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if set(sample.labels) == {"run", "store"}}
