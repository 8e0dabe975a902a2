"""Task `scrub`: read again all that is kept of a run or of a store.

Invariant: what is looked at and what becomes of damage is decided in `tasks.verification`; damage was reported by then,
and is no error here.
"""

from collections.abc import Callable
from typing import Any

from storage.objects.store import Store
from tasks.step import step
from tasks.text import count_of, size
from tasks.verification.scrubbing import scrub_store


@step("scrub")
def scrub_kept(
    store: Store, run: str | None, on_bytes: Callable[[int], None], max_bytes_per_second: float | None
) -> tuple[dict[str, Any], str]:
    """As `tasks.verification.scrubbing.scrub_store`."""
    result = scrub_store(store, run, on_bytes, max_bytes_per_second)
    return result, sum_up(result)


def sum_up(result: dict[str, Any]) -> str:
    """One sentence about a scrub's result."""
    read = f"{count_of(len(result['runs']), 'run')}, {count_of(result['checkpoints'], 'checkpoint')}"
    read += f", {count_of(result['objects'], 'object')} with {size(result['bytes'])}"
    found = "all as they were written" if result["ok"] else count_of(len(result["damaged"]), "damaged thing")
    left_out = f"; {count_of(len(result['skipped']), 'run')} left out" if result["skipped"] else ""
    return f"{read}: {found}{left_out}."
