"""`make bench-finetune MODEL=FOLDER DATA=FILE`: a pretrained model on few rows, beside what else a person could take.

The table is `intents.parquet`, or one with the same columns. Four models see the same rows: a pretrained one trained by
Holdfast; the same by the Trainer of transformers, with the order of samples that Holdfast's ledger states, the same
optimizer and schedule; our encoder from nothing; and TF-IDF with logistic regression. Quoted is macro-F1 on rows that
none has seen, of each seed, and steps a second of the two that train the same model. It takes scikit-learn and
accelerate: `pip install accelerate scikit-learn`.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from torch.utils.data import SequentialSampler
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

from storage.checkpoints.checkpoints import load_checkpoint
from storage.checkpoints.results import find_evaluation
from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from storage.runs.ledger import walk_ledger
from storage.runs.manifest import Manifest
from storage.runs.retention import find_best
from storage.runs.segments import find_outcome
from tasks.configuration.run import RunConfig
from tests.helpers.parquet import read_split
from tests.helpers.trained_runs import train_run
from training.determinism import pin_numerics

BATCH_SIZE, LEARNING_RATE, WARMUP = 16, 5e-5, 0.1
MAX_TOKENS = 64
VALIDATION_ROWS, TEST_ROWS = 500, 4000
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Job:
    """The tables of the splits, and how long models are trained on the first."""

    splits: dict[str, Path]
    texts: dict[str, list[str]]
    labels: dict[str, list[str]]
    epochs: int


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", required=True)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--rows", type=int, default=500)
    options.add_argument("--epochs", type=int, default=12)
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    pin_numerics(1)
    shown = Table("model", "macro-F1, each seed", "mean", "steps/s")
    with tempfile.TemporaryDirectory() as name:
        job = make_job(given.data, Path(name), given.rows, given.epochs)
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(given.seeds):
            found.setdefault("TF-IDF, logistic regression", []).append((tfidf(job), 0.0))
            ours = holdfast(job, Path(name) / f"nothing-{seed}", seed, {"kind": "encoder"}, 1e-3)
            found.setdefault("our encoder from nothing", []).append(ours.result)
            model = {"kind": "pretrained", "name": given.model, "pooling": "cls"}
            tuned = holdfast(job, Path(name) / f"pretrained-{seed}", seed, model, LEARNING_RATE)
            found.setdefault("pretrained, Holdfast", []).append(tuned.result)
            found.setdefault("pretrained, Trainer of transformers", []).append(
                trainer(job, tuned, given.model, Path(name) / f"trainer-{seed}", seed)
            )
        for model_name, results in found.items():
            scores, speeds = [f1 for f1, _ in results], [speed for _, speed in results if speed]
            shown.add_row(
                model_name, ", ".join(f"{f1:.4f}" for f1 in scores), f"{statistics.mean(scores):.4f}",
                f"{statistics.median(speeds):.2f}" if speeds else "",
            )  # fmt: skip
    Console().print(shown)


def make_job(data: Path, folder: Path, rows: int, epochs: int) -> Job:
    """So many training rows, and those of the other splits, drawn once."""
    table = pq.read_table(data, columns=["sample_id", "text", "domain"])
    order = np.random.default_rng(0).permutation(len(table))
    sizes = {"train": rows, "validation": VALIDATION_ROWS, "test": TEST_ROWS}
    splits, texts, labels, first = {}, {}, {}, 0
    for split, size in sizes.items():
        part = table.take(pa.array(np.sort(order[first : first + size])))
        splits[split] = folder / f"{split}.parquet"
        pq.write_table(part, splits[split])
        texts[split], labels[split] = part.column("text").to_pylist(), part.column("domain").to_pylist()
        first += size
    return Job(splits, texts, labels, epochs)


def tfidf(job: Job) -> float:
    """Macro-F1 of what most people try first."""
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(C=10, max_iter=2000)
    model.fit(vectors.fit_transform(job.texts["train"]), job.labels["train"])
    return float(f1_score(job.labels["test"], model.predict(vectors.transform(job.texts["test"])), average="macro"))


@dataclass(frozen=True)
class Tuned:
    """A run that is complete."""

    store: LocalStore
    dataset: DatasetManifest
    result: tuple[float, float]  # macro-F1 of the last model, steps a second

    def order(self) -> list[int]:
        """The rows of the training split in the order in which the run consumed them."""
        promoted = Manifest(self.store, "tuned").load_head().state.promoted
        assert promoted is not None
        ledger = load_checkpoint(self.store, promoted.path, promoted.digest).index.ledger
        parts = [pq.read_table(path) for _, path, _ in walk_ledger(self.store, ledger)][::-1]
        consumed = pa.concat_tables(parts).sort_by([("step", "ascending"), ("microbatch", "ascending")])
        return [row for rows in consumed.column("rows").to_pylist() for row in rows]


def holdfast(job: Job, folder: Path, seed: int, model: dict[str, Any], learning_rate: float) -> Tuned:
    """A run of so many epochs on one rank, evaluated."""
    config = RunConfig.model_validate(
        {
            "run": "tuned",
            "store": str(folder),
            "data": {
                "source": str(job.splits["train"]), "id": "sample_id", "text": "text", "label": "domain",
                "kind": "multiclass", "max_tokens": MAX_TOKENS, "vocabulary_size": 4096,
                "split": {
                    "validation_source": str(job.splits["validation"]), "test_source": str(job.splits["test"]),
                },
            },
            "model": model,
            "train": {
                "steps": job.epochs * len(job.texts["train"]) // BATCH_SIZE, "batch_size": BATCH_SIZE,
                "microbatches": 1, "learning_rate": learning_rate, "schedule": "linear", "seed": seed,
                "final_learning_rate_fraction": 0.0, "warmup_fraction": WARMUP, "class_weighting": 0.0,
                "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "device": "cpu",
            },
            "validation": {"every_steps": 10**6},
            "checkpoint": {"every_steps": 10**6, "background": False},
        }
    )  # fmt: skip
    store, dataset = train_run(config)
    state = Manifest(store, "tuned").load_head().state
    evaluation = find_evaluation(store, find_best(state) or state.promoted)
    outcome = find_outcome(store, "tuned", state.segments[0].fence)
    assert evaluation is not None and outcome is not None
    return Tuned(store, dataset, (evaluation["metrics"]["macro_f1"], outcome.last_step / outcome.phases["train"]))


class _InOrder(Trainer):  # type: ignore[misc]
    """Without a shuffle of its own."""

    def _get_train_sampler(self, *_: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def trainer(job: Job, tuned: Tuned, model: str, folder: Path, seed: int) -> tuple[float, float]:
    """The Trainer of transformers on the samples that the run consumed, in their order: macro-F1 and steps a second."""
    rows = {split: _samples(tuned, split) for split in ("train", "test")}
    classes = tuned.dataset.target.classes
    torch.manual_seed(seed)
    network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(classes))
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=1, per_device_train_batch_size=BATCH_SIZE, seed=seed,
        learning_rate=LEARNING_RATE, lr_scheduler_type="linear", warmup_steps=WARMUP, weight_decay=0.01,
        adam_beta1=BETAS[0], adam_beta2=BETAS[1], max_grad_norm=1.0, use_cpu=True, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, per_device_eval_batch_size=64,
    )  # fmt: skip
    work = _InOrder(network, arguments, _collate, [rows["train"][row] for row in tuned.order()])
    began = time.perf_counter()
    steps = work.train().global_step
    seconds = time.perf_counter() - began
    logits = work.predict(rows["test"]).predictions
    expected = [row["labels"] for row in rows["test"]]
    return float(f1_score(expected, logits.argmax(axis=1), average="macro")), steps / seconds


def _samples(tuned: Tuned, split: str) -> list[dict[str, Any]]:
    """The tokens and labels of the shards."""
    table = read_split(tuned.store, tuned.dataset, split)
    tokens, labels = table.column("tokens").to_pylist(), table.column("label").to_pylist()
    return [{"input_ids": list(ids), "labels": label} for ids, label in zip(tokens, labels, strict=True)]


def _collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([len(sample["input_ids"]) for sample in samples])
    ids = torch.zeros(len(samples), int(lengths.max()), dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([s["labels"] for s in samples])}


if __name__ == "__main__":
    main()
