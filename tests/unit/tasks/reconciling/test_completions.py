"""That a run is complete people are told once, by what its store says."""

from collections.abc import Callable

from storage.checkpoints.results import audit_key, write_result
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tests.helpers.reconciled import LOOKS_A_MINUTE, Person, Watcher, hold, put_run

TOLD = "[info] run-complete: run"


def prove(store: LocalStore, manifest: Manifest, digest: str | None = None) -> str:
    """As the audit does when it has found nothing, of the promoted checkpoint or one of another digest; its key."""
    promoted = manifest.load_head().state.promoted
    assert promoted is not None
    key = audit_key(promoted.path)
    write_result(store, key, {"digest": digest or promoted.digest, "result": {"ok": True}})
    return key


def test_it_is_told_once_its_ledger_is_proven_and_once_also_by_the_next_process(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    first = make()
    first.look()
    manifest = put_run(store, "run", config={"owner": "search team"})
    first.look(2 * LOOKS_A_MINUTE)
    assert person.subjects == []  # whether it is proven is not known yet
    prove(store, manifest)
    first.look(3 * LOOKS_A_MINUTE)
    assert person.subjects == [TOLD]
    (body,) = person.bodies
    assert "step 100 of 100. On the test split: macro_f1 0.9000." in body
    assert f"Owner: search team\nAddress: {store.address}/runs/run" in body
    first.watch.leave()
    make().look(3 * LOOKS_A_MINUTE)
    assert person.subjects == [TOLD]


def test_of_one_that_became_complete_while_no_reconciler_was_there_it_is_told(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    first = make()
    first.look(2)
    first.watch.leave()
    prove(store, put_run(store, "run"))
    make().look(2)
    assert person.subjects == [TOLD]


def test_of_those_that_were_complete_before_the_first_look_nobody_is_told(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    prove(store, put_run(store, "old"))
    first = make()
    first.look(2 * LOOKS_A_MINUTE)
    first.watch.leave()
    second = make()
    second.look(2 * LOOKS_A_MINUTE)
    assert person.subjects == []


def test_of_one_in_training_or_with_a_proof_of_another_checkpoint_it_is_not_told(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    watcher = make()
    watcher.look()
    holder = hold(store, "held")
    prove(store, put_run(store, "other"), digest="another")
    watcher.look(3 * LOOKS_A_MINUTE, beats=holder)
    assert person.subjects == []


def test_one_that_did_not_arrive_is_sent_again_by_the_next_process(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    first = make()
    first.look()
    prove(store, put_run(store, "run"))
    person.trouble = "the phone is off"
    first.look(2 * LOOKS_A_MINUTE)
    first.watch.leave()
    person.trouble = None
    make().look(2 * LOOKS_A_MINUTE)
    assert person.subjects == [TOLD]


def test_a_proof_that_cannot_be_read_is_none_and_ends_no_look(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    watcher = make()
    watcher.look()
    manifest = put_run(store, "run")
    store.write(prove(store, manifest), b"{torn")
    watcher.look(2 * LOOKS_A_MINUTE)
    assert person.subjects == []
    prove(store, manifest)
    watcher.look(2 * LOOKS_A_MINUTE)
    assert person.subjects == [TOLD]
