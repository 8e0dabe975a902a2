"""What the report of a run with many classes needs: `python -m tests.helpers.report_of_many_classes 10000`.

The confusion is made up: 20 test samples of each class, two of them taken for another one. It is read from JSON as it
is from a store, and a line of JSON tells CPU seconds, the process's most memory, and how large the page is.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from tasks.models.evaluation_words import describe_in_markdown
from tasks.reporting.run_page import render_report
from tests.helpers.finished_runs import dataset_of, history_of, segments_of, state_of, weights_digest
from training.targets.class_scores import count_pairs

STEPS, SAMPLES_A_CLASS = 1200, 20


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds and memory of a report of many classes.")
    parser.add_argument("classes", type=int, help="how many classes")
    num_classes = parser.parse_args().classes
    classes = [f"product group number {index}" for index in range(num_classes)]
    stored = json.dumps(_made_up(classes))
    begun = time.process_time()
    evaluation = json.loads(stored)
    dataset = dataset_of(classes, "multiclass", "group")
    state = state_of("groups", STEPS, segments_of([("completed", "", STEPS, 0)]))
    page = render_report(state, history_of(STEPS), evaluation, dataset)
    artifact = describe_in_markdown(evaluation | {"source": None, "checkpoint": "s/c", "calibration": None})
    seconds = time.process_time() - begun
    # Not ru_maxrss: that has the memory of the process which started this one, from between fork and exec.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    most_bytes = int(status["VmHWM"].split()[0]) * 1024
    sizes = {"page_bytes": len(page.encode()), "artifact_bytes": len(artifact.encode()), "stored_bytes": len(stored)}
    print(json.dumps({"classes": num_classes, "cpu_seconds": round(seconds, 1), "most_bytes": most_bytes, **sizes}))


def _made_up(classes: list[str]) -> dict[str, object]:
    """An evaluation as the first rank writes it."""
    num_classes = len(classes)
    labels = torch.arange(num_classes).repeat_interleave(SAMPLES_A_CLASS)
    taken_for = torch.from_numpy(np.random.default_rng(0).integers(0, num_classes, len(labels)))
    predicted = torch.where(torch.arange(len(labels)) % 10 == 0, taken_for, labels)
    right = torch.bincount(labels[labels == predicted], minlength=num_classes) / SAMPLES_A_CLASS
    scores = [{name: share for name in ("precision", "recall", "f1")} for share in right.tolist()]
    return {
        "format": 1, "step": STEPS, "weights_sha256": weights_digest(STEPS), "split": "test", "kind": "multiclass",
        "num_samples": len(labels), "classes": classes, "metrics": {"loss": 0.31, "accuracy": 0.9, "macro_f1": 0.9},
        "roc": None, "confusion": count_pairs(predicted, labels, num_classes),
        "per_class": [
            {"class": name, **found, "support": SAMPLES_A_CLASS} for name, found in zip(classes, scores, strict=True)
        ],
    }  # fmt: skip


if __name__ == "__main__":
    main()
