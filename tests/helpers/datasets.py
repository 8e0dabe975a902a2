"""A small prepared data set put into a store by hand, for tests of training alone."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.datasets import (
    MANIFEST_NAME,
    CategoricalColumn,
    DatasetManifest,
    NumericColumn,
    SplitRecord,
    Target,
    dataset_key,
    publish_dataset,
    token_type,
)
from storage.objects.store import Store
from tasks.data.shard import SHARD_SCHEMA, ShardFile, shard_schema
from tasks.data.sources.several_labels import SeveralLabels

VOCABULARY_SIZE = 64
MAX_TOKENS = 24
GROUP_ROWS = 16
SHARD_ROWS = 64


def publish_small_dataset(
    store: Store, folder: Path, rows: int = 300, kind: str = "multiclass", metadata: bool = True
) -> DatasetManifest:
    """Rows whose label can be read off their tokens; three splits of `rows`, 64 and 64 rows."""
    classes = ["no", "yes"] if kind == "binary" else ["a", "b", "c"]
    digest = f"{kind}-{rows}-{metadata}".ljust(64, "0")
    splits = {
        name: _put_split(store, folder, digest, name, count, (kind, len(classes)), metadata)
        for name, count in (("train", rows), ("validation", 64), ("test", 64))
    }
    manifest = DatasetManifest(
        digest=digest,
        inputs={},
        versions={},
        target=Target(kind=kind, column="label", classes=classes, class_counts=[rows // len(classes)] * len(classes)),
        vocabulary_size=VOCABULARY_SIZE,
        max_tokens=MAX_TOKENS,
        row_group_rows=GROUP_ROWS,
        numeric=[NumericColumn(name="n", mean=0, standard_deviation=1, median=0, missing_share=0)] if metadata else [],
        categorical=[CategoricalColumn(name="c", vocabulary=["x", "y"], missing_share=0)] if metadata else [],
        splits=splits,
        tokenizer=None,
    )
    publish_dataset(store, manifest)
    return manifest


def publish_anew(store: Store, manifest: DatasetManifest) -> None:
    """What is left when somebody deletes `dataset.json` and prepares again: another one under the same digest."""
    store.delete(dataset_key(manifest.digest, MANIFEST_NAME))
    publish_dataset(store, manifest)


def _put_split(
    store: Store, folder: Path, digest: str, split: str, rows: int, target: tuple[str, int], metadata: bool
) -> SplitRecord:
    generator = np.random.Generator(np.random.Philox(key=len(split)))
    shards, num_tokens = [], 0
    for start in range(0, rows, SHARD_ROWS):
        count = min(SHARD_ROWS, rows - start)
        table = _make_rows(generator, split, start, count, target[1], metadata)
        if target[0] == "multilabel":
            table = _with_several_labels(table, target[1])
        name = f"{split}-{start // SHARD_ROWS:05d}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        with ShardFile(path, GROUP_ROWS, table.schema) as shard:
            shard.write(table)
        store.put_file(path, dataset_key(digest, name))
        path.unlink()
        shards.append(shard.record(name))
        num_tokens += sum(table.column("length").to_pylist())
    return SplitRecord(num_rows=rows, num_tokens=num_tokens, shards=shards)


def _make_rows(
    generator: np.random.Generator, split: str, start: int, count: int, num_classes: int, metadata: bool
) -> pa.Table:
    labels = generator.integers(0, num_classes, count)
    lengths = generator.integers(1, MAX_TOKENS + 1, count)
    # Each class has its own range of tokens, with a third of them drawn from all.
    width = (VOCABULARY_SIZE - 1) // num_classes
    tokens = [
        np.where(
            generator.random(length) < 0.33,
            generator.integers(1, VOCABULARY_SIZE, length),
            1 + label * width + generator.integers(0, width, length),
        )
        for label, length in zip(labels, lengths, strict=True)
    ]
    extra = [[1.0]] * count if metadata else [[]] * count
    columns = {
        "id": [f"{split}-{start + row}" for row in range(count)],
        "label": labels.astype(np.int32),
        "tokens": [row.astype(token_type(VOCABULARY_SIZE)).tobytes() for row in tokens],
        "length": lengths.astype(np.int32),
        "numeric": extra,
        "missing": [[0.0]] * count if metadata else extra,
        "categorical": [[2 + row % 2] for row in range(count)] if metadata else extra,
    }
    return pa.table(columns, schema=SHARD_SCHEMA)


def _with_several_labels(table: pa.Table, num_classes: int) -> pa.Table:
    """Each third row without a label, each other third with a second one; and rows with weights."""
    labels = [
        [] if row % 3 == 0 else sorted({label, (label + row % 3 - 1) % num_classes})
        for row, label in enumerate(table.column("label").to_pylist())
    ]
    place = table.schema.get_field_index("label")
    schema = shard_schema(SeveralLabels.shard_type, has_weights=True)
    table = table.set_column(place, schema.field(place), pa.array(labels, schema.field(place).type))
    return table.append_column(schema.field("weight"), pa.array([0.5, 1.5] * (len(labels) // 2), pa.float32()))
