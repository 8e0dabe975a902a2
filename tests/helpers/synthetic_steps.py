"""A trainer, and microbatches of random tokens for it: steps of a model of any size, without a data set in a store."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.datasets import DatasetManifest, SplitRecord, Target, token_type
from tests.helpers.specifications import spec_of
from training import building
from training.batches.assembled import assemble_shares, share_batch
from training.batches.tensors import Microbatch, to_microbatches
from training.configuration import TrainConfig
from training.data.samples import samples_of
from training.model_configuration import EncoderConfig
from training.models.precision import Precision
from training.models.source import microbatch_cut
from training.trainer import Trainer
from training.world import World

ALONE = World(0, 1, 0, 1)
MOST_TOKENS = 512
CLASSES = ["a", "b", "c"]


def synthetic_dataset(vocabulary_size: int) -> DatasetManifest:
    """Texts of up to 512 tokens in three classes."""
    return DatasetManifest(
        digest="0" * 64,
        inputs={},
        versions={},
        target=Target(kind="multiclass", column="label", classes=CLASSES, class_counts=[1, 1, 1]),
        vocabulary_size=vocabulary_size,
        max_tokens=MOST_TOKENS,
        row_group_rows=16,
        numeric=[],
        categorical=[],
        splits={"train": SplitRecord(num_rows=len(CLASSES), num_tokens=0, shards=[], class_counts=[1, 1, 1])},
        tokenizer=None,
    )


def make_trainer(
    model: EncoderConfig, train: TrainConfig, dataset: DatasetManifest, precision: Precision, folder: Path
) -> Trainer:
    """The trainer of the only rank; with plain DDP the rank must have joined its process group."""
    spec = spec_of(str(folder), dataset, folder, model, train)
    return building.make_trainer(spec, dataset, precision, ALONE)


def make_microbatches(
    model: EncoderConfig, train: TrainConfig, dataset: DatasetManifest, pin: bool
) -> list[Microbatch]:
    """A batch of samples with lengths as those of long texts: log-normal, mean about 180, at most 512 tokens."""
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(5.0, 0.7, train.batch_size)), 3, MOST_TOKENS).astype(np.int64)
    kind = np.dtype(token_type(dataset.vocabulary_size))
    tokens = random.integers(1, dataset.vocabulary_size, lengths.sum(), dtype=np.int32).astype(kind)
    offsets = (np.concatenate([[0], lengths.cumsum()]) * kind.itemsize).astype(np.int32)
    nothing = pa.ListArray.from_arrays(np.zeros(len(lengths) + 1, np.int32), pa.array([], pa.float32()))
    columns = {
        "id": pa.array([f"{number}" for number in range(len(lengths))]),
        "label": random.integers(0, len(CLASSES), len(lengths)),
        "tokens": pa.BinaryArray.from_buffers(
            pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(tokens)]
        ),
        **dict.fromkeys(("numeric", "missing", "categorical"), nothing),
    }
    samples = samples_of(pa.table(columns), 0, len(CLASSES), 0, 0, kind)
    (share,) = share_batch(samples.lengths, microbatch_cut(model, train), train.microbatches, 1)
    is_flat = train.padding_efficiency > 0
    return list(to_microbatches(assemble_shares(samples, [share], [0]), 0, train.microbatches, is_flat, pin))
