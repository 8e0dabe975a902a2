"""Whether a run may go on with the configuration at hand.

Invariant: what decides the bits of the model is fixed when the run begins. What may change is listed here; everything
else is refused with a field-by-field difference.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from storage.errors import IncompatibleRunError
from storage.objects.addresses import RUNS_FOLDER
from storage.runs.run_state import RunState
from tasks.config.by_rows import keep_length
from tasks.config.out_of_memory import keep_adapted
from tasks.config.overrides import keep_overrides
from tasks.configuration.run import RunConfig
from training.configuration import PinnedCode
from training.model_configuration import EncoderConfig, ModuleConfig
from training.own_code import Reference, hash_files

RECOMPUTING = "train.activation_checkpointing"
# Sections and fields that may change between segments: where things are, how often, how long, how many ranks.
CHANGEABLE = (
    "owner",
    "store",
    "scratch",
    "data.source",  # the content decides, by the data set's digest
    "data.split.validation_source",  # so it does for these
    "data.split.test_source",
    "data.memory_limit",
    "data.expectations",  # they are of data that are still to be prepared
    "data.tokenizer.path",  # the content decides
    "model.name",  # what it was when the run began is pinned
    "model.factory",  # so is the content of its files
    "train.optimizer_factory",
    "prepare",
    "train.steps",
    "train.epochs",
    "train.patience",
    "train.device",  # as another kind of GPU: the checkpoint names it, and a change is reported
    "train.ranks",
    "train.share_gpus",
    RECOMPUTING,
    "validation",
    "checkpoint",
    "divergence",  # what was rolled back stands in the manifest and stays; this is about what is to come
    "segment",
    "notices",
    "cluster",
    "tracking",
    "report",
    "retry",
)
# And these of a run of which no step was made.
PINNED_CODE = ("model.pinned.", "train.optimizer_pinned.")
# Whose fields are files of the user's, each with its SHA-256.
PINNED_FILES = tuple(f"{field}files." for field in PINNED_CODE)
# Of these sections what may not: the validations before were judged by it.
FIXED = {"validation.metric_for_best_model"}
# What a new run has where its configuration sets nothing, and what is kept from then on: by section and field.
NEW_RUN: dict[str, dict[str, Any]] = {
    "data": {"id": None, "class_names": None},
    # Where steps are given; else `by_rows.py` has set them.
    "train": {"steps": None, "patience": None},
    "validation": {"every_steps": None},
}


def as_begun(config: RunConfig, state: RunState | None) -> RunConfig:
    """The configuration in which what its file leaves open of `NEW_RUN` is what the run was begun with.

    Without a state the run is a new one.
    """
    begun = NEW_RUN if state is None else read_stored(state.config)
    config = config if state is None else keep_length(config, state)
    sections = {}
    for section, fields in NEW_RUN.items():
        found = getattr(config, section)
        left_open = {name: begun[section].get(name) for name in fields if getattr(found, name) is None}
        sections[section] = found.model_copy(update=left_open)
    if sections["train"].patience == 0:  # in words of the file; the manifest has none
        sections["train"] = sections["train"].model_copy(update={"patience": None})
    config = _keep_pinned(config.model_copy(update=sections), state)
    return keep_adapted(keep_overrides(config, state), state)


def _keep_pinned(config: RunConfig, state: RunState | None) -> RunConfig:
    """With what the run keeps of a model or code of the user's, as it was when the run began.

    Of code as it is now, while no step was made with it: it may be that very code which had to be mended.
    """
    pins_model = not isinstance(config.model, EncoderConfig)
    if state is None or not (pins_model or config.train.optimizer_factory):
        return config
    begun = RunConfig.model_validate(read_stored(state.config))
    if _has_no_step(state):
        begun = _with_code_as_it_is(config, begun)
    if config.train.optimizer_factory and begun.train.optimizer_factory:
        pinned = {"optimizer_pinned": begun.train.optimizer_pinned}
        config = config.model_copy(update={"train": config.train.model_copy(update=pinned)})
    if isinstance(config.model, EncoderConfig) or isinstance(begun.model, EncoderConfig):
        return config
    if config.model.kind != begun.model.kind:
        return config
    model = config.model.model_copy(update={"pinned": begun.model.pinned})
    data = config.data.model_copy(update={"tokenizer": begun.data.tokenizer})
    return config.model_copy(update={"model": model, "data": data})


def _has_no_step(state: RunState) -> bool:
    """Whether no step of the run was ever made."""
    points = (state.promoted, state.lease, *state.kept, *state.quarantined, *state.rejected, *state.rollbacks)
    return not any(points) and all(segment.last_step == 0 for segment in state.segments)


def _with_code_as_it_is(config: RunConfig, begun: RunConfig) -> RunConfig:
    """What the run was begun with, but for the content of the code that `config` names."""
    model, train = begun.model, begun.train
    if isinstance(config.model, ModuleConfig) and isinstance(model, ModuleConfig):
        model = model.model_copy(update={"pinned": code_as_it_is(config.model.reference)})
    if config.train.optimizer_reference is not None:
        train = train.model_copy(update={"optimizer_pinned": code_as_it_is(config.train.optimizer_reference)})
    return begun.model_copy(update={"model": model, "train": train})


def code_as_it_is(reference: Reference) -> PinnedCode:
    """The code as it is. Raises `ConfigurationError` where there is none."""
    return PinnedCode(function=reference.function, files=hash_files(reference))


def require_compatible(state: RunState, config: RunConfig) -> None:
    """Raise `IncompatibleRunError` naming every field whose change would make it another model."""
    changes = describe_changes(read_stored(state.config), config.model_dump(mode="json"))
    may_change = PINNED_CODE if _has_no_step(state) else ()
    refused = {
        field: text
        for field, text in changes.items()
        if not _is_changeable(field, config) and not field.startswith(may_change)
    }
    if refused:
        raise IncompatibleRunError(
            f"Run {state.run!r} was started with another configuration:\n"
            + "\n".join(f"  {text}" for text in refused.values())
            + "\nRestore these to go on with the run, or give another run name to start a new one."
            + _describe_start(state, config, refused)
        )
    if state.promoted is not None and config.train.num_steps < state.promoted.step:
        raise IncompatibleRunError(
            f"Run {state.run!r} has already made {state.promoted.step} steps; train.steps = {config.train.steps} is "
            "below that. Give more steps, or another run name to start a new run."
        )


def _describe_start(state: RunState, config: RunConfig, changed: Iterable[str]) -> str:
    """How a new run begins with the weights of this one, where it can."""
    has_sizes = isinstance(config.model, EncoderConfig) and not any(field.startswith("model.") for field in changed)
    if state.promoted is None or not has_sizes:
        return ""
    origin = f"{config.store}/{RUNS_FOLDER}/{state.run}"
    return f" With the weights of this one it begins by --set run=NEW --set train.start_from={origin}"


def read_stored(values: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration with the defaults of what it leaves out. Raises `IncompatibleRunError`."""
    try:
        return RunConfig.model_validate(values).model_dump(mode="json")
    except ValidationError as error:
        raise IncompatibleRunError(
            f"The run's stored configuration is not one that this version understands: {error.errors()[0]['loc']}. "
            "Continue it with the version of Holdfast that it was started with."
        ) from error


def describe_changes(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted field -> 'field: was X, is Y now', for every microbatch that differs."""
    changes: dict[str, str] = {}
    for name in sorted(before.keys() | after.keys()):
        field, old, new = f"{prefix}{name}", before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes |= describe_changes(old, new, f"{field}.")
        elif old != new:
            changes[field] = f"{field}: {_told(prefix, name, old, new)}"
    return changes


def _told(prefix: str, name: str, old: Any, new: Any) -> str:
    if not prefix.endswith(PINNED_FILES):
        return f"was {_shown(old)}, is {_shown(new)} now"
    if old is None or new is None:
        return f"the file {name} {'is new' if old is None else 'was removed'}"
    return f"the file {name} was changed, its SHA-256 was {old[:16]}..., is {new[:16]}... now"


def _is_changeable(field: str, config: RunConfig) -> bool:
    if field == RECOMPUTING and config.train.compile:
        return False  # the compiler may give what is computed again other bits
    if field in FIXED:
        return False
    return any(field == entry or field.startswith(f"{entry}.") for entry in CHANGEABLE)


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
