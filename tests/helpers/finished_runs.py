"""Made-up but consistent records of a run, for what is drawn and written about runs.

Invariant: everything follows from the arguments and fixed seeds; a segment begins at the checkpoint before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.datasets import CategoricalColumn, DatasetManifest, NumericColumn, ShardRecord, SplitRecord, Target
from storage.objects.digests import sha256_of_bytes
from storage.runs.run_state import CheckpointRecord, RunState, SaveFigures, SegmentRecord

BEGAN_AT = 1_795_161_600.0
INTENTS = (
    "banking", "credit_cards", "kitchen_and_dining", "home", "auto_and_commute", "travel", "utility", "work",
    "small_talk", "meta", "out_of_scope",
)  # fmt: skip


@dataclass(frozen=True)
class Records:
    """What `render_report` takes."""

    state: RunState
    history: dict[str, Any]
    evaluation: dict[str, Any] | None
    dataset: DatasetManifest
    calibration: dict[str, Any] | None = None


def segments_of(ends: Sequence[tuple[str, str, int, int]], seconds_per_step: float = 0.05) -> list[SegmentRecord]:
    """Segments in a row; each end is (outcome, cause, last step, steps lost)."""
    segments: list[SegmentRecord] = []
    first_step, started_at = 0, BEGAN_AT
    for index, (outcome, cause, last_step, lost) in enumerate(ends):
        train = (last_step - first_step) * seconds_per_step
        phases = {"start": 6.5, "restore": 0.9 if index else 0.0, "train": train, "validate": train * 0.09, "save": 1.2}
        seconds = sum(phases.values())
        segments.append(
            SegmentRecord(
                fence=2 + 7 * index,
                outcome=outcome,
                cause=cause,
                first_step=first_step,
                last_step=last_step,
                world_size=(1, 2, 4)[index % 3],
                planned_steps=1000,
                started_at=started_at,
                seconds=seconds,
                steps_lost=lost,
                phases={} if outcome == "lost" else phases,
            )
        )
        first_step, started_at = last_step - lost, started_at + seconds + 240
    return segments


def history_of(
    last_step: int, every_steps: int = 10, best_loss: float = 0.28, start_loss: float = 2.4
) -> dict[str, Any]:
    """A loss that falls and levels off, with noise, and a learning rate that warms up and decays."""
    steps = np.arange(every_steps, last_step + 1, every_steps)
    progress = steps / max(last_step, 1)
    falling = best_loss + (start_loss - best_loss) * np.exp(-6 * progress)
    losses = falling * np.random.default_rng(0).normal(1, 0.09, len(steps))
    rates = 1e-3 * np.minimum(progress / 0.05, 0.525 + 0.475 * np.cos(np.pi * progress))
    validated = [int(step) for step in steps[9::10]]
    return {
        "loss": [[int(a), float(b), float(c)] for a, b, c in zip(steps, losses, rates, strict=True)],
        "validation": [{"step": step, "metrics": _metrics_at(step / last_step, best_loss)} for step in validated],
    }


def evaluation_of(classes: Sequence[str], kind: str, step: int, seed: int = 1) -> dict[str, Any]:
    """A confusion matrix with most samples on its diagonal and all that follows from it."""
    random = np.random.default_rng(seed)
    supports = np.maximum(9, (900 * np.exp(-0.32 * np.arange(len(classes)))).astype(int))
    matrix = np.array([_confusion_row(random, row, int(support), len(classes)) for row, support in enumerate(supports)])
    correct = np.diag(matrix)
    precision = correct / np.maximum(matrix.sum(axis=0), 1)
    recall = correct / matrix.sum(axis=1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    metrics = {"loss": 0.3127, "accuracy": float(correct.sum() / matrix.sum()), "macro_f1": float(f1.mean())}
    false_positive = np.linspace(0, 1, 200)
    roc = None
    if kind == "binary":
        metrics["auc"] = 0.9812
        roc = {
            "false_positive_rate": false_positive.tolist(),
            "true_positive_rate": (false_positive ** (1 / 45)).tolist(),
        }
    per_class = [
        {"class": name, "precision": p, "recall": r, "f1": f, "support": int(s)}
        for name, p, r, f, s in zip(classes, precision.tolist(), recall.tolist(), f1.tolist(), supports, strict=True)
    ]
    return {
        "format": 1, "step": step, "weights_sha256": weights_digest(step), "split": "test",
        "num_samples": int(matrix.sum()), "kind": kind, "classes": list(classes), "metrics": metrics,
        "confusion": matrix.tolist(), "per_class": per_class, "roc": roc,
    }  # fmt: skip


def calibration_of(classes: Sequence[str], kind: str, step: int) -> dict[str, Any]:
    """A model that claims too much, and the temperature that corrects most of it; all else follows from it."""
    places = [place for place in range(15) if kind == "binary" or place >= 3]
    bins = {
        when: [_bin(place, 40 + 25 * abs(place - 7), far) for place in places]
        for when, far in (("before", 0.4), ("after", 0.06))
    }
    listed = [_scores_at(number / 100) for number in range(1, 100)]
    best = _scores_at(0.527)
    thresholds = {"listed": listed, "best": best | {"measured": best | {"f1": best["f1"] - 0.01}}}
    return {
        "format": 1, "step": step, "weights_sha256": weights_digest(step), "kind": kind, "classes": list(classes),
        "checkpoint_digest": sha256_of_bytes(b"index %d" % step), "temperature": 1.6180, "is_bounded": False,
        "reason": None, "fitted_on": {"split": "validation", "num_samples": 1190, "num_rows": 1190},
        "loss": {"before": 0.3127, "after": 0.2711}, "measured_on": {"split": "test", "num_samples": 1203},
        "calibration_error": {"before": 0.1241, "after": 0.0187}, "bins": bins,
        "thresholds": thresholds if kind == "binary" else None,
    }  # fmt: skip


def dataset_of(classes: Sequence[str], kind: str, column: str) -> DatasetManifest:
    """A small data set with three metadata columns."""
    counts = [max(40, int(7000 * 0.72**index)) for index in range(len(classes))]
    total = sum(counts)
    splits = {
        name: SplitRecord(num_rows=rows, num_tokens=rows * 17, shards=[_file(f"{name}-0.parquet", rows)])
        for name, rows in (("train", total), ("validation", total // 8), ("test", total // 8))
    }
    return DatasetManifest(
        digest=sha256_of_bytes(b"dataset"), inputs={}, versions={"duckdb": "2.0.0", "tokenizers": "0.23.1"},
        target=Target(kind=kind, column=column, classes=list(classes), class_counts=counts), vocabulary_size=8192,
        max_tokens=64, row_group_rows=1024, tokenizer=_file("tokenizer.json", 0), splits=splits,
        numeric=[NumericColumn(name="token_count", mean=17.2, standard_deviation=6.1, median=16, missing_share=0.081)],
        categorical=[
            CategoricalColumn(name="language", vocabulary=["de", "en", "fr"], missing_share=0.078),
            CategoricalColumn(name="region", vocabulary=[f"r{n}" for n in range(19)], missing_share=0.0),
        ],
    )  # fmt: skip


def state_of(run: str, steps_total: int, segments: list[SegmentRecord], **changes: Any) -> RunState:
    """The run after `segments`, with the checkpoints that they left."""
    last = segments[-1].last_step - segments[-1].steps_lost if segments else 0
    kept = [checkpoint_at(run, step) for step in (last, last - 100, last - 200) if step > 0]
    state = RunState(
        run=run, created_at=BEGAN_AT, dataset_digest=sha256_of_bytes(b"dataset"),
        dataset_sha256="s" * 64, steps_total=steps_total,
        promoted=kept[0] if kept else None, kept=kept, segments=segments,
        config={"run": run, "store": "store", "data": {"kind": "multiclass", "text": "text", "tokens": None},
                "train": {"steps": steps_total, "learning_rate": 0.001, "compile": False}},
    )  # fmt: skip
    return state.model_copy(update=changes)


def checkpoint_at(run: str, step: int) -> CheckpointRecord:
    """A promoted checkpoint."""
    return CheckpointRecord(
        step=step, path=f"runs/{run}/segments/00000002/checkpoints/{step:012d}", num_bytes=18_412_331, fence=2,
        digest=sha256_of_bytes(b"index %d" % step), weights_sha256=weights_digest(step), promoted_at=BEGAN_AT + step,
    )  # fmt: skip


def weights_digest(step: int) -> str:
    """The made-up digest of the weights at `step`."""
    return sha256_of_bytes(b"weights %d" % step)


def interrupted_run(kind: str = "multiclass") -> Records:
    """1,200 steps in four segments: preempted, lost with 37 steps, out of its time budget, completed."""
    binary = kind == "binary"
    classes, name = (("False", "True"), "intents-finance") if binary else (INTENTS, "intents")
    segments = segments_of(
        [
            ("preempted", "SIGTERM", 310, 0),
            ("lost", "no sign of life for 30 s", 637, 37),
            ("budget", "budget of 20 s", 905, 0),
            ("completed", "", 1200, 0),
        ]
    )
    history = history_of(1200, best_loss=0.07, start_loss=0.69) if binary else history_of(1200)
    if binary:
        for entry in history["validation"]:
            entry["metrics"]["auc"] = min(0.985, entry["metrics"]["accuracy"] + 0.05)
    return Records(
        state_of(name, 1200, segments), history, evaluation_of(classes, kind, 1200),
        dataset_of(classes, kind, "is_finance" if binary else "domain"), calibration_of(classes, kind, 1200),
    )  # fmt: skip


def measured_run(run: str = "quality", **changes: Any) -> RunState:
    """200,000 steps of half a second; three crashes (two lost, one failed) and two notices in 100,000 s.

    40 saves of 1.5 GB in each segment that lived to tell: a stall of 0.3 s, durable 11 s later.
    """
    ends = [("preempted", "SIGTERM", 31_000, 0), ("lost", "killed", 63_700, 1_700), ("lost", "killed", 90_500, 500)]
    ends += [
        ("preempted", "SIGTERM", 92_000, 0),
        ("failed", "out of memory", 99_000, 800),
        ("completed", "", 200_000, 0),
    ]
    saves = SaveFigures(count=40, stall_seconds=12.0, durable_seconds=452.0, num_bytes=1_490_000_000)
    segments = [
        segment.model_copy(update={"seconds": 100_000 / 6, "saves": None if segment.outcome == "lost" else saves})
        for segment in segments_of(ends, seconds_per_step=0.5)
    ]
    state = state_of(run, 200_000, segments)
    assert state.promoted is not None
    promoted = state.promoted.model_copy(update={"num_bytes": saves.num_bytes})
    return state.model_copy(update={"promoted": promoted, **changes})


def _metrics_at(progress: float, best_loss: float) -> dict[str, float]:
    risen = 1 - float(np.exp(-5 * progress))
    return {
        "loss": best_loss * 1.15 + 1.6 * (1 - risen),
        "accuracy": 0.30 + 0.64 * risen,
        "macro_f1": 0.12 + 0.79 * risen,
    }


def _bin(place: int, num_samples: int, far: float) -> dict[str, Any]:
    claimed = (place + 0.5) / 15
    came_true = claimed + far * (0.5 - claimed)
    return {
        "from": place / 15, "to": (place + 1) / 15, "num_samples": num_samples, "claimed": claimed,
        "came_true": came_true,
    }  # fmt: skip


def _scores_at(threshold: float) -> dict[str, Any]:
    precision, recall = 1 - 0.8 * (1 - threshold) ** 3, 1 - threshold**4
    positive = round(900 * (1 - threshold) ** 2)
    return {
        "threshold": threshold, "precision": precision if threshold < 0.97 else None, "recall": recall,
        "f1": 2 * precision * recall / (precision + recall), "num_positive": positive if threshold < 0.97 else 0,
    }  # fmt: skip


def _confusion_row(random: np.random.Generator, row: int, support: int, num_classes: int) -> np.ndarray[Any, Any]:
    chances = random.dirichlet(np.full(num_classes, 0.3)) * 0.11
    chances[row] += 0.89
    return random.multinomial(support, chances / chances.sum())


def _file(name: str, num_rows: int) -> ShardRecord:
    sha256 = sha256_of_bytes(name.encode())
    return ShardRecord(name=name, num_rows=num_rows, num_bytes=num_rows * 61, sha256=sha256, footer_sha256=sha256)
