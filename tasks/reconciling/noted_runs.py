"""Complete runs for which something was done, noted in the store, so that it is done once.

Invariant: put after it was done. So what a person changes afterwards is not overruled; only who dies between the two
does it a second time. A run of which more was asked for, and that is complete again, is another.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from tasks.reconciling.looks import SeenRun
from tasks.reconciling.terms import FOLDER


class NotedRuns:
    """Those of one store for which this was `done`: their schedule is paused, or people were told."""

    def __init__(self, store: Store, done: Literal["paused", "told"]) -> None:
        self._store, self._done = store, done
        self._noted: set[str] = set()
        self._absent: set[str] = set()  # as long as this process acts, nobody else puts one

    def find_new(self, runs: Iterable[SeenRun]) -> list[SeenRun]:
        """The complete ones for which it was not done yet. Raises `StoreError`."""
        complete = [seen for seen in runs if seen.lease is None and seen.head.state.is_complete]
        return [seen for seen in complete if not self._is_noted(self._key(seen))]

    def forget(self) -> None:
        """Another process acts."""
        self._absent.clear()

    def note(self, seen: SeenRun) -> None:
        """It is done. Raises `StoreError`."""
        with suppress(ObjectExistsError):  # an earlier try, whose answer was lost
            self._store.write_if_absent(self._key(seen), canonical_json({"run": seen.run}))
        self._noted.add(self._key(seen))

    def _is_noted(self, key: str) -> bool:
        if key in self._noted or key in self._absent:
            return key in self._noted
        try:
            self._store.read(key)
        except ObjectMissingError:
            self._absent.add(key)
            return False
        self._noted.add(key)
        return True

    def _key(self, seen: SeenRun) -> str:
        return f"{FOLDER}/{self._done}/{seen.run}/{seen.fence:012d}.json"
