"""A command is a file in `flows/commands`, and a line in the guide: nothing else has to be told of it."""

import inspect
import re
from pathlib import Path

import pytest

from flows import commands
from flows.cli import FIRST_COMMANDS, SHARED_BY_COMMANDS, find_commands, load_command, make_app, read_summary

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "deployments" / "commands.md").read_text(encoding="utf-8")
FILES = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__"}


def test_each_file_is_a_command_or_shared_by_several() -> None:
    assert sorted(find_commands()) == sorted(FILES - SHARED_BY_COMMANDS)
    assert set(FIRST_COMMANDS) <= FILES and SHARED_BY_COMMANDS <= FILES
    assert [path.name for path in Path(commands.__path__[0]).iterdir() if path.is_dir() and path.name[0] != "_"] == []


@pytest.mark.parametrize("name", find_commands())
def test_a_command_has_its_function_its_summary_and_its_line_in_the_guide(name: str) -> None:
    function = load_command(name)
    assert function.__name__ == name
    assert read_summary(name) == (inspect.getdoc(function) or "").splitlines()[0]
    assert re.search(rf"^    holdfast {name}\b", GUIDE, re.MULTILINE), f"`holdfast {name}` is not in the guide"


def test_the_guide_names_no_command_that_is_not_there() -> None:
    assert set(re.findall(r"^    holdfast (\w+)", GUIDE, re.MULTILINE)) == set(find_commands())


def test_a_file_more_is_a_command_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greet.py").write_text('def greet() -> None:\n    """Greet who asks."""\n    print("hello")\n')
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert find_commands()[-1] == "greet"
    assert load_command("greet").__doc__ == "Greet who asks."


def test_only_the_command_that_is_called_is_loaded() -> None:
    names = [command.name or command.callback.__name__ for command in make_app(["status", "x"]).registered_commands]  # type: ignore[union-attr]
    assert names == ["status"]
    assert len(make_app(["--help"]).registered_commands) == len(find_commands())
