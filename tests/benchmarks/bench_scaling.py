"""`make scaling`: how steps become faster with more ranks, beside what an alpha-beta model says they would.

Each rank is on a host of its own, in a network namespace whose link is limited; loader, exact sum, decisions at the
boundaries and checkpoints are the product's, and a microbatch takes as long as a device would, which is slept. The
batch and its microbatches stay the same, as they do in a run: ranks share the microbatches. The sleep comes before a
microbatch is computed, so nothing of the exchange hides behind it. The model is fed with what this machine's links
take, and its processors with up to four ranks; then it says what GPUs on faster links would do. The last line is for
machines: `name=value` pairs.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from storage.datasets import DatasetManifest, dataset_sha256
from storage.objects.local_store import LocalStore
from storage.processors import count_processors
from tests.benchmarks.scaling.model import BYTES_OF_VALUE, Link, Work
from tests.benchmarks.scaling.ranks import Steps, measure_link, time_steps
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.hosts import Hosts, find_reason_to_skip, running_hosts
from tests.helpers.small_models import make_encoder
from training.configuration import CheckpointConfig, TrainConfig
from training.model_configuration import EncoderConfig
from training.rank_status import Phase, read_rank_statuses
from training.spec import SegmentSpec
from training.validation_configuration import ValidationConfig

RANKS = (1, 2, 4, 8, 16, 32)
MICROBATCHES, BATCH_SIZE = 32, 128
MICROBATCH_SECONDS = 6.0
KILOBITS = 100_000  # a second, of each host's link in each direction
MODEL = EncoderConfig(width=96, layers=2, heads=4, feedforward=256)
# A step of one rank takes three minutes, and is nearly all sleep; more ranks make shorter ones.
NUM_STEPS = {1: 3, 2: 3, 4: 4}
FEWEST_STEPS = 6
FEW_RANKS = 4
# As large as the largest packet, or the link would cut it: work for the processor that a real network card takes over.
BURST_KILOBYTES = 96
# GPUs: a model of 100 million parameters, 6 FLOP for each parameter and token (Kaplan et al., 2020), 8,192 tokens in a
# microbatch, 160 TFLOP/s of it achieved; 400 Gbit/s and 10 us between any two.
GPU_LINK = Link(latency=10e-6, bytes_per_second=400e9 / 8)
GPU_VALUES, GPU_MICROBATCH_SECONDS = 100_000_000, 6 * 100e6 * 8192 / 160e12
NEIGHBOUR_LIMIT = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
NUM_GPUS = (8, 32, 256, 1024)
MICROBATCHES_OF_GPU = (1, 4, 16)


def main() -> None:
    """Measure, print the tables, write the figures and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/scaling"), help="folder for figures and picture")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="numbers of ranks; 1 is always measured")
    parser.add_argument(
        "--microbatch-seconds", type=float, default=MICROBATCH_SECONDS, help="that a device would take for a microbatch"
    )
    options = parser.parse_args()
    if reason := find_reason_to_skip():
        raise SystemExit(f"Ranks cannot have hosts of their own here: {reason}")
    ranks = sorted({1, *options.ranks})
    _require_neighbours(max(ranks))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_hosts([f"h{rank}" for rank in range(max(2, *ranks))]) as hosts,
    ):
        for name in hosts.names:
            hosts.slow(name, KILOBITS, BURST_KILOBYTES)
        store = LocalStore(Path(folder) / "store")
        dataset = publish_small_dataset(store, Path(folder) / "work", rows=2000)
        link, steps, waits = _measure(store, dataset, Path(folder), hosts, ranks, options.microbatch_seconds)
    measured = {number: of_step.seconds for number, of_step in steps.items()}
    work = _describe_work(dataset, steps, options.microbatch_seconds)
    predicted = {number: work.step_seconds(number, link) for number in ranks}
    console = Console(width=120, highlight=False)
    console.print(_make_table(measured, predicted, waits), _make_gpu_table(), sep="\n")
    options.out.mkdir(parents=True, exist_ok=True)
    figures = {"link": asdict(link), "work": asdict(work), "measured": measured, "predicted": predicted, "waits": waits}
    (options.out / "scaling.json").write_text(json.dumps(figures, indent=2))
    _draw(measured, predicted).savefig(options.out / "scaling.png", dpi=110)
    print(f"figures and picture: {options.out}")
    print(" ".join(f"{name}={value:.3f}" for name, value in _pairs(measured, predicted).items()))


def _require_neighbours(num_hosts: int) -> None:
    """All hosts know each other, which the kernel keeps in one table: where that is full, "no route to host"."""
    limit, needed = int(NEIGHBOUR_LIMIT.read_text()), 2 * num_hosts**2
    if limit < needed:
        raise SystemExit(
            f"{num_hosts} hosts need room for {needed:,} neighbours in the kernel's table, and its limit is {limit:,}. "
            f"Raise it: sysctl -w net.ipv4.neigh.default.gc_thresh3={needed}, or give fewer --ranks."
        )


def _measure(
    store: LocalStore,
    dataset: DatasetManifest,
    folder: Path,
    hosts: Hosts,
    ranks: Sequence[int],
    microbatch_seconds: float,
) -> tuple[Link, dict[int, Steps], dict[int, dict[str, float]]]:
    """The link; for each number of ranks what a step took, and for what share of the time the first rank waited."""
    link = measure_link(hosts, folder / "link")
    print(f"link: {link.bytes_per_second * 8 / 1e6:.0f} Mbit/s, {link.latency * 1e3:.2f} ms for a message", flush=True)
    steps, waits = {}, {}
    for number in ranks:
        spec = _make_spec(store, dataset, folder / f"of-{number}", number)
        steps[number] = time_steps(hosts, spec, number, microbatch_seconds)
        waits[number] = _read_waits(spec.scratch_folder / "host-0")
        print(f"{number} ranks: {steps[number].seconds:.2f} s a step", flush=True)
    return link, steps, waits


def _make_spec(store: LocalStore, dataset: DatasetManifest, scratch: Path, number: int) -> SegmentSpec:
    steps = NUM_STEPS.get(number, FEWEST_STEPS)
    return SegmentSpec(
        work="train", run=f"scaling-{number}", store=store.address, scratch=str(scratch), fence=1, resume=None,
        dataset_digest=dataset.digest, dataset_sha256=dataset_sha256(store, dataset.digest), model=MODEL,
        validation=ValidationConfig(every_steps=1000, batch_size=64), checkpoint=CheckpointConfig(every_steps=2),
        train=TrainConfig(batch_size=BATCH_SIZE, microbatches=MICROBATCHES, ranks=1, steps=steps, log_every_steps=1000),
    )  # fmt: skip


def _read_waits(folder: Path) -> dict[str, float]:
    """Of the first rank's time in training: the share that it waited, by what for, as it tells itself."""
    spent = read_rank_statuses(folder)[0].spent
    phases = (Phase.COMPUTING, Phase.INPUT, Phase.OTHERS, Phase.SAVING)
    total = sum(spent.get(phase, 0.0) for phase in phases)
    return {phase.value: spent.get(phase, 0.0) / total for phase in phases}


def _describe_work(dataset: DatasetManifest, steps: Mapping[int, Steps], microbatch_seconds: float) -> Work:
    """What a step is here. What the processor does is shared by as many ranks as this machine has cores.

    With few ranks, what one takes beyond its microbatches is what it takes for the exchange, the same for any number of
    them.
    """
    num_values = sum(parameter.numel() for parameter in make_encoder(MODEL, dataset).parameters())
    of_microbatch = steps[1].cpu_seconds / MICROBATCHES
    beyond = [
        of.cpu_seconds - MICROBATCHES / number * of_microbatch
        for number, of in steps.items()
        if 1 < number <= FEW_RANKS
    ]
    of_rank = max(0.0, statistics.mean(beyond)) if beyond else 0.0
    return Work(MICROBATCHES, microbatch_seconds, num_values, of_microbatch, of_rank, num_cores=count_processors())


def _make_table(
    measured: Mapping[int, float], predicted: Mapping[int, float], waits: Mapping[int, Mapping[str, float]]
) -> Table:
    table = Table(title="steps of the same batch on more ranks")
    for name in ("ranks", "seconds a step", "predicted", "efficiency", "waits for ranks", "for input", "saves"):
        table.add_column(name, justify="right")
    for number, seconds in measured.items():
        shares = [f"{waits[number][place.value]:.1%}" for place in (Phase.OTHERS, Phase.INPUT, Phase.SAVING)]
        efficiency = measured[1] / number / seconds
        table.add_row(str(number), f"{seconds:.2f}", f"{predicted[number]:.2f}", f"{efficiency:.2f}", *shares)
    return table


def _make_gpu_table() -> Table:
    table = Table(title="predicted efficiency on GPUs, by microbatches of each GPU")
    for name in ("train.sum", "microbatches of a GPU", *(f"{number:,} GPUs" for number in NUM_GPUS)):
        table.add_column(name, justify="right")
    for kind in BYTES_OF_VALUE:
        for microbatches in MICROBATCHES_OF_GPU:
            cells = [f"{_predict_gpus(number, microbatches, kind):.2f}" for number in NUM_GPUS]
            table.add_row(kind, str(microbatches), *cells)
    return table


def _predict_gpus(number: int, microbatches_of_gpu: int, kind: str) -> float:
    return Work(number * microbatches_of_gpu, GPU_MICROBATCH_SECONDS, GPU_VALUES).efficiency(number, GPU_LINK, kind)


def _draw(measured: Mapping[int, float], predicted: Mapping[int, float]) -> Figure:
    """Measured and predicted speed on this machine, and what is predicted for GPUs, as shares of the ideal."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for seconds, style, label in ((measured, "o", "measured here"), (predicted, "-", "predicted for here")):
        axes.plot(list(seconds), [seconds[1] / n / seconds[n] for n in seconds], style, color="#0072b2", label=label)
    for kind, colour in zip(BYTES_OF_VALUE, ("#d55e00", "#009e73"), strict=True):
        values = [_predict_gpus(number, 4, kind) for number in NUM_GPUS]
        axes.plot(NUM_GPUS, values, "--", color=colour, label=f"predicted for GPUs, {kind} sum, 4 microbatches each")
    axes.set_xscale("log", base=2)
    ticks = sorted({*measured, *NUM_GPUS})
    axes.set_xticks(ticks, [f"{number:,}" for number in ticks])
    axes.set(xlabel="ranks", ylabel="efficiency", ylim=(0, 1.05))
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="lower left")
    return figure


def _pairs(measured: Mapping[int, float], predicted: Mapping[int, float]) -> dict[str, float]:
    pairs = {f"efficiency_{number}": measured[1] / number / measured[number] for number in measured if number >= 8}
    most = max(measured)
    return pairs | {f"predicted_over_measured_{most}": predicted[most] / measured[most]}


if __name__ == "__main__":
    main()
