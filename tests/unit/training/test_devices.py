"""A node without the GPUs that a run needs is not one on which it goes on by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import DeviceMissingError
from storage.objects.local_store import LocalStore
from storage.runs.segments import find_outcome
from tasks.cluster.rank_environment import environment_of_ranks
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec
from training.checkpointing.versions import require_gpu_of_before
from training.configuration import TrainConfig
from training.metrics.curve import LossCurve
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.models.precision import choose_precision
from training.outcome import Ending
from training.process_group import can_form_others
from training.spec import ResumePoint
from training.world import World

ALONE = World(0, 1, 0, 1)
CPU = torch.device("cpu")
H100 = {"device": "NVIDIA H100 80GB HBM3"}


def test_a_run_that_was_trained_on_a_gpu_goes_on_on_a_cpu_only_if_that_is_asked_for() -> None:
    with pytest.raises(DeviceMissingError, match=r"NVIDIA H100 80GB HBM3.*nvidia-smi.*--set train.device=cpu"):
        require_gpu_of_before(TrainConfig(device="auto"), H100, CPU)
    require_gpu_of_before(TrainConfig(device="cpu"), H100, CPU)
    require_gpu_of_before(TrainConfig(device="auto"), {"device": "cpu AVX512"}, CPU)
    require_gpu_of_before(TrainConfig(device="auto"), {}, CPU)
    require_gpu_of_before(TrainConfig(device="auto"), H100, torch.device("cuda", 0))


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_missing_gpu_ends_a_run_for_good_only_before_it_was_begun(is_begun: bool, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    spec = make_spec(store, dataset, tmp_path / "scratch")
    if is_begun:
        spec = spec.model_copy(update={"resume": ResumePoint(path="checkpoints/7", digest="0" * 64, step=7)})
    reporter = Reporter(spec.progress_file, ALONE, 24, 0.0)
    state = TrainingState(LossCurve(5, spec.divergence))
    ending = Ending(spec, ALONE, store, reporter, state, 0.0)
    with pytest.raises(DeviceMissingError), ending.failures_written():
        raise DeviceMissingError("torch finds no GPU")
    record = find_outcome(store, spec.run, spec.fence)
    assert record is not None and record.outcome == "failed" and record.is_final is not is_begun


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_asked_for_and_not_there_is_one_clear_error() -> None:
    with pytest.raises(DeviceMissingError, match=r"torch finds no GPU on this machine.*nvidia-smi"):
        choose_precision(TrainConfig(device="cuda"), ALONE)


def test_what_would_have_a_node_compute_other_bits_is_not_handed_on_to_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    not_handed_on = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_X"}
    for name in (*not_handed_on, "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    given = environment_of_ranks(TrainConfig(threads=1))
    assert given["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and given["OMP_NUM_THREADS"] == "1"
    assert given["NVIDIA_TF32_OVERRIDE"] == "0"
    assert not not_handed_on & given.keys()
    assert given["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


@pytest.mark.parametrize(
    ("device", "settings", "can"),
    [
        ("cpu", {}, True),
        ("cuda", {"share_gpus": True}, True),
        ("cuda", {}, False),
        ("cpu", {"sum": "fast"}, False),
        ("cuda", {"share_gpus": True, "sum": "fast"}, False),
    ],
)
def test_ranks_go_on_without_one_that_died_where_all_they_send_goes_through_gloo(
    device: str, settings: dict[str, Any], can: bool
) -> None:
    assert can_form_others(TrainConfig(**settings), torch.device(device)) is can
