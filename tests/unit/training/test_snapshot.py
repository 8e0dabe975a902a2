"""The copy of the state in host memory: how much memory it takes, and what is asked of CUDA, by which thread and when.

Where there is no GPU a recorder stands in for `torch.cuda`: it notes calls and copies nothing by itself. That CUDA does
what it is asked for is tested on one (`tests/gpu/test_saves_on_gpu.py`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from storage.checkpoints import tensor_layout
from storage.checkpoints.tensor_layout import TensorKind, lay_out
from storage.objects.direct_io import BLOCK_BYTES
from training.checkpointing import state_hashes, state_tensors
from training.checkpointing.host_memory import HostMemory
from training.checkpointing.snapshot import Snapshot
from training.checkpointing.state_hashes import StateHashes
from training.checkpointing.state_tensors import HostFile, StateTensors, share_of, shares_of
from training.linear_hash import hash_of_bits
from training.optim.adamw import AdamW
from training.optim.kernels import Group
from training.trainer import Trainer
from training.world import World

GPU = torch.device("cuda", 1)
WORLD = World(0, 1, 0, 1)


class RecordedCuda:
    """What was called, in order."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: dict[tuple[Any, ...], int] = {}
        self._error = error
        self._current = "training"

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        self.threads[call] = threading.get_ident()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = SimpleNamespace(cudaHostRegister=self._register, cudaHostUnregister=self._unregister)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: self.note("set device", device))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self._stream("saving"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self._stream(self._current))
        monkeypatch.setattr(torch.cuda, "stream", self._enter)

    def _register(self, address: int, num_bytes: int, _flags: int) -> int:
        self.note("register", address, num_bytes)
        return self._error

    def _unregister(self, address: int) -> int:
        self.note("unregister", address)
        return self._error

    def _stream(self, name: str) -> SimpleNamespace:
        event = SimpleNamespace(synchronize=lambda: self.note("wait for event"))

        def record() -> SimpleNamespace:
            self.note(name, "records event")
            return event

        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.note(name, "waits for", other.name),
            wait_event=lambda _event: self.note(name, "waits for event"),
            record_event=record,
        )

    @contextmanager
    def _enter(self, stream: Any) -> Iterator[None]:
        self._current = stream.name
        yield
        self._current = "training"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> RecordedCuda:
    recorded = RecordedCuda()
    recorded.install(monkeypatch)
    return recorded


def state_of(model: nn.Module) -> StateTensors:
    optimization = SimpleNamespace(tensors=lambda: {"exp_avg.weight": torch.ones(8, 4)})
    return StateTensors(cast(Trainer, SimpleNamespace(model=model, optimization=optimization)))


def take(snapshot: Snapshot, state: StateTensors) -> None:
    snapshot.take(state, StateHashes(state, state.files, WORLD, torch.device("cpu")))


def snapshot_of(model: nn.Module, device: torch.device, world: World = WORLD) -> tuple[Snapshot, AdamW]:
    optimizer = AdamW([Group(params=list(model.parameters()), weight_decay=0.0, rate_factor=1.0)], betas=(0.9, 0.999))
    return Snapshot(world, device, optimizer), optimizer


@pytest.mark.parametrize("num_bytes", [1, BLOCK_BYTES, 3 * 2**20 + 17])
def test_memory_begins_where_a_page_does_and_is_just_as_long_as_asked_for(cuda: RecordedCuda, num_bytes: int) -> None:
    for page_locked in (False, True):
        memory = HostMemory(num_bytes, page_locked)
        assert memory.data.data_ptr() % BLOCK_BYTES == 0
        assert memory.data.untyped_storage().nbytes() == num_bytes
        assert not memory.data.any()
    assert cuda.calls == [("register", memory.data.data_ptr(), num_bytes)]
    memory.release()
    memory.release()
    assert cuda.calls[1:] == [("unregister", memory.data.data_ptr())]


def test_a_refusal_of_cuda_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    RecordedCuda(error=2).install(monkeypatch)
    with pytest.raises(RuntimeError, match=r"4,096 bytes .*CUDA error 2.*checkpoint\.background = false"):
        HostMemory(4096, page_locked=True)


def test_memory_that_is_not_page_locked_has_the_values_when_the_copy_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    copy = torch.Tensor.copy_

    def noted_copy(tensor: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
        asked.append(non_blocking)
        return copy(tensor, source)

    monkeypatch.setattr(torch.Tensor, "copy_", noted_copy)
    state = state_of(nn.Linear(4, 8))
    RecordedCuda().install(monkeypatch)
    for page_locked in (False, True):
        for layout in state.files:
            HostFile(layout, page_locked).filled_from(state)
    assert asked == [False] * 3 + [True] * 3


def test_from_a_gpu_the_copy_follows_the_step_and_the_next_change_of_the_weights_follows_the_copy(
    cuda: RecordedCuda,
) -> None:
    model = nn.Linear(4, 8)
    snapshot, optimizer = snapshot_of(model, GPU)
    state = state_of(model)
    snapshot.prepare(state.files)
    sizes = [call[2] for call in cuda.calls if call[0] == "register"]
    assert sizes == [file.num_bytes for file in state.files]
    cuda.calls.clear()
    take(snapshot, state)
    assert cuda.calls == [("saving", "waits for", "training"), ("saving", "records event")]
    cuda.calls.clear()
    optimizer.step()
    assert cuda.calls == [("training", "waits for event")]


def test_the_thread_that_writes_is_on_the_rank_s_own_gpu_before_it_waits_for_the_copy(cuda: RecordedCuda) -> None:
    model = nn.Linear(4, 8)
    snapshot, _ = snapshot_of(model, GPU)
    take(snapshot, state_of(model))
    cuda.calls.clear()
    writer = threading.Thread(target=snapshot.finish)
    writer.start()
    writer.join()
    assert cuda.calls == [("set device", GPU), ("wait for event",)]
    assert cuda.threads[("set device", GPU)] == cuda.threads[("wait for event",)] == writer.ident


def test_buffers_that_are_replaced_are_released_after_the_last_copy_to_them(
    cuda: RecordedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(4, 8)
    snapshot, _ = snapshot_of(model, GPU)
    take(snapshot, state_of(model))
    old = [file.data.data_ptr() for file in snapshot.own]
    cuda.calls.clear()
    monkeypatch.setattr(tensor_layout, "FILE_BYTES", 64)
    snapshot.prepare(state_of(model).files)
    assert [call[0] for call in cuda.calls] == [
        "set device", "wait for event", *["unregister"] * len(old), *["register"] * len(snapshot.own),
    ]  # fmt: skip
    assert [call[1] for call in cuda.calls if call[0] == "unregister"] == old


def test_on_a_cpu_the_copy_is_there_at_once_and_stays_as_it_is() -> None:
    model = nn.Linear(4, 8)
    snapshot, _ = snapshot_of(model, torch.device("cpu"))
    take(snapshot, state_of(model))
    before = {file.layout.name: bytes(file.data.numpy()) for file in snapshot.own}
    with torch.no_grad():
        model.weight.add_(1)
    assert {file.layout.name: bytes(file.data.numpy()) for file in snapshot.own} == before
    take(snapshot, state_of(model))
    assert bytes(snapshot.own[0].data.numpy()) != before[snapshot.own[0].layout.name]


class SlowHash:
    """Stands in for the hash of a tensor until it may be computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.may_begin = threading.Event()
        self._error = error
        monkeypatch.setattr(state_hashes, "hash_of_bits", self._hash)

    def _hash(self, tensor: Tensor) -> Tensor:
        self.may_begin.wait(60)
        if self._error is not None:
            raise self._error
        return hash_of_bits(tensor)


def test_the_next_change_of_the_weights_waits_until_what_is_not_copied_is_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two ranks writes the optimizer's file, so it hashes the model's as it is in its memory."""
    world, cpu, model = World(0, 2, 0, 2), torch.device("cpu"), nn.Linear(4, 8, bias=False)
    snapshot, optimizer = snapshot_of(model, cpu, world)
    state = state_of(model)
    own = share_of(state.files, world)
    hashes, slow = StateHashes(state, own, world, cpu), SlowHash(monkeypatch)
    before = int(hash_of_bits(model.weight))
    snapshot.take(state, hashes)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.param_groups[0]["lr"] = 0.1
    writer, training = threading.Thread(target=snapshot.finish), threading.Thread(target=optimizer.step)
    writer.start()
    training.start()
    training.join(0.2)  # what must not happen would by then
    assert training.is_alive() and int(hash_of_bits(model.weight)) == before
    slow.may_begin.set()
    training.join(60)
    writer.join(60)
    assert int(hash_of_bits(model.weight)) != before
    assert hashes._hashes == {"the weights 'weight'": before}
    snapshot.finish()  # the save is repeated
    assert hashes._hashes == {"the weights 'weight'": before}


def test_training_waits_for_no_thread_whose_hash_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, cpu, model = World(0, 2, 0, 2), torch.device("cpu"), nn.Linear(4, 8)
    snapshot, optimizer = snapshot_of(model, cpu, world)
    state = state_of(model)
    SlowHash(monkeypatch, MemoryError("no memory is left")).may_begin.set()
    snapshot.take(state, StateHashes(state, share_of(state.files, world), world, cpu))
    with pytest.raises(MemoryError):
        snapshot.finish()
    optimizer.step()


def test_the_share_that_is_held_for_another_rank_is_copied_before_the_next_change_and_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two ranks holds the second one's file, that of the model, and still compares what is in memory."""
    world, cpu, model = World(0, 2, 0, 2), torch.device("cpu"), nn.Linear(4, 8, bias=False)
    snapshot, optimizer = snapshot_of(model, cpu, world)
    state = state_of(model)
    own, held = shares_of(state.files, world)
    hashes, slow = StateHashes(state, own, world, cpu), SlowHash(monkeypatch)
    before = model.weight.detach().clone()
    snapshot.take(state, hashes, held)
    assert not snapshot.second and not snapshot.holds_second  # training did not stand still for it
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.param_groups[0]["lr"] = 0.1
    writer, training = threading.Thread(target=snapshot.finish), threading.Thread(target=optimizer.step)
    writer.start()
    training.start()
    slow.may_begin.set()
    training.join(60)
    writer.join(60)
    assert not torch.equal(model.weight, before) and snapshot.holds_second
    (file,) = snapshot.second
    assert torch.equal(file.tensors["weight"], before)
    hashes.add_file(file)  # when it is written
    assert hashes._hashes == {"the weights 'weight'": int(hash_of_bits(before))}
    snapshot.let_go_of_second()
    assert not snapshot.second and not snapshot.holds_second


def test_without_memory_for_a_second_copy_the_save_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world, cpu, model = World(0, 2, 0, 2), torch.device("cpu"), nn.Linear(4, 8, bias=False)
    snapshot, optimizer = snapshot_of(model, cpu, world)
    state = state_of(model)
    own, held = shares_of(state.files, world)
    hashes = StateHashes(state, own, world, cpu)
    snapshot.take(state, hashes, held)

    def no_memory(*_arguments: Any) -> HostMemory:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(state_tensors, "HostMemory", no_memory)
    snapshot.finish()
    assert not snapshot.holds_second and hashes.are_read.is_set()
    assert hashes._hashes.keys() == {"the weights 'weight'"}
    optimizer.step()


def test_from_a_gpu_the_second_copy_follows_the_first_on_its_stream_and_the_next_change_follows_both(
    cuda: RecordedCuda,
) -> None:
    model = nn.Linear(4, 8)
    snapshot, optimizer = snapshot_of(model, GPU, World(0, 2, 0, 2))
    state = state_of(model)
    own, held = shares_of(state.files, World(0, 2, 0, 2))
    hashes = StateHashes(state, own, World(0, 2, 0, 2), torch.device("cpu"))
    snapshot.take(state, hashes, held)
    cuda.calls.clear()
    snapshot.finish()
    registered = [("register", file.data.data_ptr(), file.layout.num_bytes) for file in snapshot.second]
    assert cuda.calls == [("set device", GPU), *registered, ("saving", "records event"), ("wait for event",)]
    cuda.calls.clear()
    optimizer.step()
    assert cuda.calls == [("training", "waits for event")]
    snapshot.let_go_of_second()
    assert cuda.calls[1:] == [("unregister", address) for _, address, _ in registered]


def test_a_full_file_takes_no_more_memory_than_its_bytes() -> None:
    (layout,) = lay_out("model", {"weight": TensorKind("F32", (2**18,))})
    file = HostFile(layout)
    assert file.data.untyped_storage().nbytes() == layout.num_bytes < 2**20 + 200
