"""Ranks compute the same bits whatever their user's shell has set, and leave nothing where temporary files go."""

from pathlib import Path

import pytest

from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.training import read_log, train_to_end

# The first of these alone gives other weights on any machine with two cores, if it reaches the ranks.
HOSTILE = {
    "OMP_THREAD_LIMIT": "1",
    "OMP_DYNAMIC": "TRUE",
    "OMP_NUM_THREADS": "1",
    "OMP_MAX_ACTIVE_LEVELS": "0",
    "MKL_DYNAMIC": "TRUE",
    "MKL_NUM_THREADS": "1",
    "MKL_DOMAIN_NUM_THREADS": "MKL_DOMAIN_ALL=1",
    "MKL_NUM_STRIPES": "3",
    "ONEDNN_DEFAULT_FPMATH_MODE": "ANY",
    "TORCH_LINEAR_FLATTEN_3D": "1",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "NVIDIA_TF32_OVERRIDE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":0:0",
    "TORCHINDUCTOR_DETERMINISTIC": "0",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
}


def test_a_hostile_environment_gives_the_weights_of_a_clean_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, found, temporary = Runs(tmp_path), [], tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    for environment in ({}, HOSTILE):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        spec = runs.next_spec(ranks=1, steps=5, threads=2)
        assert train_to_end(spec, runs.store).outcome == "completed", read_log(spec)
        found.append(runs.newest_of(spec))
    require_the_same(found[1], found[0], runs)
    assert list(temporary.rglob("*")) == []
