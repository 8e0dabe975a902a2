"""Versions of what the numbers depend on, as they are written into every checkpoint."""

import platform
from importlib.metadata import version

import torch

LIBRARIES = ("torch", "numpy", "safetensors", "pyarrow")


def library_versions() -> dict[str, str]:
    """Library or device -> version or name."""
    versions = {library: version(library) for library in LIBRARIES}
    versions["python"] = platform.python_version()
    versions["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return versions
