"""Runs that are complete and whose schedule was paused for that: noted in the store, so that it is done once.

Invariant: put after the schedule was paused. So a person who lets the schedule go on again is not overruled; only who
dies between the two pauses it a second time. A run of which more was asked for, and that is complete again, is another.
"""

from collections.abc import Iterable
from contextlib import suppress

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from tasks.reconciling.looks import SeenRun
from tasks.reconciling.terms import FOLDER


class CompleteRuns:
    """Those of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted: set[str] = set()
        self._absent: set[str] = set()  # as long as this process acts, nobody else puts one

    def find_new(self, runs: Iterable[SeenRun]) -> list[SeenRun]:
        """The complete ones whose schedule was not paused yet. Raises `StoreError`."""
        complete = [seen for seen in runs if seen.lease is None and seen.head.state.is_complete]
        return [seen for seen in complete if not self._is_noted(_key(seen))]

    def forget(self) -> None:
        """Another process acts."""
        self._absent.clear()

    def note(self, seen: SeenRun) -> None:
        """The schedule is paused. Raises `StoreError`."""
        with suppress(ObjectExistsError):  # an earlier try, whose answer was lost
            self._store.write_if_absent(_key(seen), canonical_json({"run": seen.run}))
        self._noted.add(_key(seen))

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


def _key(seen: SeenRun) -> str:
    return f"{FOLDER}/paused/{seen.run}/{seen.fence:012d}.json"
