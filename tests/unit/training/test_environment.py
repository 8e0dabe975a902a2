"""What reaches a process that computes from its user's environment: nothing that could change a bit unasked."""

import os
import subprocess
import sys

import pytest

from tests.helpers.commands import ROOT
from training.determinism import describe_instructions, numerics_environment

# What `predict` does up to a model that is not there, and what OpenMP then takes as the most threads that there may be.
PREDICT = """
import ctypes
import pathlib
import re
from flows.commands.predict import predict_with_display
try:
    predict_with_display(pathlib.Path("none"), "none", pathlib.Path("none"), 2, False, False)
except Exception as error:
    assert "is no exported model" in str(error), error
library = re.search(r"/\\S*lib[gi]omp\\S*", pathlib.Path("/proc/self/maps").read_text())[0]
print(ctypes.CDLL(library).omp_get_thread_limit())
"""
REMOVED = (
    "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY", "CUDNN_CONV_WSCAP_DBG",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_LINALG_PREFER_CUSOLVER",
    "TORCH_CUDNN_V8_API_DISABLED", "TORCH_CUDNN_USE_HEURISTIC_MODE_B", "TORCH_MKLDNN_MATMUL_MIN_DIM",
    "TORCH_LINEAR_FLATTEN_3D", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "MKL_DOMAIN_NUM_THREADS",
    "MKL_NUM_STRIPES", "OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED", "OMP_SCHEDULE", "KMP_ALL_THREADS",
    "KMP_DEVICE_THREAD_LIMIT", "KMP_DYNAMIC_MODE", "KMP_FORCE_REDUCTION", "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_USE_FAST_MATH", "TORCHINDUCTOR_CPP_ENABLE_UNSAFE_MATH_OPT_FLAG", "TORCHDYNAMO_DISABLE",
    "TORCHDYNAMO_SUPPRESS_ERRORS", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES", "TORCH_COMPILE_DISABLE",
    "TORCH_COMPILE_OVERRIDE_BACKENDS", "TRITON_F32_DEFAULT", "TRITON_DEFAULT_FP_FUSION", "TRITON_INTERPRET",
)  # fmt: skip
PINNED = {
    "OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVIDIA_TF32_OVERRIDE": "0", "TORCHINDUCTOR_DETERMINISTIC": "1",
}  # fmt: skip
LEFT = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "GLIBC_TUNABLES", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_LOGINFO_DBG", "CUBLASLT_LOG_LEVEL", "CUDNN_LOGLEVEL_DBG",
    "CUDNN_PATH", "MKL_VERBOSE", "ONEDNN_VERBOSE", "OMP_PROC_BIND", "OMP_PLACES", "OMP_STACKSIZE",
    "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "NCCL_ALGO", "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_LOGS", "TORCHDYNAMO_VERBOSE", "TRITON_CACHE_DIR", "PATH",
)  # fmt: skip


@pytest.mark.parametrize("name", REMOVED)
def test_what_would_choose_how_numbers_are_computed_is_not_passed_on(name: str) -> None:
    assert name not in numerics_environment({name: "1"}, threads=2)


@pytest.mark.parametrize("name", PINNED)
def test_what_has_to_have_one_value_has_it_whatever_was_set(name: str) -> None:
    assert numerics_environment({name: "7"}, threads=2)[name] == PINNED[name]


@pytest.mark.parametrize("name", LEFT)
def test_what_is_the_users_own_to_set_stands(name: str) -> None:
    assert numerics_environment({name: "his"}, threads=2)[name] == "his"


def test_instructions_that_a_user_allows_are_told_in_one_order() -> None:
    assert describe_instructions({"PATH": "/bin"}) == "libraries choose"
    set_by_user = {"ONEDNN_MAX_CPU_ISA": "AVX2", "PATH": "/bin", "MKL_CBWR": "AVX2"}
    assert describe_instructions(set_by_user) == "MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2"


def test_predict_removes_it_before_the_library_of_openmp_reads_it() -> None:
    environment = {**os.environ, "OMP_THREAD_LIMIT": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PREDICT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1
