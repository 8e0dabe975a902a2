"""What a library may choose by itself is chosen once, and nothing is done that no number depends on."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from storage.errors import ConfigurationError
from training.configuration import TrainConfig
from training.determinism import pin_attention
from training.export.prediction import open_model
from training.model_configuration import EncoderConfig
from training.models.precision import choose_precision
from training.models.source import source_of
from training.world import World


@pytest.fixture(autouse=True)
def settings_of_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """These settings are the process's: other tests have theirs back."""
    monkeypatch.setattr(os, "environ", {**os.environ, "CUBLASLT_WORKSPACE_SIZE": "1"})
    num_threads, is_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    is_filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(is_deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = is_filled  # type: ignore[attr-defined]
    torch.backends.cuda.enable_math_sdp(True)


def begin_a_rank(_: Path) -> None:
    choose_precision(TrainConfig(device="cpu"), World(0, 1, 0, 1))


def begin_to_predict(folder: Path) -> None:
    with pytest.raises(ConfigurationError):
        open_model(folder, 1, truncates=False)


@pytest.mark.parametrize("begin", [begin_a_rank, begin_to_predict])
def test_algorithms_are_pinned_and_new_memory_is_not_filled(begin: Callable[[Path], None], tmp_path: Path) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    begin(tmp_path)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.empty(1 << 16).isnan().all()
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and "CUBLASLT_WORKSPACE_SIZE" not in os.environ


def test_sizes_of_attention_heads_without_a_fused_kernel_are_refused_on_a_gpu() -> None:
    odd = source_of(EncoderConfig(width=100, heads=4))
    with pytest.raises(ConfigurationError, match=r"multiple of 8 on a GPU: it is 25 \(width is 100 and heads is 4"):
        odd.require_device("cuda")
    odd.require_device("cpu")
    source_of(EncoderConfig()).require_device("cuda")


def test_only_fused_attention_is_allowed_on_a_gpu() -> None:
    pin_attention("cpu")
    assert torch.backends.cuda.math_sdp_enabled()  # type: ignore[no-untyped-call]
    pin_attention("cuda")
    assert not torch.backends.cuda.math_sdp_enabled()  # type: ignore[no-untyped-call]
