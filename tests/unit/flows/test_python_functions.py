"""The functions of `import holdfast` have every option of their command, and pass each on by its name."""

from collections.abc import Callable
from typing import Any

import pytest
import typer

import holdfast
import holdfast.functions
from flows.cli import make_app

# What stands for no option of a function: it always asks for JSON, and `settings` are passed to `call` as they are.
BY_CALL = {"as_json", "assignments"}
OTHER_THAN_DEFAULT: dict[str, dict[str, Any]] = {
    "evaluate": {"checkpoint": 7, "split": "train", "source": "rows.csv", "factory": "a.py:build"},
    "export": {"checkpoint": 7, "onnx": False, "overwrite": True, "factory": "a.py:build", "adapter": True},
    "predict": {
        "data": "rows.csv", "result": "out.parquet", "threads": 3, "truncate": True, "calibrated": True,
        "fitted_thresholds": True, "skip_bad": "bad.parquet", "factory": "a.py:build",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_THAN_DEFAULT)
def test_a_function_can_set_whatever_its_command_can(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(holdfast.functions, "call", lambda _name, given, *_: called.append(list(map(str, given))))
    function: Callable[..., Any] = getattr(holdfast.functions, name)
    function(*(["first", "second"] if name == "export" else ["first"]), **OTHER_THAN_DEFAULT[name])
    command = typer.main.get_command(make_app([name]))
    found = command.make_context(name, called[0]).params
    defaults = {parameter.name: parameter.default for parameter in command.params}
    left = {option for option, value in found.items() if value == defaults[option]} - BY_CALL
    assert found.keys() >= defaults.keys() - {"help"} and left == set()
