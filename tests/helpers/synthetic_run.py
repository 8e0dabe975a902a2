"""A published data set of short rows, and a run whose ledger says that it was trained for an epoch, without training.

Invariant: shards, parts of the ledger and manifest are written by the code that preparation and training use, and the
order is the sampler's; what each row is follows from its number, so that nothing grows with the number of rows.
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from storage.checkpoints.checkpoints import CheckpointIndex, write_index
from storage.datasets import (
    DatasetManifest,
    FileRecord,
    SplitRecord,
    Target,
    dataset_key,
    dataset_sha256,
    publish_dataset,
    token_type,
)
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from storage.runs.holders import this_process
from storage.runs.ledger import ID_SEPARATOR, LedgerHeader, LedgerPart, write_ledger_part
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import RunState
from storage.runs.transitions import promote, take_lease
from tasks.configuration.run import RunConfig
from tasks.data.rows import METADATA
from tasks.data.shard import ShardFile, whole_row_groups
from tests.helpers.parquet import text_config
from tests.helpers.runs import record_of
from training.batches.consumption import Consumption
from training.batches.receipts import ReceiptWords
from training.batches.tensors import Microbatch
from training.data.order import SampleOrder
from training.models.source import microbatch_cut

RUN = "synthetic"
GROUP_ROWS, SHARD_ROWS = 1024, 65_536
BATCH_SIZE, MICROBATCHES, STEPS_A_PART = 512, 32, 1000
VOCABULARY_SIZE, FEWEST_TOKENS, MOST_TOKENS = 8000, 4, 11
LARGE_PRIME = 2_654_435_761
NO_METADATA: dict[str, list[str]] = {kind: [] for kind in METADATA}


class _Consumed:
    """What the ledger records of a microbatch."""

    def __init__(self, index: int, rows: NDArray[np.int64], ids: NDArray[np.object_], starts_at: int) -> None:
        self.index = index
        self.rows = rows
        self.starts_at = starts_at
        self.ids = ID_SEPARATOR.join(ids).encode()


def write_synthetic_run(store: LocalStore, num_rows: int, scratch: Path) -> None:
    """Publish the data set, and put manifest, checkpoint and ledger of a run over one epoch."""
    dataset = publish_rows(store, num_rows, scratch)
    steps = -(-num_rows // BATCH_SIZE)
    config = _config(store, steps)
    manifest = Manifest(store, RUN)
    state = config.model_dump(mode="json")
    manifest.create(
        RunState(
            run=RUN,
            created_at=1.0,
            config=state,
            dataset_digest=dataset.digest,
            dataset_sha256=dataset_sha256(store, dataset.digest),
            steps_total=steps,
        )
    )
    lease = manifest.commit("segment began", take_lease(this_process(), 1)).state.lease
    assert lease is not None
    part = _write_ledger(store, config, dataset, lease.fence, scratch)
    index = CheckpointIndex(
        run=RUN,
        fence=lease.fence,
        step=steps,
        cursor=steps * BATCH_SIZE,
        dataset_digest=dataset.digest,
        versions={},
        ledger=part,
        files={},
    )
    manifest.commit("promoted", promote(record_of(write_index(store, index)), RetentionPolicy(newest=1)))


def _config(store: LocalStore, steps: int) -> RunConfig:
    train = {"steps": steps, "batch_size": BATCH_SIZE, "microbatches": MICROBATCHES, "seed": 3}
    data = text_config("data").model_dump()
    return RunConfig.model_validate({"run": RUN, "store": store.address, "data": data, "train": train})


def publish_rows(store: Store, num_rows: int, scratch: Path) -> DatasetManifest:
    """A data set whose training split has so many rows; the other splits are not there."""
    digest = f"synthetic-{num_rows}".ljust(64, "0")
    starts = range(0, num_rows, SHARD_ROWS)
    shards = [_put_shard(store, digest, range(a, min(a + SHARD_ROWS, num_rows)), scratch) for a in starts]
    manifest = DatasetManifest(
        digest=digest,
        inputs={},
        versions={},
        target=Target(kind="binary", column="label", classes=["no", "yes"], class_counts=[num_rows, 0]),
        vocabulary_size=VOCABULARY_SIZE,
        max_tokens=MOST_TOKENS,
        row_group_rows=GROUP_ROWS,
        numeric=[],
        categorical=[],
        splits={"train": SplitRecord(num_rows=num_rows, num_tokens=0, shards=shards)},
        tokenizer=None,
    )
    publish_dataset(store, manifest)
    return manifest


def _put_shard(store: Store, digest: str, rows: range, scratch: Path) -> FileRecord:
    name = f"train-{rows.start // SHARD_ROWS:05d}.parquet"
    path = scratch / name
    with ShardFile(path, GROUP_ROWS) as file:
        for groups in whole_row_groups([_table(np.arange(rows.start, rows.stop))], GROUP_ROWS, NO_METADATA):
            file.write(groups)
    store.put_file(path, dataset_key(digest, name))
    path.unlink()
    return file.record(name)


def _table(rows: NDArray[np.int64]) -> pa.Table:
    lengths = _lengths(rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = (1 + np.arange(offsets[-1]) * LARGE_PRIME % (VOCABULARY_SIZE - 1)).astype(token_type(VOCABULARY_SIZE))
    columns = {
        "id": _ids(rows),
        "label": np.zeros(len(rows), np.int32),
        "tokens": pa.ListArray.from_arrays(offsets, tokens),
    }
    return pa.table(columns)


def _ids(rows: NDArray[np.int64]) -> pa.Array:
    """Ids of about 20 characters that are as little alike as those of a source."""
    mixed = pa.array(rows * LARGE_PRIME * 97 % 10**12).cast(pa.string())
    return pc.binary_join_element_wise(mixed, pa.array(rows).cast(pa.string()), "-")


def _lengths(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = FEWEST_TOKENS + rows * LARGE_PRIME // 1024 % (MOST_TOKENS + 1 - FEWEST_TOKENS)
    return lengths


def _write_ledger(
    store: LocalStore, config: RunConfig, dataset: DatasetManifest, fence: int, scratch: Path
) -> LedgerPart | None:
    """All parts of a run that was saved every so many steps; the last one."""
    part = None
    for first_step, end_step, table in consumed(config, dataset.splits["train"].num_rows, STEPS_A_PART):
        header = LedgerHeader(
            run=RUN,
            fence=fence,
            first_step=first_step,
            end_step=end_step,
            world_size=1,
            dataset_digest=dataset.digest,
            previous=part,
            skipped=[],
        )
        # A store may keep the very file that it is given: each part has a folder of its own.
        folder = scratch / str(first_step)
        folder.mkdir()
        part = write_ledger_part(store, header, table, folder)
        folder.rmdir()
    return part


def consumed(config: RunConfig, num_rows: int, steps_a_part: int) -> Iterator[tuple[int, int, pa.Table]]:
    """First step, the one after the last, and the ledger's rows of each part, as training would record them."""
    order = SampleOrder(num_rows, GROUP_ROWS, config.train.seed)
    cut = microbatch_cut(config.model, config.train)
    train = config.train
    receipts = ReceiptWords(train.microbatches, train.batch_size)
    consumption = Consumption(receipts)
    for first_step in range(0, train.num_steps, steps_a_part):
        end_step = min(first_step + steps_a_part, train.num_steps)
        rows = order.rows(first_step * train.batch_size, (end_step - first_step) * train.batch_size)
        lengths, ids = _lengths(rows), _ids(rows).to_numpy(zero_copy_only=False)
        for number, step in enumerate(range(first_step, end_step)):
            batch = slice(number * train.batch_size, (number + 1) * train.batch_size)
            cuts = cut.cut(lengths[batch], train.microbatches)
            starts = accumulate(map(len, cuts), initial=0)
            microbatches = [
                _Consumed(index, rows[batch][places], ids[batch][places], start)
                for index, (places, start) in enumerate(zip(cuts, starts, strict=False))
            ]
            words = receipts.of_samples(cast(list[Microbatch], microbatches))
            consumption.record(step, torch.cat([torch.zeros(train.microbatches, dtype=torch.int64), words]))
        yield first_step, end_step, consumption.table()
        consumption.forget_before(end_step)
