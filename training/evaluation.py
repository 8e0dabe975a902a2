"""The final evaluation of a checkpoint on the test split.

Invariant: the result belongs to one checkpoint and is a function of it and of the test split alone.
"""

from storage.checkpoints.checkpoints import hash_weights
from storage.checkpoints.results import evaluation_key, write_result
from storage.datasets import load_dataset
from storage.runs.metric_values import metric_value
from training.agreement import Agreement
from training.building import make_model, make_objective, make_validator
from training.model.precision import choose_precision
from training.process_group import join_process_group
from training.saving.restoring import load_weights
from training.specification import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.watching.metrics import describe, score
from training.watching.reporter import Reporter
from training.world import World

EVALUATION_FORMAT = 1


def evaluate(spec: SegmentSpec, world: World, flag: StopFlag) -> None:
    """Score the checkpoint `spec.resume` on the test split and put the result beside it in the store."""
    if spec.resume is None:
        raise ValueError("an evaluation needs a checkpoint")
    store = spec.open_store()
    reporter = Reporter(spec.progress_file, world, spec.train.batch_size)
    reporter.step = spec.resume.step
    precision = choose_precision(spec.train, world)
    join_process_group(spec.train, precision, world)
    dataset = load_dataset(store, spec.dataset_digest, spec.dataset_sha256)
    model = make_model(spec, dataset, precision)
    found = load_weights(store, spec.resume, model)
    everything = spec.validation.model_copy(update={"max_samples": None})
    validator = make_validator(spec, world, store, dataset, precision, "test", everything)
    agreement = Agreement(world, flag)

    def goes_on() -> bool:
        reporter.alive()
        return agreement.decide().stop is StopReason.NONE

    with reporter.phase("evaluate"):
        predictions = validator.predict(model, goes_on)
    if predictions is not None and world.is_first:
        metrics = score(*predictions, dataset.target, make_objective(spec, dataset, precision).cpu())
        result = {
            "format": EVALUATION_FORMAT,
            "step": found.index.step,
            "weights_sha256": hash_weights(store, found),
            "split": "test",
            "num_samples": validator.num_samples,
            "kind": dataset.target.kind,
            "classes": dataset.target.classes,
            "metrics": {name: metric_value(number) for name, number in metrics.items()},
            **describe(*predictions, dataset.target),
        }
        write_result(store, evaluation_key(spec.resume.path), result)
