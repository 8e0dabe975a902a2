"""A run as days of training leave it: generations, checkpoints, ledger, curve, marks, reports and a log; not trained.

Invariant: all of it is written by the code that training and supervision use, but for the bytes of checkpoints that a
run of this length has dropped since. The last segment lost its supervisor and its ranks, so that a reader finds a
lease, the ranks' folder, and something to settle.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.numpy import save

from storage.checkpoints.checkpoints import (
    STATE_NAME,
    CheckpointIndex,
    checkpoint_path,
    put_checkpoint_file,
    write_index,
)
from storage.datasets import DatasetManifest, dataset_sha256
from storage.logs import LOG_NAME, write_log
from storage.objects.digests import canonical_json, sha256_of_bytes
from storage.objects.store import Store
from storage.runs.ledger import LedgerHeader, LedgerPart, write_ledger_part
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import CheckpointRecord, RunState, SegmentRecord, Throughput
from storage.runs.segments import Heartbeat, write_heartbeat
from storage.runs.transitions import Change, end_segment, promote, take_lease
from tasks.configuration.run import RunConfig
from tasks.run_paths import RunPaths
from tasks.tracking.marks import Mark, Marks, write_marks
from tests.helpers.holders import dead_process
from tests.helpers.parquet import text_config
from tests.helpers.runs import record_of
from tests.helpers.synthetic_run import consumed, publish_rows
from training.configuration import DivergenceConfig
from training.metrics.curve import LossCurve
from training.metrics.report_file import ReportFile
from training.metrics.reporter import Report
from training.metrics.training_state import TrainingState

RUN = "long"
NUM_ROWS, BATCH_SIZE, MICROBATCHES = 4096, 4, 1
LOG_EVERY_STEPS, VALIDATIONS_APART = 10, 10  # validations: in promotions
BEGAN_AT, SECONDS_A_STEP = 1_795_161_600.0, 0.43
KEPT = RetentionPolicy(newest=3, best=1)
FIGURES = (
    "samples_per_second", "tokens_per_second", "input_wait_fraction", "system/cpu_utilization_percentage",
    "system/system_memory_usage_percentage", "system/system_memory_usage_megabytes", "system/disk_usage_percentage",
    "system/disk_available_megabytes", "system/network_receive_megabytes", "system/network_transmit_megabytes",
)  # fmt: skip
LOG_LINE = b"[rank 0] A line that a user's own module prints at each of its calls, as people like to have it do.\n"


@dataclass(frozen=True)
class Size:
    """How long a run is. Its ranks report once a step; half of its promotions are in its last segment."""

    steps: int
    promotions: int
    segments: int
    log_bytes: int

    @property
    def steps_apart(self) -> int:
        """Steps between two promotions."""
        return self.steps // self.promotions


@dataclass(frozen=True)
class LongRun:
    """Where it is, and how long it is."""

    store: Store
    paths: RunPaths
    config: RunConfig
    size: Size

    def opened_anew(self, store: Store) -> "LongRun":
        """The same by `store`, which another process has opened, or this one anew."""
        paths = replace(self.paths, store=store, manifest=Manifest(store, RUN))
        return replace(self, store=store, paths=paths)


def paths_of(store: Store, folder: Path) -> RunPaths:
    """The run in `store`, with scratch below `folder`."""
    return RunPaths(store, Manifest(store, RUN), folder / "scratch" / RUN, folder / "data")


def config_of(store: Store, size: Size) -> RunConfig:
    """Without a setting that a run of days would not have."""
    train = {"steps": size.steps, "batch_size": BATCH_SIZE, "microbatches": MICROBATCHES, "seed": 3}
    data = text_config("data").model_dump()
    return RunConfig.model_validate({"run": RUN, "store": store.address, "data": data, "train": train})


def write_long_run(store: Store, folder: Path, size: Size) -> LongRun:
    """Write it all. `folder` is local; scratch is below it. It need not survive a power cut: nothing is synced."""
    scratch = folder / "files"
    scratch.mkdir(parents=True)
    run = LongRun(store, paths_of(store, folder), config_of(store, size), size)
    with patch("os.fsync"):
        dataset = publish_rows(store, NUM_ROWS, scratch)
        _Writer(run, dataset, scratch).write()
    return run


class _Writer:
    """Writes one run, promotion after promotion."""

    def __init__(self, run: LongRun, dataset: DatasetManifest, scratch: Path) -> None:
        self._run, self._dataset, self._scratch = run, dataset, scratch
        self._training = TrainingState(LossCurve(LOG_EVERY_STEPS, DivergenceConfig()))
        self._part: LedgerPart | None = None
        self._marks: list[Mark] = []
        self._state = RunState(
            run=RUN,
            created_at=BEGAN_AT,
            config=run.config.model_dump(mode="json"),
            dataset_digest=dataset.digest,
            dataset_sha256=dataset_sha256(run.store, dataset.digest),
            steps_total=2 * run.size.steps,
        )
        self._generation = 1
        run.paths.manifest.create(self._state)

    def write(self) -> None:
        size = self._run.size
        fence = self._begin_segment()
        ends = self._ends_of_segments()
        parts = consumed(self._run.config, NUM_ROWS, size.steps_apart)
        for number, (first_step, end_step, table) in enumerate(parts, 1):
            self._train(number, end_step)
            self._save_ledger(fence, first_step, end_step, table)
            self._promote(number, fence, end_step)
            if number in ends:
                self._end_segment(fence, end_step)
                fence = self._begin_segment()
        write_marks(self._run.store, RUN, Marks(marks=self._marks))
        self._leave_scratch(fence)

    def _ends_of_segments(self) -> set[int]:
        """After how many promotions each segment but the last ends."""
        before, promotions = self._run.size.segments - 1, self._run.size.promotions
        return {promotions * number // (2 * before) for number in range(1, before + 1)}

    def _commit(self, event: str, change: Change) -> None:
        """The next generation, by the manifest's own writer, without a look for the head before each of thousands."""
        self._state = change(self._state, self._generation + 1)
        self._run.paths.manifest.commit_after(self._generation, event, self._state)
        self._generation += 1

    def _begin_segment(self) -> int:
        paths = self._run.paths
        self._commit("segment began", take_lease(dead_process(), 1, scratch=paths.segment_scratch))
        fence = self._generation
        if self._run.size.segments > 1:
            log = self._scratch / "printed.log"
            log.write_bytes(LOG_LINE * 20)
            write_log(self._run.store, RUN, fence, log)
        return fence

    def _end_segment(self, fence: int, step: int) -> None:
        lease = self._state.lease
        assert lease is not None
        seconds = (step - lease.first_step) * SECONDS_A_STEP
        record = SegmentRecord(
            fence=fence, outcome="preempted", cause="SIGTERM", first_step=lease.first_step, last_step=step,
            world_size=1, started_at=BEGAN_AT + lease.first_step * SECONDS_A_STEP, seconds=seconds, steps_lost=0,
            phases={"start": 6.5, "restore": 1.2, "train": 0.9 * seconds, "validate": 0.05 * seconds},
            planned_steps=self._state.steps_total,
        )  # fmt: skip
        self._commit(f"segment {fence} ended: preempted", end_segment(record))

    def _train(self, number: int, end_step: int) -> None:
        """The curve, and now and then a validation, of the steps since the promotion before."""
        training = self._training
        for step in range(end_step - self._run.size.steps_apart + 1, end_step + 1):
            if step % LOG_EVERY_STEPS == 0:
                loss = 0.3 + 2.0 / (1 + step / 1000) + 0.01 * (step * 7919 % 13)
                training.curve.points.append((step, loss, 1e-3))
                training.curve.norms.append((step, 1.0 + 0.01 * (step * 104729 % 17)))
                training.curve.first_loss = training.curve.first_loss or loss
        training.step = end_step
        if number % VALIDATIONS_APART == 0:
            score = 0.5 + 0.4 * number / self._run.size.promotions
            training.record_validation({"loss": 1 - score, "accuracy": score, "auc": score}, "auc")
        sealed = training.seal_history(RUN)
        if sealed is not None:
            sealed.write(self._run.store)

    def _save_ledger(self, fence: int, first_step: int, end_step: int, table: Any) -> None:
        header = LedgerHeader(
            run=RUN, fence=fence, first_step=first_step, end_step=end_step, world_size=1,
            dataset_digest=self._dataset.digest, previous=self._part, skipped=[],
        )  # fmt: skip
        # A store may keep the very file that it is given: each part has a folder of its own.
        folder = self._scratch / str(first_step)
        folder.mkdir()
        self._part = write_ledger_part(self._run.store, header, table, folder)
        folder.rmdir()

    def _promote(self, number: int, fence: int, step: int) -> None:
        """What a run of this length has dropped since is only named."""
        is_there = number > self._run.size.promotions - KEPT.newest
        record = self._save_checkpoint(fence, step) if is_there else _dropped(fence, step)
        at = BEGAN_AT + step * SECONDS_A_STEP
        validated = self._training.validated_step == step
        update = {"promoted_at": at, "metric": self._training.validations[-1]["metrics"]["auc"] if validated else None}
        self._commit(f"promoted step {step}", promote(record.model_copy(update=update), KEPT))
        figures = {name: (step * place + 1) / 7 for place, name in enumerate(FIGURES, 1)}
        self._marks.append(Mark(step=step, at=at, figures=figures))

    def _save_checkpoint(self, fence: int, step: int) -> CheckpointRecord:
        folder, path = self._scratch / f"checkpoint-{step}", checkpoint_path(RUN, step, fence)
        folder.mkdir()
        weights = {"weight": np.full((16, 4), step, dtype=np.float32)}
        files = {
            "model.safetensors": save(weights),
            "optimizer.safetensors": save({"exp_avg.weight": weights["weight"]}),
            STATE_NAME: canonical_json(self._training.state_dict()),
        }
        index = CheckpointIndex(
            run=RUN, fence=fence, step=step, cursor=step * BATCH_SIZE, dataset_digest=self._dataset.digest,
            versions={}, ledger=self._part,
            files={
                name: put_checkpoint_file(self._run.store, f"{path}/{name}", memoryview(data), folder / name)
                for name, data in files.items()
            },
        )  # fmt: skip
        return record_of(write_index(self._run.store, index))

    def _leave_scratch(self, fence: int) -> None:
        """What the ranks of the last segment left on their machine: all reports and all that was printed."""
        folder = self._run.paths.segment_scratch(fence)
        folder.mkdir(parents=True)
        write_reports(folder / "progress.jsonl", self._run.size.steps)
        with (folder / LOG_NAME).open("wb") as file:
            for _ in range(0, self._run.size.log_bytes, 1000 * len(LOG_LINE)):
                file.write(1000 * LOG_LINE)
        spec = {"store": self._run.store.address, "run": RUN, "fence": fence}
        (folder / "specification.json").write_text(json.dumps(spec))
        beat = Heartbeat(beat=9, step=self._run.size.steps, phases={"train": 1.0}, written_at=time.time())
        write_heartbeat(self._run.store, RUN, fence, beat)


def write_reports(path: Path, steps: int) -> None:
    """A report for each step, as the first rank writes them."""
    speed = Throughput(samples_per_second=12345.678, tokens_per_second=1234567.891, input_wait_fraction=0.001234)
    phases = {"start": 12.345, "restore": 1.234, "validate": 1234.567, "save": 123.456, "train": 412345.678}
    report = Report(
        phase="train", step=0, loss=1.2345678901234567, throughput=speed, longest_step_seconds=0.4321098765432109,
        phases=phases,
    ).model_dump()  # fmt: skip
    file = ReportFile(path)
    for step in range(1, steps + 1):
        report["step"] = step
        file.write(json.dumps(report), must_come=False)
    file.close()


def _dropped(fence: int, step: int) -> CheckpointRecord:
    return CheckpointRecord(
        step=step, path=checkpoint_path(RUN, step, fence), num_bytes=18_412_331, fence=fence,
        digest=sha256_of_bytes(b"index %d" % step), weights_sha256=sha256_of_bytes(b"weights %d" % step),
        promoted_at=0.0,
    )  # fmt: skip
