"""The losses of real training are no spikes, not even when half as much as usual would be one."""

from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec, read_log, train_forked
from training.configuration import DivergenceConfig


@pytest.mark.slow
def test_training_that_goes_well_raises_no_alarm(tmp_path: Path) -> None:
    """From the first weights to losses next to nothing, at a bold learning rate."""
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "rows", kind="binary")
    spec = make_spec(store, dataset, tmp_path / "segment", steps=250, every_steps=250, learning_rate=3e-2)
    nervous = DivergenceConfig(spike_sigmas=DivergenceConfig().spike_sigmas / 2)
    outcome = train_forked(spec.model_copy(update={"divergence": nervous}), store)
    assert outcome.outcome == "completed", read_log(spec)
