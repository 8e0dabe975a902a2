"""What a Kubernetes API server keeps: objects with versions, and the events of late, for whoever watches.

Invariant: each change has a version of its own, and a watcher from a version on sees all later ones in order, or is
told that they are forgotten.
"""

import copy
import threading
import time
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]


class ForgottenError(Exception):
    """The events after a version are not all kept any more."""


class Objects:
    """Of one namespace. What is given out and taken in are copies."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 1
        self._kept: dict[tuple[str, str], Object] = {}
        self._events: list[tuple[int, str, str, Object]] = []
        self._oldest = 0

    def create(self, kind: str, new: Object) -> Object | None:
        """None if there is one of this name."""
        with self._changed:
            if self.find(kind, new["metadata"]["name"]) is not None:
                return None
            return self._put("ADDED", kind, new)

    def update(self, kind: str, changed: Object) -> None:
        """One that is gone stays gone; of no difference nobody hears."""
        with self._changed:
            kept = self._kept.get((kind, changed["metadata"]["name"]))
            changed["metadata"].pop("resourceVersion", None)
            if kept is not None and _without_version(kept) != changed:
                self._put("MODIFIED", kind, changed)

    def remove(self, kind: str, name: str) -> None:
        with self._changed:
            gone = self._kept.pop((kind, name), None)
            if gone is not None:
                self._tell("DELETED", kind, gone)

    def find(self, kind: str, name: str) -> Object | None:
        with self._changed:
            return copy.deepcopy(self._kept.get((kind, name)))

    def select(self, kind: str, labels: Mapping[str, str]) -> tuple[list[Object], int]:
        """Those with these labels, and the version as of which this holds."""
        with self._changed:
            found = [each for (of, _), each in self._kept.items() if of == kind and has_labels(each, labels)]
            return copy.deepcopy(found), self._version

    def wait_for_events(self, kind: str, after: int, seconds: float) -> list[tuple[int, str, Object]]:
        """What happened since a version, as soon as there is something. Raises `ForgottenError`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                if after < self._oldest:
                    raise ForgottenError
                found = [(v, what, each) for v, what, of, each in self._events if v > after and of == kind]
                remaining = deadline - time.monotonic()
                if found or remaining <= 0:
                    return copy.deepcopy(found)
                self._changed.wait(remaining)

    def forget_events(self) -> None:
        """As a server does after some minutes; who watches from before is told so."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
            self._events.clear()
            self._changed.notify_all()

    def _put(self, what: str, kind: str, new: Object) -> Object:
        kept = copy.deepcopy(new)
        self._kept[kind, kept["metadata"]["name"]] = kept
        self._tell(what, kind, kept)
        return copy.deepcopy(kept)

    def _tell(self, what: str, kind: str, subject: Object) -> None:
        self._version += 1
        subject["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, what, kind, copy.deepcopy(subject)))
        self._changed.notify_all()


def has_labels(subject: Object, labels: Mapping[str, str]) -> bool:
    own: dict[str, str] = subject["metadata"].get("labels", {})
    return labels.items() <= own.items()


def _without_version(kept: Object) -> Object:
    metadata = {key: value for key, value in kept["metadata"].items() if key != "resourceVersion"}
    return kept | {"metadata": metadata}
