"""The pages of a store that are open: sent and not over. Each is an object of the store, put after it was sent.

Invariant: pages follow from what holds. One that begins to hold is sent, then put; one that does not hold any more is
sent as over, then deleted. Who dies between the two sends it twice, and nobody ever misses one.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from tasks.reconciling.outbox import Message, Outbox
from tasks.reconciling.pages import Page
from tasks.reconciling.terms import FOLDER

PAGES = f"{FOLDER}/pages/"


@dataclass
class _Open:
    page: Page
    message: Message | None  # None: sent by who acted before
    is_noted: bool
    opened_at: float | None  # of the watcher's monotonic clock
    over: Message | None = None


class OpenPages:
    """Those of one store, for who acts for it."""

    def __init__(self, store: Store, outbox: Outbox, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._outbox, self._clock = store, outbox, clock
        self._open: dict[str, _Open] = {}
        self._is_loaded = False

    def load(self) -> None:
        """Find those that who acted before has sent; once. Raises `StoreError`."""
        if self._is_loaded:
            return
        for object_key in list(self._store.list_keys(PAGES)):
            try:
                page = Page.model_validate_json(self._store.read(object_key))
            except (ObjectMissingError, ValidationError):
                continue  # deleted just now, or of another version, which will say that it is over
            key = object_key.removeprefix(PAGES).removesuffix(".json")
            if key not in self._open:
                self._open[key] = _Open(page, None, True, None)
        self._is_loaded = True

    def forget(self) -> None:
        """Another process acts: what is open is its matter."""
        self._open.clear()
        self._is_loaded = False

    def update(self, wanted: Mapping[str, Page], stays: Callable[[str], bool]) -> None:
        """Open what is `wanted` and not open, by key, and end what is not wanted, unless it `stays` as it is."""
        for key, page in wanted.items():
            if key not in self._open:
                message = Message(page.subject, page.body)
                self._open[key] = _Open(page, message, False, self._clock())
                self._outbox.put(message)
        for key, one in self._open.items():
            if key not in wanted and one.over is None and not stays(key):
                seconds = None if one.opened_at is None else self._clock() - one.opened_at
                one.over = Message(one.page.over_subject, one.page.over_body(seconds))
                self._outbox.put(one.over)

    def would_change(self, wanted: Mapping[str, Page], stays: Callable[[str], bool]) -> bool:
        """Whether `update` with the same would send something."""
        ends = (key not in wanted and one.over is None and not stays(key) for key, one in self._open.items())
        return any(key not in self._open for key in wanted) or any(ends)

    def note(self) -> None:
        """Put down what was sent. Raises `StoreError`; what is not put down yet is so at the next call."""
        for key, one in list(self._open.items()):
            if one.over is not None:
                if one.over.is_taken:
                    self._store.delete(f"{PAGES}{key}.json")
                    del self._open[key]
            elif not one.is_noted and one.message is not None and one.message.is_taken:
                with suppress(ObjectExistsError):  # an earlier try, whose answer was lost
                    self._store.write_if_absent(f"{PAGES}{key}.json", canonical_json(one.page.model_dump(mode="json")))
                one.is_noted = True
