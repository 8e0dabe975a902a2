"""What is asked of a store in a block: requests by their kind, and the bytes and names that came back.

Invariant: of a bucket each HTTP request counts; of a folder each file that is read, and each name that is looked at.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from storage.objects.local_store import LocalStore
from storage.objects.s3.store import S3Store
from storage.objects.store import Store


@dataclass
class Counted:
    """Requests by kind, bytes of objects and listings, and, of a folder, names in the folders that were listed."""

    requests: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    num_names: int = 0

    @property
    def num_requests(self) -> int:
        return self.requests.total()

    def add(self, kind: str, num_bytes: int = 0) -> None:
        self.requests[kind] += 1
        self.num_bytes += num_bytes


@contextmanager
def counting(store: Store) -> Iterator[Counted]:
    """Count what the block asks of this opened store."""
    counted = Counted()
    with ExitStack() as stack:
        if isinstance(store, S3Store):
            _count_bucket(stack, store, counted)
        else:
            assert isinstance(store, LocalStore)
            _count_folder(stack, store, counted)
        yield counted


def _count_bucket(stack: ExitStack, store: S3Store, counted: Counted) -> None:
    def answered(http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        body = parsed.get("ContentLength", 0) if model.name == "GetObject" else len(http_response.content)
        counted.add(model.name, body)

    events = store._s3.client.meta.events
    events.register("after-call.s3", answered)
    stack.callback(events.unregister, "after-call.s3", answered)
    fill = store._s3.parts.fill

    def filling(bucket: str, key: str, etag: str, start: int, buffer: memoryview) -> bool:
        counted.add("GetObject", len(buffer))
        return fill(bucket, key, etag, start, buffer)

    stack.enter_context(patch.object(store._s3.parts, "fill", filling))


def _count_folder(stack: ExitStack, store: LocalStore, counted: Counted) -> None:
    scandir = os.scandir

    def listing(folder: Any = ".") -> Any:
        entries = scandir(folder)
        if isinstance(folder, int) or not Path(folder).is_relative_to(store.root):
            return entries
        found = list(entries)
        counted.add("list")
        counted.num_names += len(found)
        return _Entries(found)

    stack.enter_context(patch("os.scandir", listing))
    for name in ("read", "fetch", "open", "read_chunks"):
        stack.enter_context(patch.object(store, name, _counted(store, name, counted)))


def _counted(store: LocalStore, name: str, counted: Counted) -> Callable[..., Any]:
    method = getattr(store, name)

    def ask(key: str, *arguments: Any, **named: Any) -> Any:
        path = store.path_of(key)
        counted.add(name, path.stat().st_size if path.exists() else 0)
        return method(key, *arguments, **named)

    return ask


class _Entries(list[Any]):
    """What `os.scandir` gives, also as a context manager."""

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def close(self) -> None:
        """Nothing is open."""
