"""When a run is validated: a function of its configuration and the step, and of nothing that happened."""

import pytest

from tasks.config.template import render_configuration, start_configuration
from tasks.configuration.run import RunConfig
from training.validation_configuration import ValidationConfig


def validated_steps(num_steps: int, every_steps: int | None = None, begin: int = 0) -> list[int]:
    config = ValidationConfig(every_steps=every_steps)
    return [step for step in range(begin, num_steps + 1) if config.is_due(step, num_steps)]


@pytest.mark.parametrize(
    ("num_steps", "steps"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (7, [2, 4, 6, 7]),
        (300, [60, 120, 180, 240, 300]),
        (1000, [200, 400, 600, 800, 1000]),
        (50_000, [10_000, 20_000, 30_000, 40_000, 50_000]),
        (75_000, [10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000, 75_000]),
    ],
)
def test_by_default_a_run_is_validated_five_times_and_a_long_one_every_10_000_steps(
    num_steps: int, steps: list[int]
) -> None:
    assert validated_steps(num_steps) == steps


def test_a_cadence_that_is_given_is_kept_and_the_last_step_has_a_validation_too() -> None:
    assert validated_steps(100, every_steps=30) == [30, 60, 90, 100]
    assert validated_steps(100, every_steps=10_000) == [100]


def test_a_run_that_begins_again_in_the_middle_is_validated_at_the_same_steps() -> None:
    assert validated_steps(300, begin=61) == [120, 180, 240, 300]


def test_the_default_is_told_where_a_user_looks_for_it() -> None:
    printed = " ".join(render_configuration(start_configuration([]), full=True).replace("# ", "").split())
    told = "Default: a fifth of train.steps where they are set, else a twentieth of the steps; at most 10,000."
    assert told in printed
    assert RunConfig.model_fields["validation"].default.every_steps is None
