"""Wrong inputs: what a user sees of each is one message, as `tests/golden/messages` has it, and nothing is changed."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.messages import (
    CONFIGURATION,
    GOLDEN,
    Mistake,
    csv_text,
    require_message,
    without_prefect,
)
from tests.helpers.parquet import text_columns, write_table

CSV = csv_text()
PRETRAINED, BERT = ["model.kind=pretrained", "model.name=./bert"], '{"model_type": "bert"}'
PROGRAM = Path(sys.executable).with_name("holdfast")


def configured(old: str, new: str) -> dict[str, Any]:
    """The configuration file with a part of its text replaced."""
    assert old in CONFIGURATION
    return {"run.toml": CONFIGURATION.replace(old, new)}


def with_text(text: str) -> dict[str, str]:
    """A sound file but for one field of its sixth line."""
    sound = "book a flight to oslo number 4,"
    assert CSV.count(sound) == 1
    return {"data.csv": CSV.replace(sound, f"{text},")}


def table(**changes: Any) -> Callable[[Path], object]:
    """What writes a file of columns, in the format of its name."""
    return lambda path: write_table(path, text_columns(120) | changes)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("../cache/a.csv")


def write_not_utf8(path: Path) -> None:
    texts = [text.encode() for text in text_columns(120)["text"]]
    texts[7] = b"caf\xe9 au lait"
    wrong = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    table(text=wrong)(path)


def write_half(path: Path) -> None:
    table()(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def json_lines(**changes: Any) -> str:
    rows = [{"sample_id": f"s{i}", "text": f"word {i}", "domain": ("work", "travel")[i % 2]} for i in range(120)]
    rows[3] |= changes
    return "".join(json.dumps(row) + "\n" for row in rows)


A_TABLE = {"a.parquet": table()}
CONFIGURATIONS = {
    # The file.
    "a-file-that-is-not-there": Mistake(files={"run.toml": lambda path: None}),
    "a-folder-in-place-of-a-file": Mistake(files={"run.toml": lambda path: path.mkdir()}),
    "a-file-in-utf-16": Mistake(files={"run.toml": CONFIGURATION.encode("utf-16")}),
    "a-file-in-latin-1": Mistake(files={"run.toml": CONFIGURATION.replace("case", "caf\u00e9").encode("latin-1")}),
    "a-mark-before-the-file-and-a-wrong-key": Mistake(
        files={"run.toml": b"\xef\xbb\xbf" + CONFIGURATION.replace("label =", "lable =").encode()}
    ),
    "a-json-file": Mistake(files={"run.toml": '{"run": "case", "store": "store"}\n'}),
    "a-word-without-quotes": Mistake(files=configured('"multiclass"', "multiclass")),
    "a-backslash-in-a-path": Mistake(files=configured('"data.csv"', r'"C:\data\texts.csv"')),
    "a-key-twice": Mistake(files=configured('label = "domain"', 'label = "domain"\nlabel = "region"')),
    "a-section-twice": Mistake(files={"run.toml": CONFIGURATION + '[data]\ntext = "text"\n'}),
    "a-yaml-file": Mistake(files={"run.toml": "run: case\ndata:\n  source: data.csv\n"}),
    "an-empty-file": Mistake(files={"run.toml": ""}),
    # Which fields there are.
    "a-misspelt-key": Mistake(["train.stepz=500"]),
    "a-misspelt-section": Mistake(files=configured("[data]", "[dat]")),
    "a-key-in-another-section": Mistake(["learning_rate=0.01"]),
    "a-key-of-another-program": Mistake(["checkpoint.max_bytes=1000000"]),
    "a-key-like-no-other": Mistake(["train.zzz=1"]),
    "no-kind": Mistake(files=configured('kind = "multiclass"\n', "")),
    "no-run-and-no-data": Mistake(files={"run.toml": 'store = "store"\n'}),
    # What a field may be.
    "a-kind-that-there-is-not": Mistake(["data.kind=regression"]),
    "a-word-for-a-number": Mistake(["train.steps=many"]),
    "a-text-for-a-list": Mistake(["data.numeric=length"]),
    "a-number-for-a-section": Mistake(["train=5"]),
    "a-truth-value-for-a-column": Mistake(["data.text=true"]),
    "a-fraction-of-steps": Mistake(["train.steps=10.5"]),
    "more-steps-than-there-are": Mistake(["train.steps=100000000000000000000"]),
    "no-steps": Mistake(["train.steps=0"]),
    "a-share-above-one-half": Mistake(["data.split.test_fraction=0.8"]),
    "a-learning-rate-of-nan": Mistake(["train.learning_rate=nan"]),
    "several-mistakes-at-once": Mistake(["train.batch_size=-1", "model.dropout=1.5", "data.lable=domain"]),
    "a-setting-without-a-value": Mistake(["train.steps"]),
    "a-run-with-a-path-for-a-name": Mistake(["run=runs/case"]),
    # How fields agree.
    "steps-and-epochs": Mistake(files=configured("[data]", "[train]\nsteps = 5\nepochs = 2\n[data]")),
    "more-ranks-than-microbatches": Mistake(["train.ranks=8"]),
    "text-and-tokens": Mistake(["data.tokens=tokens"]),
    "a-column-with-two-meanings": Mistake(['data.categorical=["domain"]']),
    "one-class-in-the-configuration": Mistake(['data.classes=["work"]']),
    "a-name-for-one-class": Mistake(['data.class_names=["work"]']),
    "more-heads-than-fit": Mistake(["model.heads=5"]),
    "a-gate-without-a-limit": Mistake(["checkpoint.gate.lowest_from_step=100"]),
    "a-namespace-with-capitals": Mistake(["cluster.kubernetes.namespace=Team_A"]),
    "a-column-without-a-name": Mistake(['data.numeric=[""]']),
    "a-column-to-split-by-that-is-not-given": Mistake(["data.split.by=time"]),
    "a-metric-that-there-is-not": Mistake(["validation.metric_for_best_model=f1"]),
    "a-limit-that-is-no-size": Mistake(["data.memory_limit=lots"]),
    # Where things are.
    "a-store-of-another-protocol": Mistake(["store=gs://bucket/store"]),
    "a-store-with-a-port": Mistake(["store=s3://minio:9000/bucket"]),
    "a-store-that-is-a-file": Mistake(["store=data.csv"]),
    "a-store-behind-a-file": Mistake(["store=data.csv/store"]),
    "a-store-where-nobody-can-write": Mistake(["store=/proc/store"]),
    "a-scratch-behind-a-file": Mistake(["scratch=data.csv/scratch"]),
    "a-source-that-is-not-there": Mistake(["data.source=dada.csv"]),
    "a-source-that-is-not-set": Mistake(files=configured('source = "data.csv"\n', "")),
    "a-pattern-that-nothing-matches": Mistake(["data.source=parts/*.csv"]),
    "a-folder-without-data": Mistake(["data.source=notes"], {"notes/readme.txt": "nothing here"}),
    "a-source-on-the-web": Mistake(["data.source=https://example.org/data.csv"]),
    "a-link-to-nothing": Mistake(["data.source=parts"], {"parts/a.csv": link_to_nothing}),
    "two-formats-in-a-folder": Mistake(["data.source=parts"], {"parts/a.csv": CSV, "parts/b.parquet": table()}),
    "the-same-file-for-the-test": Mistake(["data.split.test_source=data.csv"]),
    "a-module-that-is-not-there": Mistake(["model.kind=module", "model.factory=./my_models.py:build"]),
    "a-pretrained-folder-that-is-not-there": Mistake(PRETRAINED),
    "a-pretrained-folder-without-a-configuration": Mistake(PRETRAINED, {"bert/notes.txt": ""}),
    "a-pretrained-folder-without-a-tokenizer": Mistake(PRETRAINED, {"bert/config.json": BERT}),
    "a-pretrained-folder-without-weights": Mistake(
        PRETRAINED, {"bert/config.json": BERT, "bert/tokenizer.json": "{}", "bert/pytorch_model.bin": ""}
    ),
    "a-model-with-a-key-of-another-kind": Mistake(["model.name=./bert"]),
}  # fmt: skip

DATA = {
    # Lines.
    "separated-by-semicolons": Mistake(files={"data.csv": CSV.replace(",", ";")}),
    "separated-by-tabs": Mistake(files={"data.csv": CSV.replace(",", "\t")}),
    "no-header": Mistake(files={"data.csv": CSV.partition("\n")[2]}),
    "lines-that-end-with-cr": Mistake(files={"data.csv": CSV.replace("\n", "\r").encode()}),
    "a-quote-that-is-not-closed": Mistake(files=with_text('"book')),
    "a-quote-within-a-field": Mistake(files=with_text('"a "big" one"')),
    "a-comma-in-a-text": Mistake(files=with_text("book a flight, soon")),
    "a-csv-in-latin-1": Mistake(files={"data.csv": with_text("troms\u00f8")["data.csv"].encode("latin-1")}),
    "a-csv-in-utf-16": Mistake(files={"data.csv": CSV.encode("utf-16")}),
    "a-csv-without-rows": Mistake(files={"data.csv": CSV.partition("\n")[0] + "\n"}),
    "a-csv-without-a-byte": Mistake(files={"data.csv": ""}),
    "a-gzip-that-was-cut-off": Mistake(["data.source=a.csv.gz"], {"a.csv.gz": gzip.compress(CSV.encode())[:-20]}),
    "a-json-array": Mistake(["data.source=a.json"], {"a.json": '[{"text": "a", "domain": "work"}]'}),
    "a-spreadsheet": Mistake(["data.source=a.xlsx"], {"a.xlsx": b"PK\x03\x04" + bytes(200)}),
    "a-json-line-that-was-cut-off": Mistake(["data.source=a.jsonl"], {"a.jsonl": json_lines()[:-30]}),
    "half-of-a-surrogate-pair": Mistake(["data.source=a.jsonl"], {"a.jsonl": json_lines(text="x" * 90 + "\ud83d")}),
    "numbers-for-texts-in-json": Mistake(["data.source=a.jsonl"], {"a.jsonl": json_lines(text=7)}),
    "a-parquet-file-that-was-cut-off": Mistake(["data.source=a.parquet"], {"a.parquet": write_half}),
    "a-text-that-is-not-utf-8": Mistake(["data.source=a.parquet"], {"a.parquet": write_not_utf8}),
    # Columns.
    "a-column-that-is-missing": Mistake(["data.label=domian"]),
    "a-column-that-differs-in-case": Mistake(["data.text=Text"]),
    "a-column-twice": Mistake(files={"data.csv": CSV.replace("sample_id,text,domain", "sample_id,text,text")}),
    "a-column-in-the-names-of-folders": Mistake(
        ["data.source=parts"], {"parts/domain=work/a.csv": "sample_id,text\na,b\n"}
    ),
    "texts-that-are-numbers": Mistake(["data.source=a.parquet", "data.text=length"], A_TABLE),
    "words-among-numbers": Mistake(['data.numeric=["age"]'], {"data.csv": csv_text(age=[*range(50), "n/a"])}),
    "times-of-another-form": Mistake(
        ["data.split.by=time", "data.split.column=at"], {"data.csv": csv_text(at=["2/24/2015 11:35"])}
    ),
    # Rows.
    "texts-that-are-empty": Mistake(["data.source=a.parquet"], {"a.parquet": table(text=["a", " \t"] * 60)}),
    "texts-that-are-missing": Mistake(files=with_text("")),
    "labels-that-are-missing": Mistake(files={"data.csv": csv_text(["billing", "work", ""])}),
    "ids-twice": Mistake(files={"data.csv": CSV + "s00003,pay the card bill,billing\n"}),
    "no-weight": Mistake(["data.weight=w"], {"data.csv": csv_text(w=[1, -1])}),
    "a-split-that-no-name-means": Mistake(
        ["data.split.by=given", "data.split.column=part"], {"data.csv": csv_text(part=["train", "dev", "eval"])}
    ),
    "a-split-without-rows": Mistake(
        ["data.split.by=given", "data.split.column=part"], {"data.csv": csv_text(part=["train", "test"])}
    ),
    # Labels.
    "one-class-only": Mistake(files={"data.csv": csv_text(["work"])}),
    "six-labels-with-binary": Mistake(["data.kind=binary"], {"data.csv": csv_text(["a", "b", "c", "d", "e", "f"])}),
    "two-words-with-binary": Mistake(["data.kind=binary"], {"data.csv": csv_text(["ham", "spam"])}),
    "labels-with-a-fraction": Mistake(files={"data.csv": csv_text([f"{i * 0.37 + 0.1:.4f}" for i in range(120)])}),
    "labels-with-a-fraction-in-parquet": Mistake(["data.source=a.parquet", "data.label=score"], A_TABLE),
    "labels-with-a-fraction-and-binary": Mistake(
        ["data.kind=binary"], {"data.csv": csv_text([f"{i * 0.37 + 0.1:.4f}" for i in range(120)])}
    ),
    "labels-joined-by-commas": Mistake(
        files={"data.csv": csv_text([f'"{a},{b}"' for a in range(12) for b in range(12) if a != b][:120])}
    ),
    "labels-of-csv-with-multilabel": Mistake(["data.kind=multilabel"]),
    "a-label-beside-the-classes": Mistake(['data.classes=["billing", "travel"]']),
    "a-class-that-only-the-test-has": Mistake(
        ["data.split.test_source=test.csv"], {"test.csv": csv_text(["work", "weather"]).replace("s0", "t0")}
    ),
    "labels-that-are-lists-in-parquet": Mistake(
        ["data.source=a.parquet"], {"a.parquet": table(domain=[["work"], ["work", "travel"]] * 60)}
    ),
    "labels-that-are-lists": Mistake(["data.source=a.jsonl"], {"a.jsonl": json_lines(domain=["work", "travel"])}),
}  # fmt: skip

COMMANDS = {
    "no-such-command": ["statsu", "run.toml"],
    "no-such-option": ["status", "run.toml", "--wacth"],
    "no-argument": ["run"],
    "status-of-no-run": ["status", "run.toml"],
    "logs-of-no-run": ["logs", "run.toml"],
    "stop-of-no-run": ["stop", "run.toml"],
    "report-of-no-run": ["report", "run.toml"],
    "evaluate-of-no-run": ["evaluate", "run.toml"],
    "export-of-no-run": ["export", "run.toml", "model"],
    "advise-of-no-run": ["advise", "run.toml"],
    "audit-of-no-run": ["audit", "run.toml"],
    "prune-of-no-run": ["prune", "run.toml"],
    "status-of-a-store": ["status", "store"],
    "status-of-a-data-file": ["status", "data.csv"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, where he is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_wrong_with_a_configuration_is_said(folder: Path, name: str) -> None:
    CONFIGURATIONS[name].write(folder)
    require_message(name, folder, CONFIGURATIONS[name].command("run"))


@pytest.mark.parametrize("name", DATA)
def test_what_is_wrong_with_data_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    DATA[name].write(folder)
    without_prefect(monkeypatch)
    require_message(name, folder, DATA[name].command("prepare"))
    assert list(folder.glob("**/prepare-*")) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_wrong_with_a_command_is_said(folder: Path, name: str) -> None:
    Mistake().write(folder)
    require_message(name, folder, COMMANDS[name])


def call_program(arguments: Sequence[object]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["no-kind", "a-quote-that-is-not-closed"])
def test_the_program_says_what_its_code_says_here(folder: Path, name: str) -> None:
    mistake, command = (CONFIGURATIONS | DATA)[name], "run" if name in CONFIGURATIONS else "prepare"
    mistake.write(folder)
    require_message(name, folder, mistake.command(command), call_program)


def test_every_file_of_a_message_has_a_test() -> None:
    sources = "".join(path.read_text() for path in GOLDEN.parents[1].glob("**/*.py"))
    assert [path.name for path in GOLDEN.iterdir() if f'"{path.stem}"' not in sources] == []
