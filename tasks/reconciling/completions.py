"""That a run is complete, trained, tested and audited: people are told once, by what its store says.

Not by an event of its flow run: Prefect's server loses those that reach it while its database is away. Invariant: noted
after it was sent, so who dies between the two sends it twice, and nobody ever misses one. Of runs that were complete
before a reconciler looked at the store for the first time nobody is told.
"""

from collections.abc import Callable, Collection
from contextlib import suppress

from storage.checkpoints.results import audit_key, find_result
from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from tasks.reconciling.looks import ERRORS_OF_A_RUN, SeenRun
from tasks.reconciling.noted_runs import NotedRuns
from tasks.reconciling.outbox import Message, Outbox
from tasks.reconciling.terms import FOLDER
from tasks.reporting.status import find_owner
from tasks.text import how_far, score

# A reconciler has looked at the store before: what is complete and not noted has become so since.
BEGUN = f"{FOLDER}/told.json"


class Completions:
    """Those of one store, for who acts for it."""

    def __init__(self, store: Store, outbox: Outbox) -> None:
        self._store, self._outbox = store, outbox
        self._told = NotedRuns(store, "told")
        self._sent: dict[str, tuple[SeenRun, Message]] = {}
        self._has_begun = False

    def tell(self, runs: Collection[SeenRun], still_leads: Callable[[], bool]) -> None:
        """Send a message for each run that is complete since the last call. Raises `StoreError`."""
        new = [seen for seen in self._told.find_new(runs) if _key(seen) not in self._sent]
        if (self._has_begun and not new) or not still_leads():
            return
        if not self._has_begun:
            new = self._begin(new)
        for seen in new:
            if self._is_proven(seen):
                message = Message(f"[info] run-complete: {seen.run}", _describe(seen))
                self._sent[_key(seen)] = seen, message
                self._outbox.put(message)

    def note(self) -> None:
        """Put down what was sent. Raises `StoreError`; what is not put down yet is so at the next call."""
        for key, (seen, message) in list(self._sent.items()):
            if message.is_taken:
                self._told.note(seen)
                del self._sent[key]

    def forget(self) -> None:
        """Another process acts."""
        self._told.forget()
        self._sent.clear()

    def _begin(self, complete: list[SeenRun]) -> list[SeenRun]:
        """Those of `complete` of which people are to be told."""
        try:
            self._store.read(BEGUN)
        except ObjectMissingError:
            for seen in complete:
                self._told.note(seen)
            with suppress(ObjectExistsError):  # an earlier try, whose answer was lost
                self._store.write_if_absent(BEGUN, canonical_json({}))
            complete = []
        self._has_begun = True
        return complete

    def _is_proven(self, seen: SeenRun) -> bool:
        """Whether its ledger was audited, which follows the test; of one that has a violation its flow run tells."""
        promoted = seen.head.state.promoted
        assert promoted is not None, seen.run
        try:
            found = find_result(self._store, audit_key(promoted.path))
        except ERRORS_OF_A_RUN:
            return False
        return found is not None and found.get("digest") == promoted.digest


def _key(seen: SeenRun) -> str:
    return f"{seen.run}/{seen.fence}"


def _describe(seen: SeenRun) -> str:
    state = seen.head.state
    tested = ", ".join(f"{name} {score(value)}" for name, value in (state.metrics or {}).items())
    owner = find_owner(state)
    lines = [
        f"The run is complete: {how_far(state.end_step, state)}. On the test split: {tested}.",
        "The ledger proves which samples trained it.",
        *([] if owner is None else [f"Owner: {owner}"]),
        f"Address: {seen.address}",
        f"Its report: {seen.address}/report.html",
    ]
    return "\n".join(lines)
