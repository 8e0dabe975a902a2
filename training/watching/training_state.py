"""How far a run is, beside weights and optimizer: what a checkpoint's `state.json` says.

Invariant: it describes what was consumed, never what was read ahead, and is JSON-able.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.datasets import Target
from storage.errors import IncompatibleRunError
from storage.runs.metric_values import NotFinite, find_not_finite, metric_value
from training.watching.curve import LossCurve

STATE_FORMAT = 3


def headline_metric(target: Target) -> str:
    """The one number a run is judged by; higher is better."""
    return "auc" if target.kind == "binary" else "macro_f1"


@dataclass
class TrainingState:
    """Step, loss curve, validations and the best of them."""

    curve: LossCurve
    step: int = 0
    validated_step: int | None = None
    validations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None

    def record_validation(self, metrics: Mapping[str, float], headline: str) -> dict[str, NotFinite]:
        """Note the metrics of the current step, and whether they are the best so far; those that are not finite.

        What is not finite is never the best. Before the first finite value the best has neither value nor step.
        """
        kept = {name: metric_value(number) for name, number in metrics.items()}
        self.validations.append({"step": self.step, "metrics": kept})
        self.validated_step = self.step
        best = self.best or {"metric": headline, "value": None, "step": None}
        value = kept[headline]
        is_better = not isinstance(value, str) and (best["value"] is None or value > best["value"])
        self.best = best | {"value": value, "step": self.step} if is_better else best
        return find_not_finite(kept)

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT,
            "step": self.step,
            "validated_step": self.validated_step,
            "best": self.best,
            "history": {"loss": self.curve.state_dict()["points"], "validation": self.validations},
            "pending_losses": self.curve.state_dict()["pending"],
            "recent_losses": self.curve.state_dict()["recent"],
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
                "recent": state["recent_losses"],
                "rounded_away": state["gradient_values_rounded_away"],
            }
        )
