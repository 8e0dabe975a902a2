"""Versions of what the numbers depend on, as they are written into every checkpoint."""

import platform
from importlib.metadata import version

import torch

LIBRARIES = ("torch", "numpy", "safetensors", "pyarrow")


def read_versions(device: torch.device) -> dict[str, str]:
    """Library or device -> version or kind. CPUs differ by the vector instructions that torch uses on them."""
    is_gpu = device.type == "cuda"
    kind = torch.cuda.get_device_name(device) if is_gpu else f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return {library: version(library) for library in LIBRARIES} | {
        "python": platform.python_version(),
        "device": kind,
    }


def describe_version_changes(before: dict[str, str], now: dict[str, str]) -> str | None:
    """What is not as it was when a checkpoint was made, in one sentence, or None."""
    changes = [f"{name} was {before[name]}, is {now[name]} now" for name in before if now.get(name) != before[name]]
    if not changes:
        return None
    return (
        f"Not everything is as it was when the checkpoint was made: {'; '.join(changes)}. "
        "The run goes on, but the last bits of the weights may not be those of an uninterrupted run."
    )
