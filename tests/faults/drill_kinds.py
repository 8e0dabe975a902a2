"""`make drill-kinds`: `holdfast drill` of each kind of model, target and optimizer, and a table of its verdicts.

    python -m tests.faults.drill_kinds [--only WORDS ...] [--device cuda] [--precision bf16] [--at-once N]

One run of each is not interrupted; another is killed twice, and goes on with one, three and two ranks, which share one
GPU if it is to be on GPUs. Pretrained models are BERTs of two layers with random weights. Exit code 0 if all are
identical.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.helpers.commands import COMMAND, ROOT
from tests.helpers.own_modules import write_module, write_optimizer
from tests.helpers.parquet import WORDS, write_parquet
from tests.helpers.pretrained import write_tiny_bert

ROWS, STEPS, KILLS, WORLD_SIZES = 240, 40, 2, "1,3,2"
LONGEST_SECONDS = 1800.0  # for what hangs, not for what is slow
SETTINGS: dict[str, dict[str, Any]] = {
    "data": {
        "id": "id", "text": "text", "label": "topic", "kind": "multiclass", "max_tokens": 24, "too_long": "truncate",
        "row_group_rows": 16, "shard_rows": 64, "split": {"validation_fraction": 0.2, "test_fraction": 0.3},
    },
    "model": {},
    "train": {"steps": STEPS, "batch_size": 12, "microbatches": 3, "learning_rate": 1e-2},
    "validation": {"every_steps": 10},
    "checkpoint": {"every_steps": 5},
    "retry": {"delay_seconds": 0.1},
}  # fmt: skip
ENCODER = {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "metadata_width": 4}
METADATA = {"numeric": ["age"], "categorical": ["language"]}


@dataclass(frozen=True)
class Kind:
    """What is drilled, and the fields in which its configuration differs from `SETTINGS`."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=lambda: ENCODER)
    train: dict[str, Any] = field(default_factory=dict)


class Drilled(NamedTuple):
    """What `holdfast drill` said of a kind, how often it killed the run, and how long it took."""

    verdict: str
    kills: int
    seconds: float


def main() -> int:
    """Drill what the command line asks for."""
    options = argparse.ArgumentParser(prog="make drill-kinds", description="Drill each kind of model and target.")
    options.add_argument(
        "--only", nargs="+", default=[""], metavar="WORDS", help="kinds with any of these in their name"
    )
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    options.add_argument("--at-once", type=int, default=1, metavar="N", help="drills at a time")
    given = options.parse_args()
    machine = {"device": given.device, "share_gpus": given.device == "cuda", "precision": given.precision}
    shown, found = Table("kind", "verdict", "kills", "seconds"), []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.at_once) as drills:
        kinds = [kind for kind in list_kinds(Path(name)) if any(words in kind.name for words in given.only)]
        for kind, drilled in zip(kinds, drills.map(lambda kind: drill(kind, machine, Path(name)), kinds), strict=True):
            found.append(drilled.verdict)
            shown.add_row(kind.name, drilled.verdict, str(drilled.kills), f"{drilled.seconds:.0f}")
            print(f"{kind.name}: {drilled.verdict}", flush=True)
    Console(width=120).print(shown)
    identical = found.count("Identical")
    print(f"{identical} of {len(found)} kinds are identical.")
    return int(not found or identical < len(found))


def list_kinds(folder: Path) -> list[Kind]:
    """All that have code of their own in a step, a checkpoint or a restore."""
    bert = {"kind": "pretrained", "name": str(write_tiny_bert(folder / "bert"))}
    module = {"kind": "module", "factory": f"{write_module(folder / 'code')}:build"}
    rmsprop = {"optimizer": "factory", "optimizer_factory": f"{write_optimizer(folder / 'code')}:build"}
    tags = {"kind": "multilabel"}
    return [
        Kind("our encoder, metadata, AdamW", METADATA),
        Kind("our encoder, binary target, SGD with Nesterov's momentum", {"kind": "binary", "label": "is_new"}, train={
            "optimizer": "sgd", "nesterov": True, "learning_rate": 0.1}),
        Kind("our encoder, one microbatch a step", train={"microbatches": 1}),
        Kind("several labels from a column of lists", {**tags, "label": "tags"}),
        Kind("several labels from columns, weights of rows", {
            **tags, "label": ["first", "second"], "weight": "weight"}),
        Kind("pretrained, mean of the tokens, linear schedule", model={**bert, "pooling": "mean"}, train={
            "schedule": "linear"}),
        Kind("pretrained, first token, metadata", METADATA, {**bert, "pooling": "cls"}),
        Kind("pretrained, pairs of texts, a frozen layer, rates by layer", {"text": ["text", "other"]},
             {**bert, "frozen_layers": 1, "layer_decay": 0.8}),
        Kind("pretrained, a head alone", model={**bert, "frozen_layers": 2}),
        Kind("pretrained, SGD at a constant rate", model=bert, train={"optimizer": "sgd", "schedule": "constant"}),
        Kind("LoRA with dropout", model={**bert, "lora": {"rank": 2, "dropout": 0.2}}),
        Kind("own module, metadata, AdamW", METADATA, module),
        Kind("own module, own optimizer", METADATA, module, rmsprop),
        Kind("own module, several labels", {**tags, "label": "tags"}, module),
    ]  # fmt: skip


def drill(kind: Kind, machine: dict[str, Any], folder: Path) -> Drilled:
    """Drill it in a store of its own. `machine` has fields of `train` that decide on what is computed."""
    own = folder / "".join(letter if letter.isalnum() else "-" for letter in kind.name)
    values: dict[str, Any] = {name: dict(section) for name, section in SETTINGS.items()}
    values["data"] |= {"source": str(write_parquet(own / "rows.parquet", make_rows())), **kind.data}
    values["model"] |= kind.model
    values["train"] |= machine | kind.train
    path = own / "kind.toml"
    path.write_text("\n".join(['run = "kind"', f'store = "{own / "store"}"', *toml_lines(values)]))
    options = ["--kills", str(KILLS), "--world-sizes", WORLD_SIZES, "--seed", "5", "--json"]
    if kind.train.get("microbatches") == 1:
        options[3] = "1"
    line = [*COMMAND, "drill", str(path), *options]
    began = time.monotonic()
    try:
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Drilled(f"failed: it did not end within {LONGEST_SECONDS:,.0f} s", 0, LONGEST_SECONDS)
    seconds = time.monotonic() - began
    if not done.stdout:
        return Drilled(f"failed: {done.stderr.strip()[-300:]}", 0, seconds)
    said = json.loads(done.stdout)
    return Drilled(said["verdict"]["badge"], len(said["kills"]), seconds)


def make_rows() -> dict[str, Any]:
    """Columns of rows that each kind finds something in."""
    generator = random.Random(1)
    topics = [generator.choice(list(WORDS)) for _ in range(ROWS)]
    numbers = range(ROWS)
    return {
        "id": [f"s{number:04d}" for number in numbers],
        "text": [f"{WORDS[topic]} {'again ' * generator.randint(0, 9)}{number}" for number, topic in enumerate(topics)],
        "other": [f"{'plan ' * generator.randint(1, 5)}{WORDS[topic]}" for topic in topics],
        "age": [None if number % 11 == 0 else generator.random() * 1e4 for number in numbers],
        "language": [None if number % 9 == 0 else f"l{number % 4}" for number in numbers],
        "weight": [generator.random() + 0.1 for _ in numbers],
        "tags": [[topic for topic in WORDS if topic == own or generator.random() < 0.2] for own in topics],
        **{name: [int(generator.random() < 0.4) for _ in numbers] for name in ("first", "second")},
        "is_new": [generator.random() < 0.4 for _ in numbers],
        "topic": topics,
    }


def toml_lines(sections: dict[str, Any]) -> list[str]:
    """Each section, with what JSON and TOML write alike; tables within are written on their line."""
    lines = []
    for name, fields in sections.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in fields.items())]
    return lines


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
