"""The comparison that a drill ends with: a run that was killed beside one that was not.

Invariant: pure. `holds` is decided here and nowhere else: with exact sums by samples, weights, validation losses and
metrics, all bit for bit; with fast sums, which promise no more, by the samples alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.checkpoints.tensor_files import WeightsDistance
from storage.runs.metric_values import MetricValue
from tasks.drills.ledger_difference import LedgerDifference
from tasks.drills.records import TrainedRun


@dataclass(frozen=True)
class Kill:
    """One SIGKILL for everything that belonged to a start. `step` is the last one that the ranks had reported."""

    aimed_at: int
    step: int
    world_size: int
    fence: int


@dataclass(frozen=True)
class Comparison:
    """Two finished runs of one configuration and data set."""

    exact: bool
    straight: TrainedRun
    interrupted: TrainedRun
    ledgers: LedgerDifference
    distance: WeightsDistance

    @property
    def samples_equal(self) -> bool:
        """Whether both runs saw exactly the samples they should, the same ones at every step."""
        audits_pass = bool(self.straight.audit["ok"] and self.interrupted.audit["ok"])
        same_data = self.straight.state.dataset_digest == self.interrupted.state.dataset_digest
        return audits_pass and same_data and self.ledgers.is_none

    @property
    def weights_equal(self) -> bool:
        return self.straight.weights_sha256 == self.interrupted.weights_sha256

    @property
    def validations_equal(self) -> bool:
        """Whether both validated at the same steps with the same losses."""
        return self.straight.validation_losses == self.interrupted.validation_losses

    @property
    def metrics_equal(self) -> bool:
        return self.straight.metrics == self.interrupted.metrics

    @property
    def holds(self) -> bool:
        """The verdict."""
        same_model = self.weights_equal and self.validations_equal and self.metrics_equal
        return self.samples_equal and (same_model or not self.exact)

    @property
    def validation_loss_max_difference(self) -> float | None:
        """Over the validations that both have; None if there is none, or if only one of two values is finite."""
        return _largest_difference(self.straight.validation_losses, self.interrupted.validation_losses)

    @property
    def metrics_max_difference(self) -> float | None:
        """Over the metrics that both have."""
        return _largest_difference(self.straight.metrics, self.interrupted.metrics)


def find_hits(kills: Sequence[Kill], interrupted: TrainedRun) -> list[Kill]:
    """The kills that ended a segment: it has no recorded outcome."""
    lost = {segment.fence for segment in interrupted.segments if segment.outcome == "lost"}
    return [kill for kill in kills if kill.fence in lost]


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """The comparison, JSON-able."""
    straight, interrupted = comparison.straight, comparison.interrupted
    return {
        "samples_equal": comparison.samples_equal,
        "samples_problem": comparison.ledgers.problem,
        "samples_different_steps": comparison.ledgers.num_steps,
        "samples_first_different_step": comparison.ledgers.first_step,
        "weights_equal": comparison.weights_equal,
        "weights_sha256": [straight.weights_sha256, interrupted.weights_sha256],
        "validations": len(straight.validation_losses),
        "validations_equal": comparison.validations_equal,
        "validation_loss_max_difference": comparison.validation_loss_max_difference,
        "metrics_equal": comparison.metrics_equal,
        "metrics": {
            name: [straight.metrics.get(name), interrupted.metrics.get(name)]
            for name in sorted(straight.metrics.keys() | interrupted.metrics.keys())
        },
        "distance": asdict(comparison.distance),
    }


def describe_run(run: TrainedRun) -> dict[str, Any]:
    """One of the two runs, JSON-able."""
    return {
        "run": run.state.run,
        "address": run.address,
        "step": run.state.promoted.step if run.state.promoted else 0,
        "weights_sha256": run.weights_sha256,
        "metrics": dict(run.metrics),
        "dataset_digest": run.state.dataset_digest,
        "segments": [
            {"fence": s.fence, "outcome": s.outcome, "first_step": s.first_step, "last_step": s.last_step,
             "world_size": s.world_size, "steps_lost": s.steps_lost, "steps_lost_is_least": s.steps_lost_is_least}
            for s in run.segments
        ],
        "changes": [record.model_dump(mode="json") for record in run.state.changes],
        "steps_lost_total": run.steps_lost,
        "steps_lost_is_least": run.state.steps_lost_is_least,
        "audit_ok": bool(run.audit["ok"]),
        "samples": run.audit["samples"],
    }  # fmt: skip


def difference(ours: MetricValue, theirs: MetricValue) -> float | None:
    """`theirs` minus `ours`; None if they are not the same and one is not finite."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return 0.0 if ours == theirs else None
    return theirs - ours


def _largest_difference(ours: Mapping[Any, MetricValue], theirs: Mapping[Any, MetricValue]) -> float | None:
    found = [difference(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()]
    known = [abs(apart) for apart in found if apart is not None]
    return max(known, default=None) if len(known) == len(found) else None
