"""What goes on beside a step that is timed: processes that save, or only compute, without a pause."""

import mmap
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage.checkpoints.checkpoints import put_checkpoint_file
from storage.checkpoints.tensor_layout import FILE_BYTES
from storage.objects.local_store import LocalStore


@contextmanager
def another_process(work: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """`work` in a process of its own, once it is at work; its first argument is the event by which it says so."""
    context = multiprocessing.get_context("spawn")
    is_at_work = context.Event()
    process = context.Process(target=work, args=(is_at_work, *arguments))
    process.start()
    is_at_work.wait()
    try:
        yield
    finally:
        process.kill()
        process.join()


def write_again_and_again(is_at_work: Any, store: str, folder: str, num_bytes: int) -> None:
    """Do what a thread that saves does, with memory that begins at a block as its does."""
    Path(folder).mkdir(exist_ok=True)
    memory = mmap.mmap(-1, num_bytes)
    memory.write(b"1" * num_bytes)
    data = memoryview(memory)
    while True:
        is_at_work.set()
        for start in range(0, num_bytes, FILE_BYTES):
            part = data[start : start + FILE_BYTES]
            put_checkpoint_file(LocalStore(Path(store)), f"peer/{start}", part, Path(folder) / "part")


def compute(is_at_work: Any) -> None:
    """Take a core, and nothing else of the machine."""
    is_at_work.set()
    while True:
        sum(range(1_000_000))
