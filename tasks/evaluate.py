"""The final evaluation: the promoted checkpoint on the test split, by the same ranks that train.

Invariant: the metrics in the manifest belong to the checkpoint that is promoted when they are written.
"""

import json
import shutil
import uuid
from typing import Any

from storage.checkpoints.checkpoints import evaluation_key
from storage.errors import ObjectMissingError, SegmentFailedError
from storage.runs.run_state import RunState
from storage.runs.transitions import record_metrics
from tasks.configuration import RunConfig
from tasks.places import RunPlaces, open_places
from tasks.running.ranks import POLL_SECONDS, Ranks
from tasks.running.signals import deferred_stop_signals
from tasks.segment import make_specification
from tasks.step import step
from tasks.telling.announce import announce
from tasks.telling.terminal import console

LOG_LINES_SHOWN = 15


@step("evaluate")
def evaluate_run(config: RunConfig) -> tuple[dict[str, float], str]:
    """Score the promoted checkpoint on the test split, unless that was done already; its metrics."""
    places = open_places(config)
    state = places.manifest.load_head().state
    assert state.promoted is not None
    evaluation = find_evaluation(places, state)
    if evaluation is None:
        announce("Evaluating on the test split.")
        _evaluate(config, places, state)
        evaluation = find_evaluation(places, state)
        assert evaluation is not None
    metrics: dict[str, float] = evaluation["metrics"]
    if state.metrics_step != state.promoted.step:
        places.manifest.commit("evaluated", record_metrics(metrics, state.promoted.step))
    return metrics, "On the test split: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()) + "."


def find_evaluation(places: RunPlaces, state: RunState) -> dict[str, Any] | None:
    """The test results of the promoted checkpoint, or None. Not of another checkpoint of the same step."""
    if state.promoted is None:
        return None
    try:
        result: dict[str, Any] = json.loads(places.store.read(evaluation_key(state.promoted.path)))
    except ObjectMissingError:
        return None
    return result


def _evaluate(config: RunConfig, places: RunPlaces, state: RunState) -> None:
    folder = places.scratch / f"evaluation-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    log, path = folder / "ranks.log", folder / "evaluation.json"
    path.write_text(make_specification("evaluate", config, places, state, fence=0).model_dump_json(), encoding="utf-8")
    ranks = Ranks(path, log, config.train, config.segment.grace_seconds)
    try:
        with deferred_stop_signals(ranks.stop), ranks, console.status("evaluating on the test split"):
            while ranks.is_running(POLL_SECONDS):
                pass
        if find_evaluation(places, state) is None:
            last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
            raise SegmentFailedError(f"The evaluation ended without a result. The last lines of its log:\n{last_lines}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
