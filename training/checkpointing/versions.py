"""What the numbers depend on besides the configuration, as it is written into every checkpoint: libraries and hardware.

Invariant: a name means the same in every version of Holdfast. Names that a checkpoint does not have are not compared.
"""

import functools
import os
import platform
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from storage.errors import DeviceMissingError
from storage.runs.code_version import NAME
from training.configuration import TrainConfig
from training.determinism import describe_instructions

LIBRARIES = ("torch", "numpy", "pyarrow")
OPTIONAL_LIBRARIES = ("transformers", "peft")  # where a model is computed by it
CPU_INFO = Path("/proc/cpuinfo")
DRIVER_INFO = Path("/proc/driver/nvidia/version")
# The processor's features by which torch, oneDNN and MKL choose how they compute. MKL looks at the vendor as well.
CPU_PREFIX = "cpu "
# cuBLAS comes in a package of its own, named with or without the version of CUDA.
CUBLAS_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13")
COMPUTING_FEATURE = re.compile(r"avx|amx|fma|f16c|sve|asimd|bf16|i8mm")
# What torch was built with, as `torch.__config__.show()` has it.
BUILT_WITH = {"mkl": r"Math Kernel Library Version (\S+)", "onednn": r"MKL-DNN (v\S+)"}


def read_versions(device: torch.device) -> dict[str, str]:
    """Library, processor or device -> version or kind. CPUs differ by the vector instructions that torch uses."""
    libraries = _read_libraries() | _read_triton()
    if device.type != "cuda":
        capability = f"{CPU_PREFIX}{torch.backends.cpu.get_cpu_capability()}"
        chosen = {"device": capability, "instructions": describe_instructions(os.environ)}
        return libraries | _read_built_with() | describe_processor(_read_text(CPU_INFO)) | chosen
    properties = torch.cuda.get_device_properties(device)
    # How dropout's random numbers are assigned to values follows from the number of multiprocessors.
    hardware = {"device": properties.name, "multiprocessors": str(properties.multi_processor_count)}
    return libraries | _read_cuda() | hardware


@functools.cache
def _read_libraries() -> dict[str, str]:
    """Read once, as what is below: each one is found by a look through all that is installed."""
    optional = [library for library in OPTIONAL_LIBRARIES if library in sys.modules]
    return {library: version(library) for library in (*LIBRARIES, *optional)} | {"python": platform.python_version()}


def require_gpu_of_before(config: TrainConfig, before: dict[str, str], device: torch.device) -> None:
    """Raise `DeviceMissingError` where a run that was trained on a GPU would go on on a CPU without being asked to.

    A node whose driver is broken looks to torch like one that never had a GPU.
    """
    gpu = before.get("device", CPU_PREFIX)
    if device.type == "cpu" and config.device == "auto" and not gpu.startswith(CPU_PREFIX):
        raise DeviceMissingError(
            f"The run was trained on a GPU ({gpu}), and torch finds none on this machine. See the output of "
            "`nvidia-smi` here, or let another machine go on. To go on on the CPU, far slower and with other last "
            "bits: --set train.device=cpu"
        )


def describe_processor(cpu_info: str) -> dict[str, str]:
    """The processor of a machine from the text of its /proc/cpuinfo: what it is, and its features that matter."""
    fields = dict(re.findall(r"^([^:\n]+?)\s*:\s*(.*)$", cpu_info.split("\n\n")[0], re.MULTILINE))
    kind = [fields[name] for name in ("vendor_id", "cpu family", "model", "stepping") if name in fields]
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    features = sorted(flag for flag in flags if COMPUTING_FEATURE.search(flag))
    return {"processor": " ".join(kind) or platform.machine(), "processor features": " ".join(features)}


def describe_driver(driver_info: str) -> str:
    """The version of NVIDIA's driver from the text of its /proc/driver/nvidia/version."""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", driver_info)
    return found[1] if found else "unknown"


def describe_version_changes(
    before: dict[str, str], now: dict[str, str], holdfast: tuple[str, str] | None = None
) -> str | None:
    """What is not as it was when a checkpoint was made, a line for each, and what that means; or None.

    `holdfast` is the one that made it and this one, where they are not the same.
    """
    if holdfast is not None:
        before, now = before | {NAME: holdfast[0]}, now | {NAME: holdfast[1]}
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


@functools.cache
def _read_triton() -> dict[str, str]:
    """torch.compile makes its kernels for GPUs with it; it comes with torch's GPU packages."""
    try:
        return {"triton": version("triton")}
    except PackageNotFoundError:
        return {}


def _read_built_with() -> dict[str, str]:
    built = torch.__config__.show()
    found = {name: re.search(pattern, built) for name, pattern in BUILT_WITH.items()}
    return {name: match[1] for name, match in found.items() if match}


@functools.cache
def _read_cuda() -> dict[str, str]:
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()  # type: ignore[no-untyped-call]
    return {
        "cuda": str(torch.version.cuda),
        "cublas": _read_cublas(),
        "cudnn": str(cudnn),
        "nccl": ".".join(map(str, nccl)) or "none",
        "driver": describe_driver(_read_text(DRIVER_INFO)),
    }


def _read_cublas() -> str:
    for package in CUBLAS_PACKAGES:
        with suppress(PackageNotFoundError):
            return version(package)
    return "unknown"


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
