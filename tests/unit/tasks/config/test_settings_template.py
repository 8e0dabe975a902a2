"""`holdfast config`: what it prints is a configuration file, with every field and its default."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tasks.config.load import load_configuration
from tasks.config.template import render_configuration, start_configuration
from tasks.configuration.run import RunConfig
from training.configuration import ConfigModel

CONFIGS = Path(__file__).parents[4] / "deployments" / "configs"
NOT_SET = ("(not set)", "(by the number of rows)")
FIELD = re.compile(r"^# (\w+ = .*)$", re.MULTILINE)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_what_is_printed_is_the_same_configuration_when_it_is_read(path: Path, full: bool, tmp_path: Path) -> None:
    config = load_configuration(path)
    printed = tmp_path / "elsewhere" / "printed.toml"
    printed.parent.mkdir()
    printed.write_text(render_configuration(config, full))
    again = load_configuration(printed)
    assert again == config
    assert render_configuration(again, full) == printed.read_text()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("lora", [None, {}, {"rank": 4, "target_modules": ["query", "value"]}])
def test_a_section_that_may_be_left_out_comes_back_as_it_was(
    lora: dict[str, Any] | None, full: bool, tmp_path: Path
) -> None:
    values = start_configuration([]).model_dump(exclude_unset=True)
    model = {"kind": "pretrained", "name": str(tmp_path)} | ({} if lora is None else {"lora": lora})
    config = RunConfig.model_validate(values | {"model": model})
    path = tmp_path / "run.toml"
    path.write_text(render_configuration(config, full))
    assert load_configuration(path).model == config.model


def test_texts_that_need_care_in_toml_come_back_as_they_were(tmp_path: Path) -> None:
    names = ['a"b', "a\\b", "a\x7fb", "tab\t", "ä", "\U0001f600"]
    config = start_configuration([]).model_dump(exclude_unset=True)
    config["data"]["numeric"] = names
    path = tmp_path / "run.toml"
    path.write_text(render_configuration(RunConfig.model_validate(config), full=False), encoding="utf-8")
    assert load_configuration(path).data.numeric == names


def every_field(section: ConfigModel) -> dict[str, Any]:
    """Those that a stored configuration leaves out while they change nothing too."""
    values = {name: getattr(section, name) for name in type(section).model_fields}
    found = {name: every_field(value) if isinstance(value, ConfigModel) else value for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def test_with_every_comment_made_a_line_it_is_the_configuration_with_every_default(tmp_path: Path) -> None:
    config = start_configuration([])
    printed = render_configuration(config, full=True)
    lines = [line for line in FIELD.sub(r"\1", printed).splitlines() if not line.endswith(NOT_SET)]
    assert tomllib.loads("\n".join(lines)) == every_field(config)


def test_every_field_is_there_and_has_a_description() -> None:
    printed = render_configuration(start_configuration([]), full=True).splitlines()
    names = [FIELD.sub(r"\1", line).partition(" = ")[0] for line in printed]
    for name in ("run", "scratch", "column", "adam_beta1", "lowest_metric", "keep_bytes", "seconds", "attempts"):
        before = printed[names.index(name) - 1]
        assert re.match(r"# \w", before), name


def test_the_configuration_to_start_from_names_no_column_of_ids_as_most_tables_have_none() -> None:
    assert "\nid = " not in render_configuration(start_configuration([]), full=False)
    assert "\n# id = " in render_configuration(start_configuration([]), full=True)


def test_the_configuration_to_start_from_is_changed_by_set() -> None:
    printed = render_configuration(start_configuration(["run=mine", "train.steps=7"]), full=False)
    assert 'run = "mine"\n' in printed and "\nsteps = 7\n" in printed and "adam_beta1" not in printed
