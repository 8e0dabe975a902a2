"""Imports that take place on first use: nothing is executed before, everything is as without them afterwards."""

import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.lazy_imports import lazy_imports

SLOW = """
import time
executed = [__name__]
time.sleep(0.05)
VALUE = 42
def ask(): return VALUE
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a package `things` of modules that did not happen to be imported before."""
    package = tmp_path / "things"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "slow.py").write_text(SLOW)
    (package / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "things"]:
        del sys.modules[name]


def test_a_module_is_executed_when_something_of_it_is_used_and_not_before(folder: Path) -> None:
    with lazy_imports():
        import things.slow as slow
    with lazy_imports():
        from things import slow as again
    assert "VALUE" not in vars(slow) and again is slow
    assert slow.ask() == 42
    assert inspect.getsourcefile(slow) == str(folder / "slow.py")
    assert slow.__spec__.loader.name == "things.slow"


def test_an_import_outside_the_block_gets_the_names_at_once(folder: Path) -> None:
    with lazy_imports():
        import things.slow as slow
    from things.slow import VALUE

    assert (VALUE, slow.executed) == (42, ["things.slow"])


def test_several_threads_get_the_whole_module(folder: Path) -> None:
    with lazy_imports():
        import things.slow as slow
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(slow.VALUE)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [42] * 8


def test_what_is_missing_is_missing_each_time_it_is_asked_for(folder: Path) -> None:
    with lazy_imports():
        import things.broken as broken
        import things.slow as slow
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
            print(broken.anything)
    with pytest.raises(AttributeError, match=r"module 'things\.slow' has no attribute 'other'"):
        print(slow.other)
    with pytest.raises(ModuleNotFoundError), lazy_imports():
        import things.absent  # noqa: F401


def test_the_module_of_a_command_executes_nothing_that_takes_long() -> None:
    code = "import flows.commands.status, sys; print({'pydantic', 'duckdb'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.stdout == "set()\n", done.stderr
