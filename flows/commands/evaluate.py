"""`holdfast evaluate`: one of a run's checkpoints, evaluated by ranks of this machine.

Invariant: asked to end, the command ends its ranks and leaves no file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.arguments import (
    AsJson,
    Assignments,
    CheckpointChoice,
    FactoryOption,
    RunArgument,
    find_factory,
    find_run,
)
from flows.commands.results import ending_in_order, print_result
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import tasks.config.paths as paths
    import tasks.console.messages as messages
    import tasks.models.evaluation as evaluating
    import tasks.models.evaluation_words as evaluation_words

if TYPE_CHECKING:
    from storage.objects.store import Store


class Split(StrEnum):
    """A split of the run's data set."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


def evaluate(
    run: RunArgument,
    assignments: Assignments = None,
    checkpoint: CheckpointChoice = "best",
    split: Annotated[Split | None, typer.Option(help="Default: test.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="FILES",
            help="Instead of a split a table with labels: a file, a folder or a glob, here or in a bucket. It has the "
            "columns of the run's data, and is prepared with its tokenizer, statistics, vocabularies and classes.",
        ),
    ] = None,
    factory: FactoryOption = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint that the run keeps.

    Metrics and the scores of each class: on the test split the numbers of the run's own evaluation. Safe while the run
    is in training: no lease is needed, the manifest is not written, and the checkpoint stays until it was read. Ranks
    of this machine do it, one unless --set train.ranks=2 says otherwise, and --set train.device=cpu leaves GPUs
    alone. On the test split a temperature is fitted too, on validation; an export of the checkpoint has both.
    """
    store, name = find_run(run, assignments or [])
    own = find_factory(run, assignments or [], factory)
    changes = [*(assignments or []), *([] if own is None else [f"model.factory={own}"])]
    found = evaluate_here(store, name, checkpoint, split.value if split else None, source, changes)
    print_result(found, as_json, evaluation_words.render_evaluation)


def evaluate_here(
    store: Store, run: str, choice: str, split: str | None, source: str | None, assignments: Sequence[str]
) -> dict[str, Any]:
    """As `evaluate_checkpoint`; a relative `source` is taken from the working directory."""
    messages.show_messages()
    data = require_one(split, source), source_here(source)
    with ending_in_order():
        return evaluating.evaluate_checkpoint(store, run, choice, *data, assignments)


def require_one(split: str | None, source: str | None) -> str:
    """The split, test by default. Raises `ConfigurationError` if there is a source too."""
    if split is not None and source is not None:
        raise ConfigurationError(
            f"--split {split} is a part of the run's own data, and --source {source} another table: give one of them."
        )
    return split or "test"


def source_here(source: str | None) -> str | None:
    """A source with the working directory before it, if it is relative."""
    return None if source is None else paths.absolute_path(source, Path.cwd())
