"""What is typed for `holdfast evaluate`."""

from enum import StrEnum
from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, CheckpointChoice, RunArgument, find_run, print_result


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
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint that the run keeps.

    Metrics and the scores of each class: on the test split the numbers of the run's own evaluation. Safe while the run
    is in training: no lease is needed, the manifest is not written, and the checkpoint stays until it was read. Ranks
    of this machine do it, one unless --set train.ranks=2 says otherwise, and --set train.device=cpu leaves GPUs alone.
    On the test split a temperature is fitted too, on validation; an export of the checkpoint has both.
    """
    from flows.commands.models.evaluate import evaluate_here
    from tasks.evaluations.words import render_evaluation

    store, name = find_run(run, assignments or [])
    found = evaluate_here(store, name, checkpoint, split.value if split else None, source, assignments or [])
    print_result(found, as_json, render_evaluation)
