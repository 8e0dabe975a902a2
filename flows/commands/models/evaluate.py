"""The command `evaluate`: one of a run's checkpoints, evaluated by ranks of this machine.

Invariant: asked to end, the command ends its ranks and leaves no file of its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.commands.ending import ending_in_order
from storage.errors import ConfigurationError
from storage.objects.store import Store
from tasks.evaluations.evaluation import evaluate_checkpoint
from tasks.settings.paths import absolute_path
from tasks.telling.messages import show_messages


def evaluate_here(
    store: Store, run: str, choice: str, split: str | None, source: str | None, assignments: Sequence[str]
) -> dict[str, Any]:
    """As `evaluate_checkpoint`; a relative `source` is taken from the working directory."""
    show_messages()
    data = require_one(split, source), source_here(source)
    with ending_in_order():
        return evaluate_checkpoint(store, run, choice, *data, assignments)


def require_one(split: str | None, source: str | None) -> str:
    """The split, test by default. Raises `ConfigurationError` if there is a source too."""
    if split is not None and source is not None:
        raise ConfigurationError(
            f"--split {split} is a part of the run's own data, and --source {source} another table: give one of them."
        )
    return split or "test"


def source_here(source: str | None) -> str | None:
    """A source with the working directory before it, if it is relative."""
    return None if source is None else absolute_path(source, Path.cwd())
