"""`make bench-exact`: what the exact sum, and its check, cost against plain DDP, and how much of a batch is padding.

The trainers live in the same ranks and take the same step in turn, so that a noisy machine disturbs all alike. Quoted
is the best time of each, and beside it the median of the ratios of neighbours. Data are the quality corpus,
prepared as a user's would be. The last line is for machines: `name=value` pairs.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from storage.datasets import DatasetManifest, load_dataset
from storage.objects.local_store import LocalStore
from tasks.config.load import load_configuration
from tasks.configuration.run import RunConfig
from tasks.corpora.generate import generate_corpus
from tasks.data.pipeline import prepare_dataset
from tests.benchmarks.timing import wait_for
from tests.helpers.processes import RankProcesses
from tests.helpers.specifications import spec_of
from training.batches.blocks import Blocks
from training.batches.source import BatchSource
from training.building import make_trainer
from training.configuration import TrainConfig
from training.data.order import SampleOrder
from training.data.reading import SampleReader
from training.gradients.exact_sum import ExactSum
from training.model_configuration import EncoderConfig
from training.models.precision import Precision, choose_precision
from training.models.source import microbatch_cut
from training.process_group import join_process_group
from training.spec import SegmentSpec
from training.trainer import Trainer
from training.world import World

ROOT = Path(__file__).parents[2]
QUALITY = ROOT / "deployments/configs/quality.toml"
ROWS = 12_000
PADDING_STEPS = 20
PAIRS = 10
# Small for a GPU, large for a processor core: a step is nearly all forward and backward, as it is at full size.
SMALL = EncoderConfig(width=128, layers=2, heads=4, feedforward=512)
LARGE = EncoderConfig(width=192, layers=4, heads=4, feedforward=768)
# With the number of ranks: they accumulate four, two and one microbatches.
CASES = ((SMALL, 1), (SMALL, 2), (SMALL, 4), (LARGE, 1), (LARGE, 2))
BATCH_SIZE, MICROBATCHES = 16, 4
# The exact sum, plain DDP, and the exact sum without the hash that travels with it.
MODES = ("exact", "fast", "unchecked")
COLUMNS = (
    "layers x width", "parameters", "ranks", "microbatches a rank", "exact s/step", "fast s/step", "exact / fast",
    "median", "exact / unchecked", "MB exact", "MB fast",
)  # fmt: skip


def main() -> None:
    """Prepare the corpus, measure, print the tables."""
    console = Console(width=130, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        config, dataset = _prepare(Path(folder))
        store = LocalStore(Path(config.store))
        efficiency = _padding_efficiency(store, dataset, config)
        console.print(_padding_line(config, efficiency))
        table = Table(*COLUMNS, box=None, pad_edge=False)
        ratios = []
        for model, size in CASES:
            measured = _measure(Path(folder), store, dataset, model, size)
            ratios.append(measured["ratio"])
            table.add_row(f"{model.layers} x {model.width}", *_cells(measured, size))
        console.print(table)
    print(f"exact_over_fast={max(ratios):.3f} padding_efficiency={efficiency:.3f}")


def _prepare(folder: Path) -> tuple[RunConfig, DatasetManifest]:
    generate_corpus(folder / "corpus", "quality", ROWS)
    assignments = [f"data.source={folder / 'corpus'}", f"store={folder / 'store'}", "data.memory_limit=2GB"]
    config = load_configuration(QUALITY, assignments)
    store = LocalStore(Path(config.store))
    return config, prepare_dataset(config.data, store, folder / "scratch")


def _padding_efficiency(store: LocalStore, dataset: DatasetManifest, config: RunConfig) -> float:
    """Real tokens over computed tokens of the first steps, with the batch size and the microbatches of quality.toml."""
    reader = SampleReader(store, dataset, "train", store.root / ".tmp" / "samples")
    order = SampleOrder(reader.num_rows, reader.group_rows, config.train.seed)
    cut = microbatch_cut(config.model, config.train)
    real = computed = 0
    for step in range(PADDING_STEPS):
        lengths = reader.read(order, step * config.train.batch_size, config.train.batch_size).lengths
        real += int(lengths.sum())
        groups = cut.groups([lengths[microbatch] for microbatch in cut.cut(lengths, config.train.microbatches)])
        computed += sum(group.num_tokens for of_microbatch in groups for group in of_microbatch)
    return real / computed


def _padding_line(config: RunConfig, efficiency: float) -> str:
    return (
        f"padding: {efficiency:.3f} of the computed tokens are real ones, over {PADDING_STEPS} steps of "
        f"{config.train.batch_size} samples in {config.train.microbatches} microbatches (quality corpus, up to "
        f"{config.data.max_tokens} tokens)\n"
    )


def _measure(
    folder: Path, store: LocalStore, dataset: DatasetManifest, model: EncoderConfig, size: int
) -> dict[str, Any]:
    scratch = folder / f"ranks-{model.width}-{size}"
    scratch.mkdir()
    train = TrainConfig(batch_size=BATCH_SIZE, microbatches=MICROBATCHES, ranks=size, steps=2 * PAIRS)
    spec = spec_of(store.address, dataset, scratch, model, train)
    ranks = RankProcesses(spec, _time_both)
    ranks.start()
    codes = ranks.join(timeout=1200)
    if any(codes):
        raise SystemExit((scratch / "ranks.log").read_text())
    measured: dict[str, Any] = json.loads((scratch / "measured.json").read_text())
    return measured


def _time_both(spec: SegmentSpec, world: World) -> object:
    """One rank: take the same steps with both sums in turn; the first rank writes what it measured."""
    precision = choose_precision(spec.train, world)
    join_process_group(spec.train, precision, world)
    store = spec.open_store()
    dataset = load_dataset(store, spec.dataset_digest)
    trainers = {mode: _make_trainer(spec, dataset, world, mode) for mode in MODES}
    reader = SampleReader(store, dataset, "train", spec.samples_folder)
    order = SampleOrder(reader.num_rows, reader.group_rows, 0)
    blocks = Blocks(reader, order, microbatch_cut(spec.model, spec.train), BATCH_SIZE, MICROBATCHES, world)
    source = BatchSource(blocks, pin=precision.device.type == "cuda")
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    microbatches = source.batch(0).microbatches
    for pair in range(1 + PAIRS):  # the first one warms up
        for mode in MODES if pair % 2 else MODES[::-1]:
            _wait_for_all(precision)
            began = time.perf_counter()
            trainers[mode].take_step(pair, microbatches)
            _wait_for_all(precision)
            seconds[mode].append(time.perf_counter() - began)
    if world.is_first:
        ratios = {
            mode: [exact / other for exact, other in zip(seconds["exact"][1:], seconds[mode][1:], strict=True)]
            for mode in MODES
        }
        measured = {
            "parameters": sum(p.numel() for p in trainers["exact"].model.parameters()),
            "exact": min(seconds["exact"][1:]),
            "fast": min(seconds["fast"][1:]),
            "ratio": min(seconds["exact"][1:]) / min(seconds["fast"][1:]),
            "median": statistics.median(ratios["fast"]),
            "check": statistics.median(ratios["unchecked"]),
        }
        (spec.scratch_folder / "measured.json").write_text(json.dumps(measured))
    return trainers


def _wait_for_all(precision: Precision) -> None:
    """For all ranks, and for what this one's GPU still computes: the barrier is between processors alone."""
    wait_for(precision.device)
    dist.barrier()


def _make_trainer(spec: SegmentSpec, dataset: DatasetManifest, world: World, mode: str) -> Trainer:
    config = spec.train.model_copy(update={"sum": "fast" if mode == "fast" else "exact"})
    precision = choose_precision(config, world)
    trainer = make_trainer(spec.model_copy(update={"train": config}), dataset, precision, world)
    if mode == "unchecked":
        assert isinstance(trainer._sum, ExactSum)
        nothing = torch.zeros(1, dtype=torch.bool, device=precision.device)
        for bucket in trainer._sum._buckets:
            bucket.seal, bucket.is_wrong = lambda: None, lambda: nothing  # type: ignore[method-assign]
    return trainer


def _cells(measured: dict[str, Any], size: int) -> list[str]:
    megabytes = measured["parameters"] * 4 / 1e6
    return [
        f"{measured['parameters'] / 1e6:.2f} M", f"{size}", f"{MICROBATCHES // size}", f"{measured['exact']:.2f}",
        f"{measured['fast']:.2f}", f"{measured['ratio']:.3f}", f"{measured['median']:.3f}", f"{measured['check']:.3f}",
        f"{2 * megabytes:.1f}", f"{megabytes:.1f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
