"""The thread that writes a save: what it says of itself, how it is told to give up, and how often it tries."""

import threading
from pathlib import Path
from typing import Any

import pytest

from storage.backoff import Backoff
from storage.checkpoints.checkpoints import (
    STATE_NAME,
    CheckpointIndex,
    SaveCancelledError,
    checkpoint_path,
    write_index,
)
from storage.checkpoints.tensor_layout import TensorKind, lay_out
from storage.errors import StoreError
from storage.objects.digests import sha256_of_bytes
from storage.objects.local_store import LocalStore
from training.checkpointing import writer as writer_module
from training.checkpointing.state_tensors import HostFile
from training.checkpointing.writer import ATTEMPTS, CheckpointWriter, SavePart, Writing, attempt

NEVER = threading.Event()


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    return CheckpointWriter(LocalStore(tmp_path / "store"), tmp_path / "scratch")


def failing(error: Exception, times: int) -> tuple[list[int], Any]:
    """The numbers of the calls so far, and what fails so many times before it returns 'done'."""
    calls: list[int] = []

    def work() -> str:
        calls.append(len(calls) + 1)
        if len(calls) <= times:
            raise error
        return "done"

    return calls, work


def test_a_part_is_put_with_the_hash_of_each_file_and_scratch_is_left_empty(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    (layout,) = lay_out("model", {"weight": TensorKind("F32", (3,))})
    file = HostFile(layout)
    written = writer.write(SavePart("checkpoints/5", [file], b"{}"), NEVER)
    store = LocalStore(tmp_path / "store")
    assert written.files.keys() == {"model.safetensors", STATE_NAME}
    for name, described in written.files.items():
        data = store.read(f"checkpoints/5/{name}")
        assert (described.num_bytes, described.sha256) == (len(data), sha256_of_bytes(data))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_writer_says_how_far_its_last_job_is_and_never_waits_to_say_why_it_failed(
    writer: CheckpointWriter,
) -> None:
    said = [writer.writing]
    may_fail = threading.Event()

    def work(_given_up: threading.Event) -> None:
        may_fail.wait(60)
        raise StoreError("no space is left")

    writer.start(work)
    said.append(writer.writing)
    assert writer.failure() is None
    may_fail.set()
    assert not writer.ends_well()
    said.append(writer.writing)
    assert str(writer.failure()) == "no space is left"
    writer.give_up()
    assert [*said, writer.writing] == [Writing.DONE, Writing.BUSY, Writing.FAILED, Writing.DONE]


def test_a_job_that_is_cancelled_is_the_last_job_until_it_has_ended(writer: CheckpointWriter) -> None:
    may_look, has_begun = threading.Event(), threading.Event()

    def work(given_up: threading.Event) -> None:
        has_begun.set()
        may_look.wait(60)
        if given_up.is_set():
            raise SaveCancelledError

    writer.start(work)
    has_begun.wait(60)
    writer.cancel()
    assert writer.writing is Writing.BUSY
    may_look.set()
    assert not writer.ends_well()
    assert isinstance(writer.failure(), SaveCancelledError)


def test_jobs_that_were_added_are_waited_for_and_count_as_the_first_one_does(writer: CheckpointWriter) -> None:
    may_go_on = threading.Event()
    writer.start(lambda _given_up: "first")
    writer.add(lambda _given_up: may_go_on.wait(60) and "second")
    said = [writer.writing]
    may_go_on.set()
    assert writer.ends_well() and [*said, writer.writing] == [Writing.BUSY, Writing.DONE]
    assert writer.results() == ["first", "second"]
    writer.add(lambda _given_up: attempt(failing(SaveCancelledError(), 1)[1], NEVER))
    assert not writer.ends_well() and writer.writing is Writing.FAILED
    assert isinstance(writer.failure(), SaveCancelledError)
    writer.start(lambda _given_up: "index")
    assert writer.ends_well() and writer.results() == ["index"]


def test_the_share_of_a_rank_that_died_is_put_anew_unless_the_index_says_that_it_is_there(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    (layout,) = lay_out("model", {"weight": TensorKind("F32", (3,))})
    file, store, noted = HostFile(layout), LocalStore(tmp_path / "store"), list[HostFile]()
    index = CheckpointIndex(run="small", fence=2, step=5, cursor=0, dataset_digest="", versions={}, files={})
    path = checkpoint_path("small", 5, 2)
    part = SavePart(path, [file], b"{}", note=noted.append)
    store.write(f"{path}/{layout.name}", b"half of it, of one that died")
    written = writer.write_for_another(part, NEVER)
    assert store.read(f"{path}/{layout.name}") == bytes(file.data.numpy())
    write_index(store, index.model_copy(update={"files": written.files}))
    modified = store.path_of(f"{path}/{layout.name}").stat()
    assert writer.write_for_another(part, NEVER) == written
    assert store.path_of(f"{path}/{layout.name}").stat() == modified
    assert noted == [file, file]  # hashed both times


def test_a_store_that_fails_is_asked_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "BACKOFF", Backoff(0.001, 0.001))
    calls, work = failing(StoreError("slow down"), times=ATTEMPTS - 1)
    assert attempt(work, NEVER) == "done" and len(calls) == ATTEMPTS
    calls, work = failing(OSError("disk is gone"), times=ATTEMPTS)
    with pytest.raises(OSError, match="disk is gone"):
        attempt(work, NEVER)
    assert len(calls) == ATTEMPTS


def test_a_save_that_was_given_up_is_not_tried_again_nor_waited_for() -> None:
    calls, work = failing(SaveCancelledError(), times=1)
    with pytest.raises(SaveCancelledError):
        attempt(work, NEVER)
    assert len(calls) == 1
