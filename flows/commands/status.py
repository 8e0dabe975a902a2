"""`holdfast status`: where a run stands, once or again and again; of a store, where all its runs stand.

Invariant: reads only, and only the store: it works on any machine. One that does not answer for a while ends no watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, find_run, is_file
from flows.commands.results import print_result, require_reader
from flows.commands.runs import render_runs
from storage.errors import ConfigurationError, StoreUnavailableError
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console, print_content

with lazy_imports():
    import rich.live as live_display

    import storage.runs.addresses as run_addresses
    import storage.runs.manifest as manifests
    import storage.runs.metric_values as metric_values
    import storage.runs.run_records as run_records
    import storage.runs.run_state as run_state
    import tasks.config.by_rows as by_rows
    import tasks.console.tables as tables
    import tasks.reporting.all_runs as all_runs
    import tasks.reporting.goodput as goodput
    import tasks.reporting.rollbacks as rollbacks
    import tasks.reporting.status as run_status
    import tasks.reporting.tables as report_tables
    import tasks.text as words

if TYPE_CHECKING:
    from storage.objects.store import Store

MOST_LOSSES = 3

# A status, and why no newer one could be read.
Show = Callable[[dict[str, Any], str | None], None]


def status(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE|RUN",
            help="A configuration file, a run's address STORE/runs/NAME, or a store: all its runs, as `holdfast runs`.",
        ),
    ],
    assignments: Assignments = None,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it again and again, until the run is complete or Ctrl-C. Where stdout is no terminal: a line "
            "when something changed.",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often --watch looks.", show_default=True)
    ] = 5.0,
) -> None:
    """Show where a run stands, or list the runs of a store."""
    if watch:
        if as_json:
            raise ConfigurationError("--watch is for people to look at, and --json for programs: give one of them.")
        watch_status(*find_run(target, assignments or []), every)
        return
    if not assignments and not is_file(target):
        store, run = run_addresses.find_target(target)
        if run is None and manifests.find_runs(store):
            print_result(all_runs.list_runs(store), as_json, render_runs)
            return
    print_result(run_status.read_status(*find_run(target, assignments or [])), as_json, render_status)


def watch_status(store: Store, run: str, every_seconds: float) -> None:
    """Show the status until the run is complete. Raises `RunMissingError`."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    if not terminal.is_terminal:
        _watch(store, run, every_seconds, _Lines().show)
        return
    screen = _Screen(live_display.Live(console=terminal, auto_refresh=False, transient=True), every_seconds)
    try:
        with screen.live:
            _watch(store, run, every_seconds, screen.show)
    finally:
        # Meanwhile what is higher or wider than the terminal is cut off.
        print_content(Group(*screen.shown))


def _watch(store: Store, run: str, every_seconds: float, show: Show) -> None:
    status, trouble = run_status.read_status(store, run), None
    while True:
        show(status, trouble)
        if status["state"] == "completed":
            return
        time.sleep(every_seconds)  # the store does not signal changes
        try:
            status, trouble = run_status.read_status(store, run), None
        except StoreUnavailableError as error:
            trouble = f"The store cannot be read just now; it is asked again: {error}"


class _Screen:
    """The newest status in place of the one before. `shown` is what is to stay."""

    def __init__(self, live: live_display.Live, every_seconds: float) -> None:
        self.live = live
        self.shown: list[RenderableType] = []
        self._read_at = ""
        self._every = f"every {every_seconds:g} s; Ctrl-C ends it"

    def show(self, status: dict[str, Any], trouble: str | None) -> None:
        if trouble is None:
            self.shown, self._read_at = [render_status(status)], _now()
        footer = [Text(trouble, "yellow")] if trouble is not None else []
        footer.append(Text(f"as of {self._read_at}, {self._every}", "dim"))
        self.live.update(Group(*self.shown, *footer), refresh=True)


class _Lines:
    """A line for each change of what is worth one."""

    def __init__(self) -> None:
        self._shown = ""
        self._trouble: str | None = None

    def show(self, status: dict[str, Any], trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            console.print(trouble, style="yellow", soft_wrap=True)
        self._trouble = trouble
        progress = f"{status['state']}, step {status['step']:,} of {status['steps_total']:,}"
        line = ", ".join(filter(None, [progress, run_status.describe_work(status)]))
        if line != self._shown:
            print(f"{_now()}  {line}")
            require_reader()
        self._shown = line


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def render_status(status: dict[str, Any]) -> RenderableType:
    """The status for a person."""
    progress = f"step {status['step']:,} of {status['steps_total']:,} ({status['step'] / status['steps_total']:.0%})"
    lost = words.at_least(f"{status['steps_lost_total']:,}", status["steps_lost_is_least"])
    lines = [
        Text.assemble(("Run ", "bold"), status["run"], "  ", (status["state"], "bold cyan")),
        Text(f"{progress}, {lost} steps lost"),
        *([] if status["owner"] is None else [Text(f"owner: {status['owner']}")]),
    ]
    if status["baseline"] and status["baseline"]["warning"]:
        lines.insert(1, Text(status["baseline"]["warning"], "yellow"))
    if status["by_rows"]:
        lines.append(Text(f"by {by_rows.describe_by_rows(run_records.ByRows.model_validate(status['by_rows']))}"))
    if status["ended_early"]:
        lines.append(Text(f"ended early by {status['ended_early']}"))
    if work := run_status.describe_work(status):
        lines.append(Text(_describe_work(status, work)))
    if work and status["live"] and (live := run_status.describe_live(status["live"])):
        lines.append(Text("; ".join(live)))
    if status["other_holdfast"]:
        lines.append(Text(status["other_holdfast"], "yellow"))
    if status["holder"] and status["holder"]["deaths"]:
        lines.append(Text(status["holder"]["deaths"]))
    if status["time"]:
        lines.append(Text(_describe_time(status["time"])))
    if status["clock"]:
        lines.append(Text(status["clock"], "yellow"))
    if status["promoted"]:
        # On one line however narrow the terminal is, so that it can be copied.
        path = status["promoted"]["path"]
        lines.append(Text(f"resume point {path}", no_wrap=True, overflow="ignore"))
        lines.append(Text(f"weights {status['promoted']['weights_sha256']}"))
        if not_finite := status["promoted"]["not_finite"]:
            found = metric_values.describe_not_finite(not_finite["metrics"])
            lines.append(Text(f"the last validation, at step {not_finite['step']:,}, was not finite: {found}"))
    if status["holder"] and status["holder"]["stopped"]:
        lines.append(Text(status["holder"]["stopped"], "yellow"))
    if status["holder"] and not status["holder"]["is_on_this_machine"]:
        lines.append(Text(run_status.describe_holder(status["holder"])))
    lines += [Text(record["description"]) for record in status["quarantined"]]
    if status["setback"]:
        lines.append(Text(status["setback"], "yellow"))
    for record in status["rejected"][-1:]:
        lines.append(Text(f"step {record['checkpoint']['step']:,} did not pass the quality gate: {record['reason']}"))
    if status["changes"]:
        lines.append(Text("Changed while the run was under way:"))
        lines += [Text(f"  {record['description']}") for record in status["changes"]]
    if status["rollbacks"]:
        reasons = rollbacks.name_reasons([record.get("asked_by") for record in status["rollbacks"]])
        lines.append(Text(f"{reasons.rstrip(',')}:"))
        lines += [Text(f"  {record['description']}") for record in status["rollbacks"]]
    if status["metrics"]:
        shown = ", ".join(f"{name} {words.score(value)}" for name, value in status["metrics"].items())
        lines.append(Text(f"test, of the model of step {status['metrics_step']:,}: {shown}"))
    lines += [Text(f"test, {found['description']}") for found in status["slices"]]
    lines += [Text(status[name]) for name in ("best", "overfitting") if status[name]]
    return Group(
        *lines,
        *([tables.show_table(_list_segments(status["segments"]), tables.MOST_ROWS)] if status["segments"] else []),
    )


def _describe_work(status: dict[str, Any], work: str) -> str:
    return f"{work}, as of {words.duration(status['holder']['silent_seconds'])} ago"


def _describe_time(time: dict[str, Any]) -> str:
    useful, spent = time["goodput"], time["seconds"]
    return f"goodput {words.share(useful)}: of {words.duration(sum(spent.values()))}, {_describe_rest(spent)}"


def _describe_rest(spent: dict[str, float]) -> str:
    """What most of the time beside training went into."""
    rest = sorted(
        ((seconds, goodput.PART_NAMES[name]) for name, seconds in spent.items() if name != "useful"), reverse=True
    )
    return ", ".join(f"{words.duration(seconds)} {name}" for seconds, name in rest[:MOST_LOSSES])


def _list_segments(described: list[dict[str, Any]]) -> tables.Table:
    return report_tables.segments_table([_read_segment(one) for one in described])


def _read_segment(described: dict[str, Any]) -> run_state.SegmentRecord:
    """The segment that `tasks.reporting.status` described."""
    known = {name: described[name] for name in described.keys() & run_state.SegmentRecord.model_fields.keys()}
    measured = {name: described[name] for name in run_state.Throughput.model_fields}
    throughput = None if None in measured.values() else measured
    return run_state.SegmentRecord.model_validate({"phases": {}, "throughput": throughput, **known})
