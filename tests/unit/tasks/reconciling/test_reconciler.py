"""The process as a whole: its threads, what it does between looks, how it ends. No server of Prefect answers."""

import threading
from _thread import interrupt_main
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from tasks.prefect_bridge.alerts import RECONCILER_ALIVE
from tasks.reconciling import reconciler
from tasks.reconciling.reconciler import Reconciler
from tasks.reconciling.terms import BEATS, TERMS
from tests.helpers.events import taking_events
from tests.helpers.reconciled import NotedPrefect, Person, put_run


class HangingStore(LocalStore):
    """As a network file system whose server is gone."""

    is_over = threading.Event()

    def list_keys(self, prefix: str, after: str = "", most: int | None = None) -> Iterator[str]:
        self.is_over.wait()
        return iter(())


def test_a_store_that_hangs_and_a_step_that_fails_stop_nothing_and_a_signal_ends_it_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "LEAVE_SECONDS", 1.0)
    monkeypatch.setattr(reconciler, "SHOW_SECONDS", 0.05)
    hanging, store = HangingStore(tmp_path / "hanging"), LocalStore(tmp_path / "store")
    put_run(store, "done")
    prefect, called = NotedPrefect(), []

    def show_all(stores: Sequence[Store]) -> None:
        called.append([one.address for one in stores])
        if prefect.paused and len(called) > 2 and events():
            interrupt_main()
        raise OSError("no figures")

    watching = Reconciler([hanging, store, LocalStore(store.root)], [Person()], prefect, 0.05, "search", show_all)
    with taking_events() as events, pytest.raises(KeyboardInterrupt):
        watching.run()
    hanging.is_over.set()
    assert called[0] == [hanging.address, store.address]  # one that is given twice is watched once
    assert prefect.paused == [f"{store.address}/runs/done"]
    assert list(store.list_keys(TERMS)) == [f"{TERMS}000001.json"]
    assert b'"is_over":true' in store.read(f"{BEATS}000001.json")
    (event,) = events()  # of the minute
    assert (event.event, event.resource.id) == (RECONCILER_ALIVE, "holdfast.reconciler.search")
