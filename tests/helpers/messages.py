"""Wrong inputs, and what a user is to see of them: the files in `tests/golden/messages`.

A file has the command as it is typed, what it prints on stderr, and its exit code. Paths and times are replaced by
words, and news of the progress, which begin with the time, are left out. With HOLDFAST_TEST_WRITE_MESSAGES=1 in the
environment the files are written anew in place of being compared: read what `git diff` then shows as the user would.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.datasets import DatasetManifest
from storage.objects.digests import sha256_of_file
from tasks.configuration.run import RunConfig
from tasks.data.pipeline import prepare_dataset
from tasks.run_paths import open_run_paths
from tests.helpers.commands import call_here
from tests.helpers.parquet import CLASSES, WORDS

GOLDEN = Path(__file__).parents[1] / "golden" / "messages"
WRITE = "HOLDFAST_TEST_WRITE_MESSAGES"
# What the names of files have by chance.
BY_CHANCE = re.compile(r"\b[0-9a-f]{32}\b")
NEWS = re.compile(r"^\[\d\d:\d\d:\d\d\] .*\n", re.MULTILINE)
NUM_ROWS = 120

CONFIGURATION = """\
run = "case"
store = "store"

[data]
source = "data.csv"
id = "sample_id"
text = "text"
label = "domain"
kind = "multiclass"
vocabulary_size = 300
"""

Content = str | bytes | Callable[[Path], object]


def csv_text(labels: Sequence[object] = CLASSES, **columns: Sequence[object]) -> str:
    """A sound CSV file of 120 rows, whose labels and other columns take these values in turn."""
    rows = [["sample_id", "text", "domain", *columns]]
    words = list(WORDS.values())
    for row in range(NUM_ROWS):
        values = [values[row % len(values)] for values in (labels, *columns.values())]
        rows.append([f"s{row:05d}", f"{words[row % 3]} number {row}", *map(str, values)])
    return "".join(",".join(row) + "\n" for row in rows)


@dataclass(frozen=True)
class Mistake:
    """Settings for a command, and files in place of, or beside, `run.toml` and `data.csv`, which are sound.

    A function is given the path, and writes the file itself.
    """

    settings: Sequence[str] = ()
    files: Mapping[str, Content] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write all that the user has, a store with a data set of before included."""
        kept: dict[str, Content] = {"store/datasets/earlier/dataset.json": "what was there before"}
        for name, content in (kept | {"run.toml": CONFIGURATION, "data.csv": csv_text(), **self.files}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif isinstance(content, str):
                path.write_text(content)
            else:
                content(path)

    def command(self, name: str) -> list[str]:
        """What is typed after `holdfast`."""
        return [name, "run.toml", *(part for setting in self.settings for part in ("--set", setting))]


def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `holdfast prepare` of this process prepare the data itself, where it would start Prefect to have it done."""

    def prepare(config: RunConfig) -> DatasetManifest:
        places = open_run_paths(config)
        return prepare_dataset(config.data, places.store, places.data_scratch)

    server = SimpleNamespace(begin=lambda: None, wait=lambda: None)
    begun = SimpleNamespace(configured_server=lambda: nullcontext(server))
    monkeypatch.setattr("flows.commands.prepare.prefect_server", begun)
    monkeypatch.setattr("flows.commands.prepare.preparing", SimpleNamespace(prepare_in_flow=prepare))
    monkeypatch.setattr("flows.commands.prepare.messages", SimpleNamespace(show_messages=lambda: None))
    monkeypatch.setattr("flows.commands.prepare.leave_on_signals", lambda: None)


def require_message(
    name: str,
    folder: Path,
    arguments: Sequence[object],
    call: Callable[[Sequence[object]], "subprocess.CompletedProcess[str]"] = call_here,
    **words: object,
) -> None:
    """A command, by `call`, says what the file of this name has, and changes nothing in `folder`."""
    before = _contents_of(folder)
    result = call(arguments)
    assert _contents_of(folder) == before
    assert result.returncode != 0, result.stdout + result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    assert result.stdout == ""
    typed = shlex.join(["holdfast", *map(str, arguments)])
    require_golden(name, f"$ {typed}\n{NEWS.sub('', result.stderr)}exit code {result.returncode}\n", folder, **words)


def require_golden(name: str, text: str, folder: Path, **words: object) -> None:
    """The file of this name has the text, in which FOLDER stands for `folder` and a name of `words` for its value."""
    for word, value in {"FOLDER": folder, **words}.items():
        text = text.replace(str(value), word)
    text = BY_CHANCE.sub("RANDOM", text).rstrip("\n") + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get(WRITE):
        path.write_text(text)
    assert path.read_text() == text, f"If this is what a user should see: {WRITE}=1"


def _contents_of(folder: Path) -> dict[str, str]:
    """The digest of every file, but of those under way, and where every link leads."""
    found = [path for path in folder.rglob("*") if ".tmp" not in path.relative_to(folder).parts]
    digests = {str(path): sha256_of_file(path) for path in found if path.is_file()}
    return digests | {str(path): str(path.readlink()) for path in found if path.is_symlink()}
