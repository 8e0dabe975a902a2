"""Views in the run's store, below the segment: the one place that the nodes of a segment share. Loads no torch.

Invariant: as of the folder, the first view of a number is the one. Machines' clocks differ: what is stored is how old
something was, and who reads it counts from when it was read.
"""

import time

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.store import Store
from storage.runs.segments import segment_path
from training.views.folder import ViewFolder
from training.views.view import Going, View

FOLDER_NAME, OUT = "views", "out-"


class _StoredView(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    view: View
    seconds_old: float


class StoredViews:
    """The views of one segment. All methods raise `StoreError`."""

    def __init__(self, store: Store, run: str, fence: int) -> None:
        self._store = store
        self._folder = f"{segment_path(run, fence)}/{FOLDER_NAME}"

    def find(self, number: int) -> View | None:
        """The view of this number; None if it was not committed."""
        try:
            stored = _StoredView.model_validate_json(self._store.read(self._key(number)))
        except (ObjectMissingError, ValidationError):
            return None
        return stored.view.model_copy(update={"committed_at": _now() - stored.seconds_old})

    def commit(self, view: View) -> bool:
        """Put the view if there is none of its number; whether it was ours."""
        stored = _StoredView(view=view, seconds_old=max(0.0, _now() - view.committed_at))
        return self._put(self._key(view.number), stored.model_dump_json())

    def say_going(self, number: int, going: Going) -> None:
        """Note that training goes on in this view, unless that was noted."""
        self._put(self._going_key(number), going.model_dump_json())

    def find_going(self, number: int) -> Going | None:
        """What was noted of this view; None if training did not go on in it, as far as is known."""
        try:
            return Going.model_validate_json(self._store.read(self._going_key(number)))
        except (ObjectMissingError, ValidationError):
            return None

    def say_out(self, slot: int) -> None:
        """Note that no rank is begun in place of this one."""
        self._put(f"{self._folder}/{OUT}{slot:04d}", "")

    def find_out(self) -> list[int]:
        """The ranks in whose place none is begun any more."""
        prefix = f"{self._folder}/{OUT}"
        return sorted(int(key.removeprefix(prefix)) for key in self._store.list_keys(prefix))

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:06d}.json"

    def _going_key(self, number: int) -> str:
        return f"{self._folder}/{number:06d}-going.json"

    def _put(self, key: str, text: str) -> bool:
        try:
            self._store.write_if_absent(key, text.encode())
        except ObjectExistsError:
            return False
        return True


class MirroredViews:
    """Those of the store, of which this machine's ranks find each one in their folder once it was read here."""

    def __init__(self, stored: StoredViews, folder: ViewFolder) -> None:
        self._stored, self._folder = stored, folder

    def find(self, number: int) -> View | None:
        """As `StoredViews`. Raises also `OSError`."""
        here = self._folder.find(number)
        if here is not None:
            return here
        view = self._stored.find(number)
        if view is not None:
            self._folder.commit(view)
        return view

    def commit(self, view: View) -> bool:
        """As `StoredViews`."""
        return self._stored.commit(view)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
