"""How long something takes on a device. A GPU works on when the call that began it has returned."""

import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds from when the device has nothing else to do until it has done all of `work`."""
    wait_for(device)
    began = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - began


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that was begun on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
