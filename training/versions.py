"""Versions of what the numbers depend on, as they are written into every checkpoint."""

import platform
from importlib.metadata import version

import torch

LIBRARIES = ("torch", "numpy", "safetensors", "pyarrow")


def read_versions(device: torch.device) -> dict[str, str]:
    """Library or device -> version or kind. CPUs differ by the vector instructions that torch uses on them."""
    libraries = {library: version(library) for library in LIBRARIES} | {"python": platform.python_version()}
    if device.type != "cuda":
        return libraries | {"device": f"cpu {torch.backends.cpu.get_cpu_capability()}"}
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    kernels = {"cuda": str(torch.version.cuda), "cudnn": str(cudnn)}
    return libraries | kernels | {"device": torch.cuda.get_device_name(device)}


def describe_version_changes(before: dict[str, str], now: dict[str, str]) -> str | None:
    """What is not as it was when a checkpoint was made, a line for each, and what that means; or None."""
    changes = [
        f"  {name} was {before[name]}, is {now.get(name, 'not used')} now"
        for name in sorted(before)
        if now.get(name) != before[name]
    ]
    if not changes:
        return None
    return (
        "Not everything is as it was when the checkpoint was made:\n"
        + "\n".join(changes)
        + "\nThe run goes on, with the same order of samples, but the last bits of the weights may not be those of an "
        "uninterrupted run."
    )
