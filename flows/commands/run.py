"""`holdfast run`: the train flow in this process, with a local Prefect server that lives as long as it.

Invariant: what a person sees is the progress, what happened, and at the end one error or the result.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flows.commands.arguments import AsJson, Assignments, ConfigurationArgument, read_configuration
from flows.commands.results import (
    CommandStopped,
    exit_code_of,
    leave_on_signals,
    print_progress,
    print_result,
    this_command,
)
from storage.errors import RunStoppedError
from storage.lazy_imports import lazy_imports
from storage.loading import loading_libraries

with lazy_imports():
    import flows.prefect_server as prefect_server
    import flows.train as train
    import tasks.cluster.agents as agents
    import tasks.console.messages as messages
    import tasks.preemption.scheduler as scheduler
    import tasks.reporting.best as best
    import tasks.reporting.rollbacks as rollbacks
    import tasks.reporting.status as run_status
    import tasks.reporting.written as written
    import tasks.run_paths as run_paths
    import tasks.text as words

if TYPE_CHECKING:
    from storage.runs.run_state import RunState
    from tasks.configuration.run import RunConfig


def run(configuration: ConfigurationArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Train a run to its end, or go on with one that exists.

    After an interruption of any kind, start the same command again: it goes on from the last promoted checkpoint.
    """
    scheduler.leave_on_scheduler_signals()
    with ExitStack() as ended:
        server = ended.enter_context(prefect_server.configured_server())  # first: it takes longest to start
        config = read_configuration(configuration, assignments or [])
        print_progress("Starting Prefect.")
        ended.enter_context(agents.keeping_agent(config.cluster, config.train, config.model))
        server.begin()
        with loading_libraries():
            train_with_retries = train.train_with_retries  # loads Prefect, seconds: server and agent start meanwhile
        server.wait()
        messages.show_messages()
        leave_on_signals()  # Prefect ends with the handler it found
        try:
            state = train_with_retries(config)
        except RunStoppedError as stopped:
            message = f"Stopped. {stopped} The command: {this_command()}"
            raise CommandStopped(128 + signal.SIGTERM, message) from None
        except (KeyboardInterrupt, SystemExit) as stop:
            message = f"Stopped. To go on from the last promoted checkpoint: {this_command()}"
            raise CommandStopped(exit_code_of(stop), message) from None
        print_result(_describe_result(config), as_json, lambda found: _render_result(found, state))


def _describe_result(config: RunConfig) -> dict[str, Any]:
    """The run's status, and where its report is, JSON-able."""
    store = run_paths.open_run_paths(config).store
    return run_status.read_status(store, config.run) | {"report": written.report_address(store, config.run)}


def _render_result(found: dict[str, Any], state: RunState) -> str:
    """The result for a person."""
    baseline = found["baseline"]
    lines = [baseline["warning"]] if baseline and baseline["warning"] else []
    lines.append(f"run      {found['address']}")
    if state.promoted is not None:
        segments = words.count_of(len(state.segments), "segment")
        reached = words.how_far(state.promoted.step, state).removeprefix("step ")
        lost = words.at_least(f"{state.steps_lost:,}", state.steps_lost_is_least)
        lines.append(f"step     {reached} in {segments}, {lost} steps lost")
        lines.append(f"weights  {state.promoted.weights_sha256}")
    if state.rollbacks:
        skipped = f"{words.count_of(rollbacks.count_skipped(state.rollbacks), 'sample')} left out"
        times = words.count_of(len(state.rollbacks), "time")
        lines.append(f"rolled back {times}, {skipped}: `holdfast status` shows why")
    if state.changes:
        times = words.count_of(len(state.changes), "time")
        lines.append(f"changed  {times} while under way: `holdfast status` shows what follows")
    if state.headline is not None:
        lines.append(f"test     of the model of step {state.headline.step:,}, which `holdfast export` takes:")
        for name, value in state.headline.metrics.items():
            lines.append(f"{name:<8} {words.score(value)}")
    for sentence in filter(None, (best.describe_best(state), best.describe_overfitting(state))):
        lines.append(sentence[0].upper() + sentence[1:])
    return "\n".join([*lines, f"report   {found['report']}"])
