"""Memory on the host for a file of a checkpoint: of just its size, page-aligned, page-locked where a GPU copies to it.

PyTorch rounds page-locked memory up to a power of two, and a full file has a header beside its 256 MiB of tensors: it
would take 512 MiB. So ordinary pages are registered with CUDA. They begin where a page does, which is what direct I/O
asks for (`storage/objects/direct_io.py`). Invariant: what is registered is released before its pages go back to the
system, which would give them, still registered, to another caller.
"""

import mmap

import torch


class HostMemory:
    """`data` [bytes], zeros at first."""

    def __init__(self, num_bytes: int, page_locked: bool = False) -> None:
        self._pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Zeros are written now: pages that are touched for the first time would slow the first copy down.
        self.data = torch.frombuffer(self._pages, dtype=torch.uint8).zero_()
        self.is_page_locked = False
        if page_locked:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            _require_success(runtime.cudaHostRegister(self.data.data_ptr(), num_bytes, 0), num_bytes)
            self.is_page_locked = True

    def release(self) -> None:
        """Undo the page-locking, if any. Copies from a GPU to this memory have ended."""
        if self.is_page_locked:
            self.is_page_locked = False
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            _require_success(runtime.cudaHostUnregister(self.data.data_ptr()), len(self.data))


def _require_success(error: int, num_bytes: int) -> None:
    if int(error) != 0:
        raise RuntimeError(
            f"CUDA could not lock or unlock {num_bytes:,} bytes of host memory for checkpoints (CUDA error "
            f"{int(error)}). Give the machine more memory, or set checkpoint.background = false, which needs none."
        )
