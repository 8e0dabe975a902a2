"""`[notices]`: no source is asked unless the configuration names it."""

import pytest

from tasks.config.load import configure
from tasks.config.template import render_configuration, start_configuration
from tasks.configuration.notices import NoticesConfig
from tasks.configuration.run import RunConfig


def test_nobody_is_asked_by_default_and_a_wrong_name_is_refused_with_the_right_ones() -> None:
    values = {"run": "run", "data": {"text": "t", "label": "l", "kind": "binary"}}
    assert configure(RunConfig, values, "file").notices == NoticesConfig(clouds=[], file=None)
    with pytest.raises(ValueError, match=r"notices.clouds.0: must be 'aws', 'gcp' or 'azure' \(found 'amazon'\)"):
        configure(RunConfig, values | {"notices": {"clouds": ["amazon"]}}, "file")


def test_the_printed_configuration_says_why_nobody_is_asked_by_default() -> None:
    printed = render_configuration(start_configuration([]), full=True)
    assert "\n[notices]\n" in printed and "\n# clouds = []\n" in printed
    assert "Default: none, since on a machine that is not in the cloud" in printed.replace("\n# ", " ")
