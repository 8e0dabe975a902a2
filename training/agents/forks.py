"""Beginning a rank: by a fork of the agent, which has the libraries, or else as a process that loads them itself.

Invariant: a process is forked only while it has one thread and no GPU was touched: of other threads a fork copies the
locks and not the threads, and CUDA cannot be used in a child of a process that used it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

NVIDIA = "/dev/nvidia"
RANK_MODULE = "training.agents.rank"


def why_not_fork() -> str | None:
    """What forbids to fork this process; None if nothing does."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return f"it has {threads} threads"
    is_in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if is_in_use or any(_links_to(link, NVIDIA) for link in Path("/proc/self/fd").iterdir()):
        return "a GPU is in use in it"
    return None


def begin_rank(
    order: Path, local_rank: int, life: int, places: int, be_a_rank: Callable[[], NoReturn]
) -> tuple[int, str | None]:
    """Process id of the new rank, and why it was not forked. Signals that are blocked here are blocked there.

    `places` is the descriptor of the memory in which ranks say where they are.
    """
    reason = why_not_fork()
    if reason is not None:
        numbers = [str(life), str(places), str(local_rank)]
        command = [sys.executable, "-u", "-m", RANK_MODULE, str(order), *numbers]
        return os.posix_spawn(sys.executable, command, os.environ), reason
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        be_a_rank()
    return pid, None


def _links_to(link: Path, start: str) -> bool:
    try:
        return str(link.readlink()).startswith(start)
    except OSError:
        return False  # the descriptor by which the folder itself was read
