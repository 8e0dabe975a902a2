"""A run of each job, trained for real, and exported: text with metadata, and tokens with metadata."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from tasks.configuration.run import RunConfig
from tests.helpers.commands import call_here
from tests.helpers.parquet import WORDS, read_split, write_parquet
from tests.helpers.trained_runs import train_run

SIZES: dict[str, Any] = {
    "model": {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "metadata_width": 4},
    "train": {"steps": 6, "batch_size": 12, "microbatches": 2, "learning_rate": 1e-2},
    "validation": {"every_steps": 2, "batch_size": 16},
    "checkpoint": {"every_steps": 2, "keep": 3, "background": False},
    "retry": {"reread_seconds": 0.1},
}
SPLIT = {"validation_fraction": 0.2, "test_fraction": 0.3}


@dataclass(frozen=True)
class Exported:
    """A run, its export, and the rows of its test split as a user has them."""

    store: LocalStore
    run: str
    dataset: DatasetManifest
    folder: Path
    data: Path
    labels: list[Any]

    @property
    def address(self) -> str:
        return f"{self.store.address}/runs/{self.run}"


def export_policy(folder: Path, *options: str) -> Exported:
    """Text with metadata; with ONNX, unless an option of the command says otherwise."""
    generator = random.Random(1)
    topics = [generator.choice(list(WORDS)) for _ in range(240)]
    columns = {
        "id": [f"s{i:04d}" for i in range(240)],
        "text": [f"{WORDS[topic]} {'again ' * generator.randint(0, 9)}{i}" for i, topic in enumerate(topics)],
        "age_days": pa.array([None if i % 11 == 0 else generator.random() * 1e4 for i in range(240)], pa.float64()),
        "language": pa.array([None if i % 9 == 0 else f"l{i % 4}" for i in range(240)]).dictionary_encode(),
        "topic": topics,
    }
    data = {
        "id": "id", "text": "text", "label": "topic", "kind": "multiclass", "numeric": ["age_days"],
        "categorical": ["language"], "vocabulary_size": 300, "max_tokens": 64, "row_group_rows": 16,
        "shard_rows": 64,
    }  # fmt: skip
    return _export(folder, columns, data, *options)


def export_pretrained(folder: Path, metadata: bool, **model: Any) -> Exported:
    """Text, with or without metadata, read by a pretrained model; without ONNX."""
    columns, data = _texts_with_ages(metadata)
    return _export(folder, columns, data, "--no-onnx", model={"kind": "pretrained", **model})


def _texts_with_ages(metadata: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns, and the section [data]."""
    generator = random.Random(3)
    topics = [generator.choice(list(WORDS)) for _ in range(200)]
    columns = {
        "id": [f"s{i:04d}" for i in range(200)],
        "text": [f"{WORDS[topic]} {'again ' * generator.randint(0, 9)}{i}" for i, topic in enumerate(topics)],
        **(
            {"age": pa.array([None if i % 11 == 0 else float(i) for i in range(200)], pa.float64())} if metadata else {}
        ),
        "topic": topics,
    }
    data = {
        "id": "id", "text": "text", "label": "topic", "kind": "multiclass", "numeric": ["age"] if metadata else [],
        "max_tokens": 24, "too_long": "truncate", "row_group_rows": 16, "shard_rows": 64,
    }  # fmt: skip
    return columns, data


def export_module(folder: Path, factory: str, *options: str, **train: Any) -> Exported:
    """Text with metadata, read by a module of a user's own."""
    columns, data = _texts_with_ages(True)
    model = {"kind": "module", "factory": factory}
    return _export(folder, columns, data, "--factory", factory, *options, model=model, train=train)


def export_tagged(folder: Path, **model: Any) -> Exported:
    """Text with any number of labels, read by a pretrained model; without ONNX."""
    generator = random.Random(3)
    topics = [[topic for topic in WORDS if generator.random() < 0.5] for _ in range(200)]
    columns = {
        "id": [f"s{i:04d}" for i in range(200)],
        "text": [" ".join([*(WORDS[topic] for topic in found), str(i)]) for i, found in enumerate(topics)],
        "topic": topics,
    }
    data = {
        "id": "id", "text": "text", "label": "topic", "kind": "multilabel", "max_tokens": 24, "row_group_rows": 16,
        "shard_rows": 64,
    }  # fmt: skip
    return _export(folder, columns, data, "--no-onnx", model={"kind": "pretrained", **model})


def export_quality(folder: Path) -> Exported:
    """Tokens under a mask with metadata, and a binary label."""
    generator = random.Random(2)
    lengths = [generator.randint(1, 12) for _ in range(240)]
    tokens = [[generator.randint(1, 99) for _ in range(length)] + [0] * (12 - length) for length in lengths]
    columns = {
        "id": list(range(240)),
        "input_ids": pa.array(tokens, pa.list_(pa.int32())),
        "attention_mask": pa.array([[True] * n + [False] * (12 - n) for n in lengths]),
        "score": pa.array([float("nan") if i % 11 == 0 else generator.gauss(3, 9) for i in range(240)], pa.float32()),
        "num_links": pa.array([None if i % 7 == 0 else i % 5 for i in range(240)], pa.int32()),
        "floor": pa.array([None if i % 13 == 0 else i % 3 + (i % 2) / 2 for i in range(240)], pa.float32()),
        "is_new": pa.array([None if i % 9 == 0 else i % 4 == 0 for i in range(240)], pa.bool_()),
        "topic": [ids[0] > 50 for ids in tokens],
    }
    data = {
        "id": "id", "tokens": "input_ids", "attention_mask": "attention_mask", "label": "topic", "kind": "binary",
        "numeric": ["score", "num_links"], "categorical": ["is_new", "floor"], "vocabulary_size": 300, "max_tokens": 12,
        "row_group_rows": 16, "shard_rows": 64,
    }  # fmt: skip
    return _export(folder, columns, data, "--no-onnx")


def _export(
    folder: Path, columns: dict[str, Any], data: dict[str, Any], *options: str, **sections: dict[str, Any]
) -> Exported:
    source = write_parquet(folder / "data.parquet", columns)
    values = {
        "run": "requests",
        "store": str(folder / "store"),
        "data": {"source": str(source), "split": SPLIT, **data},
    }
    train = SIZES["train"] | sections.pop("train", {})
    config = RunConfig.model_validate(SIZES | values | sections | {"train": train})
    store, dataset = train_run(config)
    out = folder / "requests-model"
    done = call_here(["export", f"{store.address}/runs/requests", out, "--checkpoint", "newest", *options])
    assert done.returncode == 0, done.stderr
    ids = pa.array(read_split(store, dataset, "test").column("id").to_pylist())
    table = pq.read_table(source)
    rows = table.filter(pc.is_in(table.column("id").cast(pa.string()), ids))
    tested = write_parquet(
        folder / "test.parquet", dict(zip(columns, rows.drop_columns("topic").columns, strict=False))
    )
    topics = rows.column("topic").to_pylist()
    labels = topics if isinstance(topics[0], list) else rows.column("topic").cast(pa.string()).to_pylist()
    return Exported(store, "requests", dataset, out, tested, labels)
