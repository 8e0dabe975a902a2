"""`make bench-fifty`: what runs in training ask of one Prefect server, and what that costs it.

So many runs of ten teams, deployed by `holdfast deploy`, are in training at once: Prefect's server with all its
services on PostgreSQL, a worker, `holdfast reconcile`, a folder as store. Each flow run is a process that supervises a
segment as ever: lease, heartbeats, promotions, events, artifacts, live page, and the schedule's ticks that find the run
in training. Not real are two things: ranks only report and save, and flow runs are forked from a process with their
libraries. They begin a few at a time, and their ticks come by the schedule that `holdfast deploy` gives. All is counted
from when every run trains. The last line is for machines: `name=value` pairs.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import psutil
from rich.console import Console
from rich.table import Table as Shown

from storage.processors import count_processors
from tasks.corpora.generate import generate_corpus
from tests.benchmarks.fifty_runs.site import CONFIGURATION, POLL_SECONDS, TEAMS, Site, operated, own_folder
from tests.benchmarks.fifty_runs.usage import Usage, between, flow_run_states, look
from tests.helpers.commands import Runner
from tests.helpers.operators import CORPUS_ROWS
from tests.helpers.postgres_server import PACKAGE, find_programs

TOML = """
run = "prepared"
store = "store"

[data]
source = "corpus"
text = "prompt_text"
label = "violation_class"
kind = "multiclass"
vocabulary_size = 300
max_tokens = 32
too_long = "truncate"

[train]
steps = 1000000
batch_size = 8
microbatches = 2
device = "cpu"
"""
ROWS = {"event rows": "events", "log rows": "log", "flow runs": "flow_run", "task runs": "task_run"}
ROWS |= {"artifact rows": "artifact"}
HOUR_SECONDS, MINUTE_SECONDS = 3600.0, 60.0
START_SECONDS = 900.0
NUM_ROUTES, NUM_TABLES = 20, 12
MEGABYTE = 1_000_000
NUM_TOGETHER = 10  # runs that are begun at once
ERROR_LINES = 30
console = Console(width=120)


def main() -> None:
    """Start so many runs, count for so long, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=600.0, help="A multiple of 300 has as many ticks as an hour.")
    parser.add_argument("--save-seconds", type=float, help="Default: as by default, 600.")
    parser.add_argument("--schedule", help="Of all runs, as cron has it. Default: as by default, every five minutes.")
    asked = parser.parse_args()
    if find_programs() is None:
        raise SystemExit(f"PostgreSQL is not installed; on Debian 12: apt-get install {PACKAGE}")
    with own_folder() as folder:
        settings = {} if asked.save_seconds is None else {"checkpoint.every_seconds": asked.save_seconds}
        generate_corpus(folder / "corpus", "policy", CORPUS_ROWS)
        (folder / CONFIGURATION).write_text(TOML)
        with _timed("the data set"):
            Runner(folder / CONFIGURATION, settings).prepare()
        with ExitStack() as stack:
            with _timed("the servers"):
                site, command = stack.enter_context(operated(folder))
            _train_and_count(site, command, asked, [f"{name}={value}" for name, value in settings.items()])


def _train_and_count(site: Site, command: str, asked: argparse.Namespace, assignments: list[str]) -> None:
    runs = [f"run-{number:02d}" for number in range(asked.runs)]
    with _timed("the deployments"):
        more = [part for assignment in assignments for part in ("--set", assignment)]
        more += ["--schedule", asked.schedule] if asked.schedule else []
        for number, run in enumerate(runs):
            site.deploy(run, TEAMS[number % len(TEAMS)], *more)
            site.have_forked(run, command)
    with _timed("the first steps of all runs"):
        for first in range(0, len(runs), NUM_TOGETHER):
            together = runs[first : first + NUM_TOGETHER]
            for run in together:
                site.operator.submit(f"scheduled/{run}")
            _wait_for_steps(site, together)
    began_at, load_before = datetime.now(UTC), os.getloadavg()[0]
    steps_before = {run: site.find_step(run) for run in runs}
    before = look(site.server_log, site.postgres, site.processes)
    time.sleep(asked.seconds)  # what is counted takes place meanwhile
    after = look(site.server_log, site.postgres, site.processes)
    usage = between(before, after, site.server_log)
    steps_after = {run: site.find_step(run) for run in runs}
    trained = [run for run in runs if (steps_after[run] or 0) > (steps_before[run] or 0)]
    _print(usage, asked.runs)
    states = flow_run_states(site.postgres, began_at)
    console.print(f"Flow runs that came into a state meanwhile: {states}")
    console.print(f"Trained from the beginning to the end: {len(trained)} of {len(runs)} runs.")
    if len(trained) < len(runs):
        print(_logs(site))
    load = (load_before, os.getloadavg()[0])
    console.print(
        f"This machine: {count_processors()} cores, {usage.idle_share:.0%} idle, load {load[0]:.1f} before and "
        f"{load[1]:.1f} after."
    )
    memory = {name: _memory_of(process) / MEGABYTE for name, process in site.processes.items()}
    console.print("Memory (PSS): " + ", ".join(f"{name} {megabytes:,.0f} MB" for name, megabytes in memory.items()))
    _print_line(usage, asked.runs, len(trained))


def _wait_for_steps(site: Site, runs: Sequence[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while missing := [run for run in runs if not site.find_step(run)]:
        if time.monotonic() > deadline:
            raise SystemExit(f"Not in training after {START_SECONDS:.0f} s: {', '.join(missing)}\n{_logs(site)}")
        time.sleep(POLL_SECONDS)  # a heartbeat is looked for in the store


def _logs(site: Site) -> str:
    """What worker and server said last of what went wrong."""
    files = {site.operator.worker_log: ("Error", "Traceback", "prefect."), site.server_log: ("Error", " 500 ")}
    said = []
    for file, words in files.items():
        lines = file.read_text(errors="replace").splitlines()
        said += [line for line in lines if any(word in line for word in words)][-ERROR_LINES:]
    return "\n".join(said)


def _print(usage: Usage, num_runs: int) -> None:
    hours = usage.seconds / HOUR_SECONDS
    shown = Shown("of the server", f"in {usage.seconds:,.0f} s", "a run and hour", f"{num_runs} runs, an hour")
    counts: dict[str, float] = {"API requests": usage.requests.total()}
    counts |= {name: usage.tables[table].inserted for name, table in ROWS.items()}
    counts |= {"MB of the database": usage.database_bytes / MEGABYTE}
    for name, count in counts.items():
        digits = 0 if isinstance(count, int) else 2
        of_run, of_all = count / hours / num_runs, count / hours
        shown.add_row(name, f"{count:,.{digits}f}", f"{of_run:,.{max(digits, 1)}f}", f"{of_all:,.{digits}f}")
    console.print(shown)
    routes = Shown("requests by route", "number", "a run and hour")
    for route, number in usage.requests.most_common(NUM_ROUTES):
        routes.add_row(route, f"{number:,}", f"{number / hours / num_runs:,.1f}")
    console.print(routes)
    tables = Shown("tables that grew most", "inserted", "updated", "MB")
    for name, table in sorted(usage.tables.items(), key=lambda item: -item[1].num_bytes)[:NUM_TABLES]:
        tables.add_row(name, f"{table.inserted:,}", f"{table.updated:,}", f"{table.num_bytes / MEGABYTE:.2f}")
    console.print(tables)
    processors = Shown("processor time", "CPU s", "CPU s a minute", "of one core")
    for name, seconds in usage.cpu_seconds.items():
        share = seconds / usage.seconds
        processors.add_row(name, f"{seconds:,.1f}", f"{share * MINUTE_SECONDS:,.2f}", f"{share:.1%}")
    console.print(processors)


def _print_line(usage: Usage, num_runs: int, num_trained: int) -> None:
    run_hours = usage.seconds / HOUR_SECONDS * num_runs
    figures = {"runs": num_runs, "trained": num_trained, "seconds": round(usage.seconds)}
    of_run = {"requests": usage.requests.total(), "megabytes": usage.database_bytes / MEGABYTE}
    of_run |= {name.replace(" ", "_"): usage.tables[table].inserted for name, table in ROWS.items()}
    shares = {name.replace(" ", "_"): seconds / usage.seconds for name, seconds in usage.cpu_seconds.items()}
    words = [f"{name}={value}" for name, value in figures.items()]
    words += [f"{name}_a_run_and_hour={value / run_hours:.2f}" for name, value in of_run.items()]
    words += [f"cores_of_{name}={share:.4f}" for name, share in shares.items()]
    print(*words, f"idle={usage.idle_share:.3f}")


def _memory_of(root: psutil.Process) -> int:
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue  # it has just ended
    return total


@contextmanager
def _timed(what: str) -> Iterator[None]:
    """Say when the block begins, and how long it took."""
    console.print(f"{datetime.now(UTC):%H:%M:%S} {what} ...")
    began = time.monotonic()
    yield
    console.print(f"{datetime.now(UTC):%H:%M:%S} {what}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
