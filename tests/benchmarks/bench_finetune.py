"""`make bench-finetune MODEL=FOLDER DATA=FILE`: a pretrained model, beside what else a person could take.

The same rows are seen by a pretrained model that Holdfast trains, with one microbatch and with four; by the same one
that the Trainer of transformers trains, with the same first weights, the order of samples that Holdfast's ledger
states, the same optimizer and schedule; by one with LoRA; by our encoder from nothing; and by TF-IDF with logistic
regression. Quoted is macro-F1 on rows that none has seen, of each seed, and, of those that are
trained, steps a second, the most memory of the process, and what a checkpoint takes. Each is trained in a process of
its own, on one core, or on one GPU. It takes scikit-learn and accelerate: `pip install accelerate scikit-learn`.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pyarrow import csv
from rich.console import Console
from rich.table import Table
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from torch.utils.data import SequentialSampler
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

import holdfast
from storage.checkpoints.checkpoints import load_checkpoint
from storage.checkpoints.results import find_evaluation
from storage.datasets import DatasetManifest, load_dataset
from storage.objects.local_store import LocalStore
from storage.runs.ledger import walk_ledger
from storage.runs.manifest import Manifest
from storage.runs.retention import find_best
from storage.runs.segments import find_outcome
from tasks.config.load import configure
from tasks.configuration.run import RunConfig
from tasks.models.own_code import stored_values
from tests.helpers.parquet import read_split
from training.batches.seeds import seed_initial_weights
from training.determinism import pin_numerics
from training.models.source import source_of

BATCH_SIZE, LORA_RATE, FROM_NOTHING, WARMUP = 16, 2e-3, 1e-3, 0.1
MAX_TOKENS = 64
VALIDATION_ROWS, TEST_ROWS = 500, 4000
BETAS = (0.9, 0.999)
RUN, TEXT, LABEL = "tuned", "text", "label"


@dataclass(frozen=True)
class Job:
    """The tables of the splits, and how long models are trained on the first."""

    splits: dict[str, Path]
    model: str
    epochs: int
    learning_rate: float  # of all the pretrained model's weights
    device: str
    precision: str

    @property
    def steps(self) -> int:
        return self.epochs * int(pq.read_metadata(self.splits["train"]).num_rows) // BATCH_SIZE


class Measured(NamedTuple):
    """What one way of training came to."""

    macro_f1: float
    steps_per_second: float | None = None
    memory: int | None = None  # bytes
    checkpoint: int | None = None  # bytes


def main() -> None:
    given = read_options()
    shown = Table("model", "macro-F1, each seed", "mean", "steps/s", "memory", "checkpoint")
    found: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as name:
        job = make_job(given, Path(name))
        for seed in given.seeds:
            folder = Path(name) / str(seed)
            for model, work in WAYS.items():
                if given.only and work.__name__ not in given.only:
                    continue
                found.setdefault(model, []).append(in_own_process(work, job, folder, seed))
                print(f"seed {seed}, {model}: {found[model][-1]}", flush=True)
    for model, results in found.items():
        scores, speeds = [r.macro_f1 for r in results], [r.steps_per_second for r in results if r.steps_per_second]
        shown.add_row(
            model, ", ".join(f"{f1:.4f}" for f1 in scores), f"{statistics.mean(scores):.4f}",
            f"{statistics.median(speeds):.2f}" if speeds else "",
            f"{max(r.memory or 0 for r in results) / 2**20:,.0f} MiB" if speeds else "",
            f"{results[0].checkpoint / 2**20:,.1f} MiB" if results[0].checkpoint else "",
        )  # fmt: skip
    Console().print(shown)


def read_options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", required=True, help="folder of a pretrained model")
    options.add_argument("--data", type=Path, required=True, help="Parquet or CSV")
    options.add_argument("--test", type=Path, help="rows to test on; default: of those of --data")
    options.add_argument("--text", default="text", help="column with the text")
    options.add_argument("--label", default="domain", help="column with the class")
    options.add_argument("--rows", type=int, default=500, help="rows to train on; 0: all that are left")
    options.add_argument("--epochs", type=int, default=12)
    options.add_argument("--learning-rate", type=float, default=5e-5, help="of all the pretrained model's weights")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    names = [work.__name__ for work in WAYS.values()]
    options.add_argument("--only", nargs="+", choices=names, help="the models to train; default: all")
    return options.parse_args()


def in_own_process(work: Callable[[Job, Path, int], Measured], job: Job, folder: Path, seed: int) -> Measured:
    """So that its memory, and how many threads it computes with, are its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(work, job, folder, seed).result()


def make_job(given: argparse.Namespace, folder: Path) -> Job:
    """So many training rows, and those of the other splits, drawn once. No text is in two of them."""
    table = read_table(given.data, given)
    if given.test is not None:
        test = read_table(given.test, given)
        seen = pc.is_in(table.column(TEXT), value_set=test.column(TEXT).combine_chunks())
        table = table.filter(pc.invert(seen))
    order = np.random.default_rng(0).permutation(len(table))
    num_test = 0 if given.test is not None else min(TEST_ROWS, len(table) // 3)
    num_validation = min(VALIDATION_ROWS, len(table) // 6)
    rest = len(table) - num_test - num_validation
    sizes = {"test": num_test, "validation": num_validation, "train": min(given.rows or rest, rest)}
    splits, first = {}, 0
    for split, size in sizes.items():
        part = table.take(pa.array(np.sort(order[first : first + size])))
        splits[split] = folder / f"{split}.parquet"
        pq.write_table(test if split == "test" and given.test is not None else part, splits[split])
        first += size
    return Job(splits, given.model, given.epochs, given.learning_rate, given.device, given.precision)


def read_table(path: Path, given: argparse.Namespace) -> pa.Table:
    """Texts that differ, with their classes."""
    table = pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    frame = table.select([given.text, given.label]).to_pandas().drop_duplicates(given.text)
    return pa.table({TEXT: frame[given.text].astype(str), LABEL: frame[given.label].astype(str)})


def tfidf(job: Job, folder: Path, seed: int) -> Measured:
    """What most people try first."""
    train, test = pq.read_table(job.splits["train"]), pq.read_table(job.splits["test"])
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(C=10, max_iter=2000)
    model.fit(vectors.fit_transform(train.column(TEXT).to_pylist()), train.column(LABEL).to_pylist())
    predicted = model.predict(vectors.transform(test.column(TEXT).to_pylist()))
    return Measured(float(f1_score(test.column(LABEL).to_pylist(), predicted, average="macro")))


def from_nothing(job: Job, folder: Path, seed: int) -> Measured:
    """Our own encoder, with its defaults."""
    return holdfast_run(job, folder / "nothing", seed, {"kind": "encoder"}, FROM_NOTHING)


def pretrained(job: Job, folder: Path, seed: int) -> Measured:
    """The pretrained model, with the head that `AutoModelForSequenceClassification` gives one of BERT's."""
    model = {"kind": "pretrained", "name": job.model, "pooling": "cls"}
    return holdfast_run(job, folder / "tuned", seed, model, job.learning_rate)


def in_parts(job: Job, folder: Path, seed: int) -> Measured:
    """The same, for up to four ranks."""
    model = {"kind": "pretrained", "name": job.model, "pooling": "cls"}
    return holdfast_run(job, folder / "parts", seed, model, job.learning_rate, microbatches=4)


def lora(job: Job, folder: Path, seed: int) -> Measured:
    """The same, of which adapters and the head alone are trained."""
    model = {"kind": "pretrained", "name": job.model, "pooling": "cls", "lora": {"rank": 8, "alpha": 16}}
    return holdfast_run(job, folder / "lora", seed, model, LORA_RATE)


def holdfast_run(
    job: Job, folder: Path, seed: int, model: dict[str, Any], learning_rate: float, microbatches: int = 1
) -> Measured:
    """A run of so many epochs on one rank, evaluated: of its last model."""
    config = {
        "run": RUN,
        "store": str(folder),
        "data": {
            "source": str(job.splits["train"]), "text": TEXT, "label": LABEL, "kind": "multiclass",
            "max_tokens": MAX_TOKENS, "too_long": "truncate", "vocabulary_size": 4096,
            "split": {"validation_source": str(job.splits["validation"]), "test_source": str(job.splits["test"])},
        },
        "model": model,
        "train": {
            "steps": job.steps, "batch_size": BATCH_SIZE, "microbatches": microbatches, "learning_rate": learning_rate,
            "schedule": "linear", "seed": seed, "final_learning_rate_fraction": 0.0, "warmup_fraction": WARMUP,
            "class_weighting": 0.0, "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "device": job.device,
            "precision": job.precision, "threads": 1,
        },
        "validation": {"every_steps": 10**6},
        "checkpoint": {"every_steps": 10**6, "background": False},
    }  # fmt: skip
    path = folder.with_suffix(".toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_toml_lines(config)))
    holdfast.run(path)
    store = LocalStore(folder)
    state = Manifest(store, RUN).load_head().state
    evaluation = find_evaluation(store, find_best(state) or state.promoted)
    outcome = find_outcome(store, RUN, state.segments[0].fence)
    assert evaluation is not None and outcome is not None and state.promoted is not None
    memory, num_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, state.promoted.num_bytes
    speed = outcome.last_step / outcome.phases["train"]
    return Measured(evaluation["metrics"]["macro_f1"], speed, memory, num_bytes)


def _toml_lines(fields: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _toml_lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {json.dumps(value)}"


def order_of(store: LocalStore) -> list[int]:
    """The rows of the training split in the order in which the run in `store` consumed them."""
    promoted = Manifest(store, RUN).load_head().state.promoted
    assert promoted is not None
    ledger = load_checkpoint(store, promoted.path, promoted.digest).index.ledger
    parts = [pq.read_table(path) for _, path, _ in walk_ledger(store, ledger)][::-1]
    consumed = pa.concat_tables(parts).sort_by([("step", "ascending"), ("microbatch", "ascending")])
    return [row for rows in consumed.column("rows").to_pylist() for row in rows]


class _InOrder(Trainer):  # type: ignore[misc]
    """Without a shuffle of its own."""

    def _get_train_sampler(self, *_: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def trainer(job: Job, folder: Path, seed: int) -> Measured:
    """The Trainer of transformers, on the samples that `pretrained` consumed in this folder, in their order.

    The head has the first weights that it has there.
    """
    if job.device == "cpu":
        pin_numerics(1)  # on a GPU it may choose as it does for everybody
    store = LocalStore(folder / "tuned")
    state = Manifest(store, RUN).load_head().state
    dataset = load_dataset(store, state.dataset_digest)
    rows = {split: _samples(store, dataset, split) for split in ("train", "test")}
    num_labels = len(dataset.target.classes)
    network = AutoModelForSequenceClassification.from_pretrained(job.model, num_labels=num_labels)
    config = configure(RunConfig, stored_values(state), "run")
    seed_initial_weights(seed)
    ours: Any = source_of(config.model).build(dataset, num_labels)
    network.classifier.load_state_dict(ours.classifier.state_dict())
    torch.manual_seed(seed)
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"), num_train_epochs=1, per_device_train_batch_size=BATCH_SIZE, seed=seed,
        learning_rate=job.learning_rate, lr_scheduler_type="linear", warmup_steps=WARMUP, weight_decay=0.01,
        adam_beta1=BETAS[0], adam_beta2=BETAS[1], max_grad_norm=1.0, use_cpu=job.device == "cpu",
        bf16=job.precision == "bf16", report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, per_device_eval_batch_size=64,
    )  # fmt: skip
    work = _InOrder(network, arguments, _collate, [rows["train"][row] for row in order_of(store)])
    began = time.perf_counter()
    steps = work.train().global_step
    seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    logits = work.predict(rows["test"]).predictions
    expected = [row["labels"] for row in rows["test"]]
    return Measured(float(f1_score(expected, logits.argmax(axis=1), average="macro")), steps / seconds, memory)


def _samples(store: LocalStore, dataset: DatasetManifest, split: str) -> list[dict[str, Any]]:
    """The tokens and labels of the shards."""
    table = read_split(store, dataset, split)
    tokens, labels = table.column("tokens").to_pylist(), table.column("label").to_pylist()
    return [{"input_ids": list(ids), "labels": label} for ids, label in zip(tokens, labels, strict=True)]


def _collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([len(sample["input_ids"]) for sample in samples])
    ids = torch.zeros(len(samples), int(lengths.max()), dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([s["labels"] for s in samples])}


WAYS = {
    "TF-IDF, logistic regression": tfidf,
    "our encoder from nothing": from_nothing,
    "pretrained, Holdfast": pretrained,
    "pretrained, Holdfast, 4 microbatches": in_parts,
    "pretrained, Trainer of transformers": trainer,
    "pretrained, Holdfast, LoRA": lora,
}

if __name__ == "__main__":
    main()
