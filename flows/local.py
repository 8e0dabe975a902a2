"""`holdfast run`: the train flow in this process, with a local Prefect server that lives as long as it.

Invariant: what a person sees is the progress, what happened, and at the end one error or the result.
"""

import signal
import sys

from flows.train import train_with_retries
from storage.errors import RunStoppedError
from storage.objects.addresses import run_address
from storage.runs.run_state import RunState
from tasks.configuration import RunConfig
from tasks.pages.best import describe_best, describe_overfitting
from tasks.pages.words import count_of, how_far, score
from tasks.places import open_places
from tasks.reports.rollbacks import count_skipped
from tasks.reports.written import report_address
from tasks.telling.messages import show_messages
from tasks.telling.terminal import console


def run_locally(config: RunConfig, command: str) -> None:
    """Train to the end. Exits with 128 plus the signal's number when asked to stop. Raises `HoldfastError`.

    `command` is what goes on with the run after that.
    """
    show_messages()
    # Prefect ends with the handler it found: an exit, and not Python's default, lets everything be put away.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        _show_result(config, train_with_retries(config))
    except RunStoppedError as stopped:
        console.print(f"Stopped. {stopped} The command: {command}", soft_wrap=True)
        sys.exit(128 + signal.SIGTERM)
    except (KeyboardInterrupt, SystemExit) as stop:
        console.print(f"Stopped. To go on from the last promoted checkpoint: {command}", soft_wrap=True)
        sys.exit(stop.code if isinstance(stop, SystemExit) else 128 + signal.SIGINT)


def _show_result(config: RunConfig, state: RunState) -> None:
    places = open_places(config)
    print(f"run      {run_address(places.store, config.run)}")
    if state.promoted is not None:
        segments = f"{len(state.segments)} segment{'s' if len(state.segments) != 1 else ''}"
        print(
            f"step     {how_far(state.promoted.step, state).removeprefix('step ')} in {segments}, "
            f"{state.steps_lost:,} steps lost"
        )
        print(f"weights  {state.promoted.weights_sha256}")
    if state.rollbacks:
        skipped = f"{count_of(count_skipped(state.rollbacks), 'sample')} left out"
        print(f"rolled back {count_of(len(state.rollbacks), 'time')}, {skipped}: `holdfast status` tells why")
    if state.changes:
        print(f"changed  {count_of(len(state.changes), 'time')} while under way: `holdfast status` says what follows")
    if state.headline is not None:
        print(f"test     of the model of step {state.headline.step:,}, which `holdfast export` takes:")
        for name, value in state.headline.metrics.items():
            print(f"{name:<8} {score(value)}")
    for words in filter(None, (describe_best(state), describe_overfitting(state))):
        print(words[0].upper() + words[1:])
    print(f"report   {report_address(places.store, config.run)}")
