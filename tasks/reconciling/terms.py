"""Which of several reconcilers acts for a store: terms that are put if absent, and the beat of who holds the last one.

Invariant: a term has one holder, and the highest is the one that counts. Who finds a higher one than its own steps
down; who finds the holder's beat standing still puts the next. A store that lacks the term that was put in it is not
the store that it was, such as a folder whose file system is not mounted: it counts as away.
"""

import hashlib
import json
from collections.abc import Callable

from storage.errors import ObjectExistsError, ObjectMissingError, StoreUnavailableError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from tasks.console.announce import announce
from tasks.reconciling.silence import Look, Silence, follow

FOLDER = "reconciler"
TERMS, BEATS = f"{FOLDER}/terms/", f"{FOLDER}/beats/"
DIGITS = 6


class Leadership:
    """This process's part in one store. `who` names it for people. It has a term from `stand` on that gave True."""

    def __init__(self, store: Store, who: str, clock: Callable[[], float]) -> None:
        self._store, self._who, self._clock = store, who, clock
        self._beat = 0
        self._silence: Silence | None = None
        self.term: int | None = None
        self.is_known = False  # whether it was ever found out who leads

    def stand(self) -> bool:
        """Give a sign of life, or watch that of the holder; whether this process acts. Raises `StoreError`."""
        began = self._clock()
        newest = self._find_newest()
        self.is_known = True
        if self.term is not None:
            if newest == self.term:
                self._write_beat()
                return True
            self._step_down(newest)
            return False
        if newest == 0:
            return self._take(1)
        beat = self._read_beat(newest)
        self._silence = follow(
            self._silence, Look(began, self._clock(), f"{newest} {hashlib.sha256(beat).hexdigest()}")
        )
        if _is_over(beat) or (self._silence is not None and self._silence.is_long):
            return self._take(newest + 1)
        return False

    def still_leads(self) -> bool:
        """Asks the store, before something is done that another one may do by now. Raises `StoreError`."""
        newest = self._find_newest()
        if self.term is not None and newest != self.term:
            self._step_down(newest)
        return self.term is not None

    def forget_silence(self) -> None:
        """After a look that the store did not answer the count begins anew."""
        self._silence = None

    def resign(self) -> None:
        """Say that the holder has ended, so that nobody waits for its next beat. Raises `StoreError`."""
        if self.term is not None:
            self._write_beat(is_over=True)
            self.term = None

    def _find_newest(self) -> int:
        """The number of the highest term; 0 if there is none."""
        after = "" if self.term is None else _key(TERMS, self.term - 1)
        keys = list(self._store.list_keys(TERMS, after))
        return int(keys[-1].removeprefix(TERMS).removesuffix(".json")) if keys else 0

    def _step_down(self, newest: int) -> None:
        if self.term is not None and newest < self.term:
            raise StoreUnavailableError(
                f"The store {self._store.address} lacks {_key(TERMS, self.term)}, which this process has put there. Is "
                "another folder in its place, since its file system is not mounted?"
            )
        announce(f"Another reconciler acts for {self._store.address} from now on; this one watches it.")
        self.term, self._silence = None, None

    def _take(self, number: int) -> bool:
        """Put a term. Who dies before its first beat has none, and that stands still too."""
        try:
            self._store.write_if_absent(_key(TERMS, number), canonical_json({"who": self._who}))
        except ObjectExistsError:
            return False  # another one was quicker; or it is ours, whose answer was lost, and whose beat stands still
        self.term, self._silence, self._beat = number, None, 0
        self._write_beat()
        announce(f"This process acts for {self._store.address}: term {number}.")
        return True

    def _write_beat(self, is_over: bool = False) -> None:
        assert self.term is not None
        self._beat += 1
        self._store.write(_key(BEATS, self.term), canonical_json({"beat": self._beat, "is_over": is_over}))

    def _read_beat(self, number: int) -> bytes:
        try:
            return self._store.read(_key(BEATS, number))
        except ObjectMissingError:
            return b""


def _key(prefix: str, number: int) -> str:
    return f"{prefix}{number:0{DIGITS}d}.json"


def _is_over(beat: bytes) -> bool:
    try:
        return json.loads(beat).get("is_over") is True
    except (ValueError, AttributeError):
        return False
