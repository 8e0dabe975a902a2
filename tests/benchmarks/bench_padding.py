"""`make bench-padding`: how much of what is computed is padding, and what a step takes, with and without groups.

Data are the corpora of both jobs, prepared as a user's would be. The tables of padding are the same on every machine.
For the times both trainers live in one process and take the same batch in turn, so that a noisy machine disturbs both
alike; quoted is the best time of each, and the median of the ratios of neighbours.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from tasks.config.load import load_configuration
from tasks.configuration.run import RunConfig
from tasks.corpora.generate import generate_corpus
from tasks.data.pipeline import prepare_dataset
from tests.benchmarks.timing import seconds_of
from tests.helpers.specifications import spec_of
from training.batches.blocks import Blocks
from training.batches.source import Batch, BatchSource
from training.building import make_trainer
from training.configuration import TrainConfig
from training.data.order import SampleOrder
from training.data.reading import SampleReader
from training.model_configuration import EncoderConfig, ModelConfig
from training.models.precision import choose_precision
from training.models.source import microbatch_cut
from training.trainer import Trainer
from training.world import World

ROOT = Path(__file__).parents[2]
ALONE = World(0, 1, 0, 1)
ROWS = {"policy": 40_000, "quality": 20_000}
BEFORE, NOW = 0.0, 0.97
STEPS = 20
# Samples of a batch, microbatches. The first are those of both configurations.
SIZES = ((512, 32), (64, 4), (16, 4), (512, 8), (1024, 8))
SMALL = EncoderConfig(width=128, layers=2, heads=4, feedforward=512)
# Job, samples of a batch, microbatches, pairs of steps that are timed.
TIMED = (
    ("policy", 512, 32, 6),
    ("policy", 64, 4, 20),
    ("quality", 512, 32, 2),
    ("quality", 64, 4, 5),
    ("quality", 16, 4, 12),
)


@dataclass(frozen=True)
class Job:
    """A prepared corpus, and the configuration that it is for."""

    config: RunConfig
    dataset: DatasetManifest
    store: LocalStore

    def batches(self, model: ModelConfig, train: TrainConfig) -> BatchSource:
        reader = SampleReader(self.store, self.dataset, "train", self.store.root / ".tmp" / "samples")
        order = SampleOrder(reader.num_rows, reader.group_rows, 0)
        return BatchSource(
            Blocks(reader, order, microbatch_cut(model, train), train.batch_size, train.microbatches, ALONE), pin=False
        )


def main() -> None:
    """Prepare the corpora, measure, print the tables."""
    console = Console(width=130, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        jobs = {name: _prepare(name, Path(folder) / name) for name in ROWS}
        padding = Table(
            "job", "batch", "microbatches", "filled, one group", "filled, in groups", "worst batch", "groups each",
            "ms to read and cut a batch", box=None, pad_edge=False,
        )  # fmt: skip
        for name, job in jobs.items():
            for batch_size, microbatches in SIZES:
                padding.add_row(
                    name, f"{batch_size}", f"{microbatches}", *_measure_padding(job, batch_size, microbatches)
                )
        console.print(padding)
        times = Table(
            "job", "batch", "microbatches", "s/step, one group", "s/step, in groups", "median of ratios", box=None,
            pad_edge=False,
        )  # fmt: skip
        for name, batch_size, microbatches, pairs in TIMED:
            times.add_row(
                name, f"{batch_size}", f"{microbatches}", *_measure_time(jobs[name], batch_size, microbatches, pairs)
            )
        console.print(times)


def _prepare(name: str, folder: Path) -> Job:
    generate_corpus(folder / "corpus", name, ROWS[name])  # type: ignore[arg-type]
    assignments = [f"data.source={folder / 'corpus'}", f"store={folder / 'store'}", "data.memory_limit=2GB"]
    config = load_configuration(ROOT / f"deployments/configs/{name}.toml", assignments)
    store = LocalStore(Path(config.store))
    return Job(config, prepare_dataset(config.data, store, folder / "scratch"), store)


def _measure_padding(job: Job, batch_size: int, microbatches: int) -> list[str]:
    """Of the first steps, by the configured model, which decides the cut into microbatches."""
    filled: dict[float, list[float]] = {}
    num_groups = num_microbatches = 0
    for efficiency in (BEFORE, NOW):
        train = TrainConfig(batch_size=batch_size, microbatches=microbatches, padding_efficiency=efficiency)
        seconds = []
        for batch, taken in _timed(job.batches(job.config.model, train)):
            filled.setdefault(efficiency, []).append(_filled(batch))
            seconds.append(taken)
            num_groups += sum(len(microbatch.groups) for microbatch in batch.microbatches) if efficiency else 0
            num_microbatches += len(batch.microbatches) if efficiency else 0
    return [
        f"{statistics.mean(filled[BEFORE]):.3f}", f"{statistics.mean(filled[NOW]):.3f}", f"{min(filled[NOW]):.3f}",
        f"{num_groups / num_microbatches:.2f}", f"{1000 * statistics.median(seconds):.1f}",
    ]  # fmt: skip


def _timed(source: BatchSource) -> Iterator[tuple[Batch, float]]:
    for step in range(STEPS):
        began = time.perf_counter()
        batch = source.batch(step)
        yield batch, time.perf_counter() - began


def _filled(batch: Batch) -> float:
    return batch.num_tokens / sum(group.num_tokens for microbatch in batch.microbatches for group in microbatch.groups)


def _measure_time(job: Job, batch_size: int, microbatches: int, pairs: int) -> list[str]:
    """The same batches through both trainers in turn; the first pair warms up."""
    trainers = {}
    for efficiency in (BEFORE, NOW):
        train = TrainConfig(batch_size=batch_size, microbatches=microbatches, padding_efficiency=efficiency)
        trainers[efficiency] = _make_trainer(job, train), job.batches(SMALL, train)
    seconds: dict[float, list[float]] = {BEFORE: [], NOW: []}
    for step in range(1 + pairs):
        for efficiency in (BEFORE, NOW) if step % 2 else (NOW, BEFORE):
            trainer, source = trainers[efficiency]
            batch = source.batch(step)
            take = partial(trainer.take_step, step, batch.microbatches)
            seconds[efficiency].append(seconds_of(take, trainer.device))
    before, now = seconds[BEFORE][1:], seconds[NOW][1:]
    ratio = statistics.median(after / ago for after, ago in zip(now, before, strict=True))
    return [f"{min(before):.2f}", f"{min(now):.2f}", f"{ratio:.2f}"]


def _make_trainer(job: Job, train: TrainConfig) -> Trainer:
    spec = spec_of(job.store.address, job.dataset, job.store.root, SMALL, train)
    return make_trainer(spec, job.dataset, choose_precision(train, ALONE), ALONE)


if __name__ == "__main__":
    main()
