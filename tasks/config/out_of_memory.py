"""`segment.out_of_memory = "adapt"`: a run that recomputes its blocks since a device had too little memory for them.

Invariant: only what changes no bit of the model is changed, and it stands in the manifest's configuration before ranks
are started with it. From then on it stays, whatever the file sets: else each start would run out of memory once.
"""

from storage.runs.run_state import RunState
from storage.runs.segments import find_outcome
from tasks.configuration.run import RunConfig
from tasks.run_paths import RunPaths


def keep_adapted(config: RunConfig, state: RunState | None) -> RunConfig:
    """The configuration with what an earlier segment had to change."""
    stored = state.config.get("train") if state is not None else None
    has_adapted = isinstance(stored, dict) and bool(stored.get("activation_checkpointing"))
    return _recomputing(config) if has_adapted and _may_adapt(config) else config


def adapt(config: RunConfig, run_paths: RunPaths, state: RunState) -> RunConfig:
    """The configuration for the next segment, given how the last one ended."""
    if not state.segments or not _may_adapt(config):
        return config
    outcome = find_outcome(run_paths.store, config.run, state.segments[-1].fence)
    return _recomputing(config) if outcome is not None and outcome.recomputing_helps else config


def _may_adapt(config: RunConfig) -> bool:
    return config.segment.out_of_memory == "adapt" and not config.train.compile


def _recomputing(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"activation_checkpointing": True})})
