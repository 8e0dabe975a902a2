"""What checkpoints may take is no less than those that always stay."""

import pytest

from storage.errors import ConfigurationError
from training.configuration import CheckpointConfig
from training.optim.checkpoint_budget import require_budget


@pytest.mark.parametrize(("keep_best", "least"), [(1, 36_000), (0, 24_000)])
def test_a_budget_below_the_checkpoints_that_always_stay_is_refused(keep_best: int, least: int) -> None:
    require_budget(CheckpointConfig(keep_best=keep_best, keep_bytes=least), 1000)
    require_budget(CheckpointConfig(keep_best=keep_best), 1000)
    with pytest.raises(ConfigurationError, match=f"expected at least {least:,}: .* of 12,000 bytes each"):
        require_budget(CheckpointConfig(keep_best=keep_best, keep_bytes=least - 1), 1000)
