"""The outcome record of a segment.

Invariant: a process that still can writes an outcome: the first rank when training ends in good order, any rank that
fails. Only a segment whose ranks were all killed has none.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from storage.errors import ConfigurationError, DeviceMissingError, IncompatibleRunError, UnequalRanksError
from storage.objects.store import Store
from storage.runs.holders import find_process
from storage.runs.kept_outcomes import Launch, keep_outcome
from storage.runs.run_state import Divergence, Outcome
from storage.runs.segments import CONNECTION_BROKE, OutcomeRecord, write_outcome
from training.checkpointing.saves import Checkpointer
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.models.out_of_memory import MicrobatchOutOfMemoryError
from training.optim.divergence import DivergedError
from training.spec import SegmentSpec
from training.stopping import StopReason, supervisor_pid
from training.views.account import all_views, describe_views
from training.views.folder import ViewFolder
from training.views.lost_peer import is_lost_peer
from training.world import World

MAX_CAUSE_CHARACTERS = 2000


class Ending:
    """Writes how the segment ended."""

    def __init__(
        self,
        spec: SegmentSpec,
        world: World,
        store: Store,
        reporter: Reporter,
        state: TrainingState,
        age_seconds: float,
    ) -> None:
        self.first_step = 0
        self.checkpointer: Checkpointer | None = None
        self._spec = spec
        self._world = world
        self._store = store
        self._reporter = reporter
        self._state = state
        self._began = time.monotonic() - age_seconds
        self._said: OutcomeRecord | None = None
        self._launch = _find_launch(spec, store)

    def write(
        self,
        outcome: Outcome,
        cause: str,
        is_final: bool = False,
        divergence: Divergence | None = None,
        is_abandoned: bool = False,
        recomputing_helps: bool = False,
    ) -> None:
        """Put the outcome record, unless another rank has spoken already; kept in scratch, too, if the store is away.

        What was said once stays: that the store did not take it is not how the segment ended. Of a rank that is not
        among those that train it is not either. Raises `StoreError`.
        """
        if not self._world.is_member:
            return
        folder = ViewFolder(self._spec.scratch_folder)
        views = describe_views(all_views(folder), folder.find_out())
        self._said = self._said or OutcomeRecord(
            outcome=outcome,
            cause=cause[:MAX_CAUSE_CHARACTERS],
            is_final=is_final,
            first_step=self.first_step,
            last_step=self._state.step,
            world_size=self._world.full_size,
            seconds=round(time.monotonic() - self._began, 3),
            phases=self._reporter.close(),
            saves=self.checkpointer.records.figures if self.checkpointer else None,
            throughput=self._reporter.throughput(),
            divergence=divergence,
            is_abandoned=is_abandoned,
            recomputing_helps=recomputing_helps,
            views=views.records,
            view_totals=views.totals,
            patience=self._spec.train.patience if outcome == "completed" and self._is_early() else None,
        )
        if self._launch is not None:
            with suppress(OSError):  # on a full disk the store alone has it
                keep_outcome(self._spec.scratch_folder, self._world.slot, self._launch, self._said)
        write_outcome(self._store, self._spec.run, self._spec.fence, self._said)

    def _is_early(self) -> bool:
        return self._state.step < self._spec.train.num_steps

    @contextmanager
    def failures_written(self) -> Iterator[None]:
        """Write the outcome of a block that raises, and let it raise."""
        try:
            yield
        except DivergedError as error:
            self.write("diverged", str(error), divergence=error.evidence)
            raise
        except (ConfigurationError, IncompatibleRunError) as error:
            self.write("failed", str(error), is_final=True)
            raise
        except DeviceMissingError as error:
            # A run that was begun had these devices: another node, or this one when it is mended, may have them.
            self.write("failed", f"{self._world.label}: {error}", is_final=self._spec.resume is None)
            raise
        except MicrobatchOutOfMemoryError as error:
            self.write("failed", f"{self._world.label}: {error}", recomputing_helps=error.recomputing_helps)
            raise
        except UnequalRanksError as error:
            self.write("failed", str(error))  # which ranks, it says itself: all raise it
            raise
        except Exception as error:
            self.write("failed", f"{self._world.label}: {describe_failure(error)}")
            raise


def _find_launch(spec: SegmentSpec, store: Store) -> Launch | None:
    """None if the process that launched the ranks has ended: nobody could tell theirs from another launch's."""
    supervisor = find_process(supervisor_pid())
    if supervisor is None:
        return None
    return Launch(store=store.address, run=spec.run, fence=spec.fence, supervisor=supervisor)


def describe_failure(error: Exception) -> str:
    """A cause in words: Gloo's own about a broken connection name no cause, and end in a joke."""
    text = f"{type(error).__name__}: {error}"
    if not is_lost_peer(error):
        return text
    return (
        f"{CONNECTION_BROKE}: its process ended, its machine vanished, or the network between them "
        f"failed. What another rank reports of itself is in the log. ({text.partition('. This is')[0]})"
    )


def describe_end(reason: StopReason, spec: SegmentSpec, state: TrainingState) -> tuple[Outcome, str]:
    """Outcome and cause of a segment that ended in good order."""
    if reason is StopReason.NONE:
        return "completed", "" if state.step == spec.train.num_steps else _describe_patience(state)
    if reason is StopReason.BUDGET:
        return "budget", f"time budget of {spec.budget_seconds:g} s"
    if reason is StopReason.ABANDONED:
        return "preempted", "the process that supervised the segment was killed; the ranks saved and left"
    return "preempted", "asked to stop by a signal"


def _describe_patience(state: TrainingState) -> str:
    best, count = state.best or {}, state.num_without_better
    if best.get("value") is None:
        return f"train.patience = {count}: no validation gave a finite value"
    return (
        f"train.patience = {count}: no validation since step {best['step']:,} gave a better {best['metric']} than "
        f"{best['value']:.4f}"
    )
