"""Numerical settings by which two processes of one configuration, on machines of one kind, compute the same bits.

Invariant: they stand here alone, for training, evaluation, prediction, tests and benchmarks alike. Libraries read some
when they are loaded: these are the environment of a process, `numerics_environment`, set by its launcher. The others
are set by the process itself, which computes nothing with torch before. Nothing here loads torch for a launcher.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

# Variables by which torch or a library would choose other algorithms, fewer bits or other numbers of threads than the
# configuration asks for, on one node or in one shell and not in the next. What only logs is left, and so is what
# reaches no bit of an exact sum: places of threads, allocators, NCCL's algorithms.
CHOOSES_ALGORITHMS = re.compile(
    "|".join(
        (
            r"CUBLASLT_(?!LOG)\w+|CUBLAS_\w*EMULAT\w*|CUDNN_(?!LOG)\w+_DBG",
            r"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|TORCH_(BLAS|LINALG)_PREFER_\w+",
            r"TORCH_CUDNN_(V8_API_DISABLED|USE_HEURISTIC_\w+)|TORCH_MKLDNN_MATMUL_\w+|TORCH_LINEAR_FLATTEN_3D",
            r"(ONEDNN|DNNL)_DEFAULT_FPMATH_MODE",  # fp32 products in bf16, as TF32 does it on a GPU
            r"MKL_DOMAIN_NUM_THREADS|MKL_NUM_STRIPES",
            r"OMP_(THREAD_LIMIT|MAX_ACTIVE_LEVELS|NESTED|SCHEDULE)|KMP_(\w*THREAD\w*|DYNAMIC_MODE|\w*REDUCTION)",
            r"TORCHINDUCTOR_(?!CACHE_DIR|COMPILE_THREADS)\w+|TRITON_(F32_DEFAULT|DEFAULT_FP_FUSION|INTERPRET)",
            r"TORCH_?DYNAMO_(?!VERBOSE|REPRO|EXTENDED_DEBUG)\w+|TORCH_COMPILE_(DISABLE|OVERRIDE_BACKENDS)",
        )
    )
)
# What a user sets on purpose, so that processors of two kinds compute the same bits. It stands, and is recorded with
# the versions: a change is told when the run goes on. ATEN_CPU_CAPABILITY is told by the device, `cpu AVX2`.
CHOOSES_INSTRUCTIONS = (
    "DNNL_CPU_ISA_HINTS",
    "DNNL_MAX_CPU_ISA",
    "GLIBC_TUNABLES",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
# How torch takes a GPU's memory: microbatches differ in size, and segments of fixed sizes would fragment. No bit
# depends on it, and what a user has set stands.
GPU_ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
PINNED = {
    "OMP_DYNAMIC": "FALSE",
    "MKL_DYNAMIC": "FALSE",  # or MKL takes fewer threads on a busy machine, and the bits change
    # Which kernels cuBLAS may choose follows from the memory that it has; with this it has the same in every process.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVIDIA_TF32_OVERRIDE": "0",  # 1 would force TF32, whatever torch is set to
    "TORCHINDUCTOR_DETERMINISTIC": "1",  # or the compiler times alternatives and takes what was quicker that day
}


def numerics_environment(inherited: Mapping[str, str], threads: int | None = None) -> dict[str, str]:
    """Environment of a process that computes, from what it would inherit. Threads decide the last bits of a sum."""
    kept = {name: value for name, value in inherited.items() if not CHOOSES_ALGORITHMS.fullmatch(name)}
    counts = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**GPU_ALLOCATOR, **kept, **PINNED, **counts}


def describe_instructions(environment: Mapping[str, str]) -> str:
    """What of the processor's instructions the environment allows: 'MKL_CBWR=AVX2', or that it leaves the choice."""
    found = [f"{name}={environment[name]}" for name in CHOOSES_INSTRUCTIONS if name in environment]
    return " ".join(found) or "libraries choose"


def pin_environment(threads: int | None = None) -> None:
    """Give this process the environment above, for the libraries that it has not loaded yet.

    OpenMP's and MKL's read it when torch is imported: what is begun by a person, not by a launcher, calls this before.
    """
    environment = numerics_environment(os.environ, threads)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def pin_numerics(threads: int | None = None) -> None:
    """Pin all that torch and its libraries may choose, before anything is computed; `threads` of the CPU, if given."""
    import torch  # seconds, and launchers need only the environment above

    pin_environment(threads)  # CUDA's libraries are loaded, and read it, when they are first used
    if threads is not None:
        torch.set_num_threads(threads)
    # As `use_deterministic_algorithms(True)` does, but without loading the compiler, which takes two seconds.
    torch.set_deterministic_debug_mode("error")
    # With them torch fills new memory, for those who read what they have not written: a pass over each buffer for
    # nothing where every byte is written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # Or parts of a long sum are added up in 16 bits.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    # cuDNN's attention is taken or not by versions and shapes.
    torch.backends.cuda.enable_cudnn_sdp(False)


def pin_attention(device_type: str) -> None:
    """Allow fused attention alone on a GPU.

    Without it torch would keep a number for each pair of tokens of each head and sample, without a warning.
    """
    import torch  # as in `pin_numerics`

    if device_type == "cuda":
        torch.backends.cuda.enable_math_sdp(False)


def pin_compiler(folder: Path) -> None:
    """Pin what `torch.compile` may choose; kernels come from `folder` alone, which is this run's.

    Kernels of another run are not taken: the compiler's cache does not ask for which sizes they were tuned.
    """
    import torch  # as in `pin_numerics`
    from torch._inductor import config  # the compiler, two seconds

    torch.use_deterministic_algorithms(True)  # the compiler follows it too
    config.deterministic = True  # where it was loaded before its environment variable was set
    os.environ.update({"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")})
