"""In place of an agent and its one rank: what a rank writes for the process that supervises it, and no training.

Invariant: reports, status and checkpoints are written by the code that ranks write them with, as often as ranks do; a
checkpoint has a few bytes of weights and a loss curve of full length, so it is promoted, and drawn, as any other.
Asked to leave, it ends at once and records no outcome.
"""

import math
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.logs import LOG_NAME
from storage.runs.run_state import ValidationFigures
from tests.helpers.finished_runs import history_of
from tests.helpers.runs import make_checkpoint
from training.agents.locks import AGENT_LOCK, hold_lock, rank_lock
from training.agents.order import AgentOrder
from training.agents.talk import Answer, Talk
from training.metrics.reporter import Reporter
from training.rank_status import Phase
from training.spec import SegmentSpec

IDLE_SECONDS = 600.0  # an order, and the end of the supervisor, are heard at once
STEP_SECONDS = 0.5  # a rank reports no more often, however short its steps are
VALIDATION_STEPS = 600
TOKENS_A_STEP = 4_000


def main() -> None:
    """Take the orders of the supervisor, as `training.agents.agent` does, until that is gone."""
    supervisor = Talk.passed_on(int(sys.argv[1]))
    with suppress(EOFError):
        while True:
            order = supervisor.hear(IDLE_SECONDS)
            if order is not None:
                _report(Path(order), supervisor)
                supervisor.say(Answer.ENDED)


def _report(path: Path, supervisor: Talk) -> None:
    """Report step after step, until the supervisor is gone."""
    locks = [hold_lock(path.parent / AGENT_LOCK), hold_lock(rank_lock(path.parent, 0))]
    supervisor.say(Answer.TAKEN)
    order = AgentOrder.model_validate_json(path.read_bytes())
    spec = SegmentSpec.model_validate_json(order.specification.read_bytes())
    world = order.world_of(0)
    reporter = Reporter(spec.progress_file, world, spec.train.batch_size, world.age_seconds)
    world.rank_status.begin(order.folder, 0)
    ranks = _Steps(spec, reporter)
    with reporter.phase(Phase.COMPUTING):
        while not supervisor.is_over():
            time.sleep(STEP_SECONDS)  # in place of the computing
            ranks.step()
    for lock in locks:
        lock.close()


class _Steps:
    """The steps of a segment, with validations and saves."""

    def __init__(self, spec: SegmentSpec, reporter: Reporter) -> None:
        self._spec, self._reporter, self._store = spec, reporter, spec.open_store()
        self._step = spec.resume.step if spec.resume is not None else 0
        self._saved_step, self._saved_at = self._step, time.monotonic()

    def step(self) -> None:
        self._step += 1
        loss = 0.3 + 2 * math.exp(-self._step / 500)
        self._reporter.stepped(self._step, loss, TOKENS_A_STEP, self._spec.train.microbatches)
        if self._step % VALIDATION_STEPS == 0:
            self._validate()
        if self._is_save_due():
            self._save()

    def _validate(self) -> None:
        # Never the best so far, at which a checkpoint would be saved whatever the cadence.
        figures = ValidationFigures(metric="macro_f1", value=0.8, step=self._step, best_value=0.81, best_step=10)
        with self._reporter.phase(Phase.VALIDATING):
            self._reporter.validated(figures)
        with (self._spec.scratch_folder / LOG_NAME).open("a") as log:
            log.write(f"{figures.describe()}\n")

    def _is_save_due(self) -> bool:
        cadence = self._spec.checkpoint
        is_long_ago = time.monotonic() - self._saved_at >= cadence.every_seconds
        return is_long_ago or self._step - self._saved_step >= cadence.every_steps

    def _save(self) -> None:
        spec, step = self._spec, self._step
        self._saved_step, self._saved_at = step, time.monotonic()
        found = make_checkpoint(
            self._store, spec.scratch_folder / "saved", step, spec.fence, run=spec.run, state=_state_at(step)
        )
        self._reporter.checkpointed(found.path, step)


def _state_at(step: int) -> dict[str, Any]:
    """What is drawn: of a checkpoint of this step the loss curve and the validations."""
    history = history_of(step)
    norms = [[at, 1.0] for at, *_ in history["loss"]]
    return {"history": history | {"gradient_norm": norms}}
