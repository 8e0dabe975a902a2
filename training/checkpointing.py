"""From the state of training to a checkpoint and back.

Weights and optimizer moments are tensors under their names (safetensors); everything else is JSON. Nothing is pickled,
so a checkpoint from a stranger's bucket cannot run code. Invariant: restoring what was saved at step s and going on
gives the bits that going on without a save gives.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import safetensors.torch
import torch
from torch import Tensor

from storage.checkpoints import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    STATE_NAME,
    CheckpointIndex,
    FoundCheckpoint,
    describe_file,
    load_checkpoint,
    read_checkpoint_file,
    write_checkpoint,
)
from storage.digests import canonical_json
from storage.errors import IncompatibleRunError
from storage.ledger import LedgerHeader, LedgerPart, write_ledger_part
from storage.store import Store
from storage.tensor_files import weights_sha256
from training.curve import LossCurve
from training.specification import SegmentSpec
from training.trainer import Trainer
from training.versions import describe_version_changes, read_versions
from training.world import World

STATE_FORMAT = 2


@dataclass
class RunProgress:
    """How far the run is, beside weights and optimizer: describes what was consumed, never what was read ahead."""

    curve: LossCurve
    step: int = 0
    validated_step: int | None = None
    validations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None

    def record_validation(self, metrics: dict[str, float], headline: str) -> None:
        """Note the metrics of the current step, and whether they are the best so far."""
        self.validations.append({"step": self.step, "metrics": metrics})
        self.validated_step = self.step
        if self.best is None or metrics[headline] > self.best["value"]:
            self.best = {"metric": headline, "value": metrics[headline], "step": self.step}

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT,
            "step": self.step,
            "validated_step": self.validated_step,
            "best": self.best,
            "history": {"loss": self.curve.state_dict()["points"], "validation": self.validations},
            "pending_losses": self.curve.state_dict()["pending"],
            "gradient_values_rounded_away": self.curve.num_rounded_away,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["format"] != STATE_FORMAT:
            raise IncompatibleRunError(
                f"The checkpoint's state has format {state['format']}, this version reads {STATE_FORMAT}. "
                "Continue the run with the version of Holdfast that wrote it."
            )
        self.step = state["step"]
        self.validated_step = state["validated_step"]
        self.best = state["best"]
        self.validations = state["history"]["validation"]
        self.curve.load_state_dict(
            {
                "points": state["history"]["loss"],
                "pending": state["pending_losses"],
                "rounded_away": state["gradient_values_rounded_away"],
            }
        )


class Checkpointer:
    """Saves and restores one run's training state. Only the first rank writes: under DDP every rank has it all."""

    def __init__(
        self, spec: SegmentSpec, world: World, store: Store, trainer: Trainer, progress: RunProgress, samples: int
    ) -> None:
        self._saved: tuple[int, int | None] = (0, None)
        self._ledger: LedgerPart | None = None
        self._spec = spec
        self._world = world
        self._store = store
        self._trainer = trainer
        self._progress = progress
        self._epoch_samples = samples
        self._folder = spec.scratch_folder / "save"

    def save(self, consumed: pa.Table) -> FoundCheckpoint:
        """Write the ledger of what was `consumed` since the last save, then the state at the current step.

        Returns when both are durable. For the first rank alone.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        files = {name: self._folder / name for name in (MODEL_NAME, OPTIMIZER_NAME, STATE_NAME)}
        safetensors.torch.save_file(_on_cpu(self._trainer.model.state_dict()), files[MODEL_NAME])
        safetensors.torch.save_file(_on_cpu(self._trainer.optimization.tensors()), files[OPTIMIZER_NAME])
        files[STATE_NAME].write_bytes(canonical_json(self._state()))
        self._ledger = self._write_ledger(consumed)
        found = write_checkpoint(self._store, self._index(files), files)
        shutil.rmtree(self._folder)
        return found

    def restore(self, path: str, digest: str) -> str | None:
        """Take over the checkpoint in `path`; every rank reads it. Raises `CorruptObjectError` for any changed byte.

        Returns a sentence for people if libraries or the device are not those that made it.
        """
        found = load_checkpoint(self._store, path, digest)
        state = json.loads(read_checkpoint_file(self._store, found, STATE_NAME))
        try:
            weights = safetensors.torch.load(read_checkpoint_file(self._store, found, MODEL_NAME))
            self._trainer.model.load_state_dict(weights)
            moments = safetensors.torch.load(read_checkpoint_file(self._store, found, OPTIMIZER_NAME))
            self._trainer.optimization.load_tensors(moments)
        except (RuntimeError, KeyError) as error:
            raise IncompatibleRunError(
                f"The checkpoint {path} does not fit the configured model: {error}. "
                "Restore [model] as it was when the run began, or start a new run."
            ) from error
        self._trainer.optimization.load_state_dict(state["optimization"])
        self._progress.load_state_dict(state)
        self._ledger = found.index.ledger
        self.mark_saved()
        return describe_version_changes(found.index.versions, read_versions(self._trainer.device))

    def is_saved(self) -> bool:
        """Whether a checkpoint of just this state exists; the first weights need none, they follow from the seed."""
        return self._saved == (self._progress.step, self._progress.validated_step)

    def mark_saved(self) -> None:
        """Every rank notes that the state as it is now was saved or restored."""
        self._saved = (self._progress.step, self._progress.validated_step)

    def _state(self) -> dict[str, Any]:
        cursor = self._progress.step * self._spec.train.batch_size
        return self._progress.state_dict() | {
            "cursor": cursor,
            "epoch": cursor // self._epoch_samples,
            "optimization": self._trainer.optimization.state_dict(),
        }

    def _write_ledger(self, consumed: pa.Table) -> LedgerPart | None:
        """The part from the last save to now. None is written where no step was made: a validation was made up for."""
        first_step = self._ledger.end_step if self._ledger else 0
        if first_step == self._progress.step:
            return self._ledger
        header = LedgerHeader(
            run=self._spec.run,
            fence=self._spec.fence,
            first_step=first_step,
            end_step=self._progress.step,
            world_size=self._world.size,
            dataset_digest=self._spec.dataset_digest,
            previous=self._ledger,
        )
        return write_ledger_part(self._store, header, consumed, self._folder)

    def _index(self, files: dict[str, Path]) -> CheckpointIndex:
        return CheckpointIndex(
            run=self._spec.run,
            fence=self._spec.fence,
            step=self._progress.step,
            cursor=self._progress.step * self._spec.train.batch_size,
            dataset_digest=self._spec.dataset_digest,
            weights_sha256=weights_sha256(files[MODEL_NAME]),
            versions=read_versions(self._trainer.device),
            ledger=self._ledger,
            files={name: describe_file(path) for name, path in files.items()},
        )


def load_weights(store: Store, path: str, digest: str) -> dict[str, Tensor]:
    """The model's tensors of a checkpoint, hashed while they are read. Raises `CorruptObjectError`."""
    return safetensors.torch.load(read_checkpoint_file(store, load_checkpoint(store, path, digest), MODEL_NAME))


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
