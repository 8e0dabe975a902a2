"""`make bench-checkpoint`: what a save costs training, how soon it is safe, and how soon a run is back from it.

One rank, one thread of computing, the other core free, as cores are beside a GPU. Training is the product's own, with a
state of 1.49 GB (124 M parameters with Adam, fp32); the peers are `torch.save` and `torch.distributed.checkpoint`,
saving the same tensors to the same disk. What is compared is measured one right after the other, in rounds of
alternating order; a ratio is the median of the rounds' ratios. The last line is for machines: `name=value` pairs.
"""

import argparse
import functools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from storage.objects.local_store import LocalStore
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.reports import ReportFollower
from tests.benchmarks.checkpoints.figures import PREEMPTION, all_ratios, make_table
from tests.benchmarks.checkpoints.rank import BATCH_SIZE, MICROBATCHES, work
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.processes import RankProcesses
from tests.helpers.specifications import spec_of
from tests.helpers.training import launch
from training.configuration import TrainConfig
from training.model_configuration import EncoderConfig
from training.spec import SegmentSpec

# 124 M parameters with the small vocabulary of the data.
MODEL = EncoderConfig(width=768, layers=17, heads=12, feedforward=3200)
SMALL_MODEL = EncoderConfig(width=128, layers=2, heads=4, feedforward=512)
ROUNDS = 7


def main() -> None:
    """Measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if not given")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--small", action="store_true", help="a model of half a million parameters: to try it out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measured = _measure(Path(folder), SMALL_MODEL if options.small else MODEL, options.rounds)
    console = Console(width=140, highlight=False)
    console.print(make_table(measured))
    print(" ".join(f"{name}={value:.3f}" for name, value in all_ratios(measured).items()))


def _measure(folder: Path, model: EncoderConfig, rounds: int) -> dict[str, Any]:
    store = LocalStore(folder / "store")
    dataset = publish_small_dataset(store, folder / "work", rows=100)
    train = TrainConfig(batch_size=BATCH_SIZE, microbatches=MICROBATCHES, ranks=1, steps=100_000)
    spec = spec_of(store.address, dataset, folder / "scratch", model, train)
    spec.scratch_folder.mkdir()
    ranks = RankProcesses(spec, functools.partial(work, rounds=rounds))
    ranks.start()
    codes = ranks.join(timeout=3600)
    if any(codes):
        raise SystemExit((spec.scratch_folder / "ranks.log").read_text())
    measured: dict[str, Any] = json.loads((spec.scratch_folder / "measured.json").read_text())
    return measured | {PREEMPTION: [_measure_preemption(spec.model_copy(update={"fence": 2}))]}


def _measure_preemption(spec: SegmentSpec) -> float:
    """Seconds from SIGTERM to the checkpoint's index, of ranks in the middle of training under an agent."""
    reports = ReportFollower(spec.progress_file)
    reports.read()
    asked_at: float | None = None
    with launch(spec, grace_seconds=300) as ranks:
        is_running = True
        while is_running:
            is_running = ranks.is_running(POLL_SECONDS)  # the last report may be read after the ranks' end
            for report in reports.read():
                if report.step >= 2 and asked_at is None:
                    asked_at = time.perf_counter()
                    ranks.stop()
                if report.checkpoint is not None and asked_at is not None:
                    return time.perf_counter() - asked_at
    raise SystemExit((spec.scratch_folder / "ranks.log").read_text())


if __name__ == "__main__":
    main()
