"""How far a run is, beside weights and optimizer: the contents of a checkpoint's `state.json`.

Invariant: it describes what was consumed, never what was taken from the loader, and is JSON-able.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.checkpoints.history import newest_part_of
from storage.errors import IncompatibleRunError
from storage.objects.history import HistoryPart, SealedPart, seal_history
from storage.runs.metric_values import NotFinite, find_not_finite, metric_value
from storage.runs.run_state import ValidationFigures
from training.metrics.curve import LossCurve

STATE_FORMAT = 1
# Points of the loss curve, norms of gradients and validations that a checkpoint has in itself; up to 60 bytes each.
MAX_RECENT = 1_000


@dataclass
class TrainingState:
    """Step, loss curve, validations and the best of them.

    Of the history what is recent; `earlier` is the newest part of the history that has what was before.
    """

    curve: LossCurve
    step: int = 0
    validated_step: int | None = None
    validations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    num_without_better: int = 0  # validations since the best one
    earlier: HistoryPart | None = None

    def record_validation(self, metrics: Mapping[str, float], headline: str) -> dict[str, NotFinite]:
        """Note the metrics of the current step, and whether they are the best so far; those that are not finite.

        What is not finite is never the best. Before the first finite value the best has neither value nor step. Where
        the metric is not defined, for the samples that were looked at, nothing is known of the model: that is neither a
        better validation nor one that was no better.
        """
        kept = {name: metric_value(number) for name, number in metrics.items()}
        self.validations.append({"step": self.step, "metrics": kept})
        self.validated_step = self.step
        best = self.best or {"metric": headline, "value": None, "step": None}
        value = kept.get(headline)
        if value is None:
            self.best = best
            return find_not_finite(kept)
        is_better = not isinstance(value, str) and (best["value"] is None or value > best["value"])
        self.best = best | {"value": value, "step": self.step} if is_better else best
        self.num_without_better = 0 if is_better else self.num_without_better + 1
        return find_not_finite(kept)

    def validation_figures(self) -> ValidationFigures:
        """What the last validation showed; there must be one."""
        assert self.best is not None
        last = self.validations[-1]
        return ValidationFigures(
            metric=self.best["metric"],
            value=last["metrics"].get(self.best["metric"]),
            step=last["step"],
            num_without_better=self.num_without_better,
            best_value=self.best["value"],
            best_step=self.best["step"],
        )

    @property
    def best_step(self) -> int | None:
        """The step of the best validation so far, if there is one."""
        return None if self.best is None else self.best["step"]

    @property
    def has_new_best(self) -> bool:
        """Whether the validation of this very step is the best so far."""
        return self.best_step == self.validated_step == self.step

    def is_out_of_patience(self, patience: int | None) -> bool:
        """Whether the validation of this step ends the run: so many in a row, this one included, were no better."""
        return patience is not None and self.validated_step == self.step and self.num_without_better >= patience

    def seal_history(self, run: str) -> SealedPart | None:
        """The part of a long history that is put into the store before the next `state_dict`, which names it.

        The last point and the last validation stay here, where they are looked at.
        """
        losses, norms, validations = self.curve.points, self.curve.norms, self.validations
        if len(losses) + len(norms) + len(validations) < MAX_RECENT:
            return None
        entries: dict[str, list[Any]] = {
            "loss": losses[:-1],
            "gradient_norm": norms[:-1],
            "validation": validations[:-1],
        }
        sealed = seal_history(run, "curve", entries, self.earlier)
        self.curve.points, self.curve.norms, self.validations = losses[-1:], norms[-1:], validations[-1:]
        self.earlier = sealed.part
        return sealed

    def state_dict(self) -> dict[str, Any]:
        curve = self.curve.state_dict()
        history = {"loss": curve["points"], "gradient_norm": curve["norms"], "validation": self.validations}
        earlier = {"earlier": self.earlier.model_dump(mode="json")} if self.earlier else {}
        return {
            "format": STATE_FORMAT,
            "step": self.step,
            "validated_step": self.validated_step,
            "best": self.best,
            "validations_without_better": self.num_without_better,
            "history": history | earlier,
            "first_loss": curve["first_loss"],
            "pending_losses": curve["pending"],
            "recent_losses": curve["recent"],
            "gradient_values_rounded_away": self.curve.num_rounded_away,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["format"] != STATE_FORMAT:
            raise IncompatibleRunError(
                f"The checkpoint's state has format {state['format']}, this version of Holdfast reads format "
                f"{STATE_FORMAT}. Continue the run with the version that wrote it."
            )
        self.step = state["step"]
        self.validated_step = state["validated_step"]
        self.best = state["best"]
        self.validations = state["history"]["validation"]
        self.num_without_better = state["validations_without_better"]
        self.earlier = newest_part_of(state)
        self.curve.load_state_dict(
            {
                "points": state["history"]["loss"],
                "norms": state["history"]["gradient_norm"],
                "first_loss": state["first_loss"],
                "pending": state["pending_losses"],
                "recent": state["recent_losses"],
                "rounded_away": state["gradient_values_rounded_away"],
            }
        )
