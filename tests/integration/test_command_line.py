"""The command line itself: how it is started, and what its help says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from tests.helpers.commands import COMMAND, ROOT, call_narrow
from tests.helpers.runs import make_run


def in_a_process(*arguments: object, command: tuple[str, ...] = tuple(COMMAND)) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "COLUMNS": "80"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_corpus_depends_on_its_seed_and_not_on_the_process(tmp_path: Path) -> None:
    options = ("--job", "policy", "--rows", "500", "--set")
    made = {}
    for name, seed in (("a", "seed=3"), ("b", "seed=3"), ("c", "seed=4")):
        assert in_a_process("corpus", tmp_path / name, *options, seed).returncode == 0
        made[name] = [path.read_bytes() for path in sorted((tmp_path / name).glob("*.parquet"))]
    assert made["a"] == made["b"] != made["c"]


def test_the_console_script_and_the_module_are_one_command() -> None:
    script = Path(sys.executable).with_name("holdfast")
    if not script.exists():
        pytest.skip("holdfast is not installed beside this Python")
    for arguments in (["--help"], ["run", "--help"], ["run"]):
        by_script, by_module = in_a_process(*arguments, command=(str(script),)), in_a_process(*arguments)
        assert by_script.stdout == by_module.stdout and by_script.stderr == by_module.stderr
        assert by_script.returncode == by_module.returncode


@pytest.mark.parametrize(
    "settings",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},  # no more characters than ASCII has
        {"PYTHONIOENCODING": "ascii"},  # for what is written alone
    ],
)
def test_where_the_locale_is_not_utf_8_names_that_are_work(settings: dict[str, str], tmp_path: Path) -> None:
    make_run(LocalStore(tmp_path / "Männer"), "run")
    done = subprocess.run(
        [*COMMAND, "status", tmp_path / "Männer" / "runs" / "run"], env=os.environ | settings, cwd=ROOT,
        capture_output=True, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Run run")
    missing = subprocess.run(
        [*COMMAND, "status", tmp_path / "Männer" / "runs" / "other"], env=os.environ | settings, cwd=ROOT,
        capture_output=True, timeout=240,
    )  # fmt: skip
    shown = missing.stderr.decode("utf-8")
    assert missing.returncode == 2 and "Traceback" not in shown
    assert "Männer" in shown or "M\\xe4nner" in shown


@pytest.mark.parametrize(
    "command",
    [
        "corpus", "run", "status", "logs", "runs", "report", "evaluate", "export", "verify", "scrub", "prune", "audit",
        "advise", "drill", "deploy", "reconcile",
    ],
)  # fmt: skip
def test_help_fits_the_terminal_and_tells_of_set(command: str) -> None:
    help_text = call_narrow(command, "--help").stdout
    assert "--set KEY=VALUE" in help_text
    assert max(map(len, help_text.splitlines())) <= 80


def test_the_list_of_commands_is_not_cut_off() -> None:
    help_text = call_narrow("--help").stdout
    commands = (
        "corpus", "prepare", "run   ", "status", "logs  ", "runs  ", "report", "evaluate", "export", "predict",
        "verify", "prune ", "audit ", "advise",
    )  # fmt: skip
    assert all(f"\n  {command}  " in help_text for command in commands)
    assert "..." not in help_text.partition("Commands:")[2]
