"""The command `holdfast`.

Invariant: a user's mistake ends as one message on stderr and exit code 2, an interruption as 128 plus the signal, any
other failure as 1; nothing that a person has to read is a traceback.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress

from flows.server import configured_server
from storage.errors import ConfigurationError, HoldfastError, LedgerViolationError, SegmentFailedError
from storage.objects.addresses import open_store
from storage.objects.store import Store
from storage.runs.manifest import Manifest, find_runs
from storage.runs.targets import find_target
from tasks.configuration import RunConfig
from tasks.settings.reading import change_values, configure, load_configuration
from tasks.telling.terminal import console

app = typer.Typer(
    help="Train text classifiers on machines that may vanish, and get the model that no interruption would have made.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 1 a failure, 2 something for you to put right, 128 plus the signal when asked to stop.",
)

Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a field, for instance train.steps=500; can be repeated. A relative path is taken from the working "
        "directory here, and from the file's folder in the file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A configuration file, or the run's address STORE/runs/NAME.")
]


@app.command()
def corpus(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    job: Annotated[
        Literal["policy", "quality"],
        typer.Option(help="policy: raw text, metadata, 11 classes. quality: tokens, yes or no."),
    ],
    rows: Annotated[int, typer.Option(help="Number of rows.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set seed or rows_per_file.")
    ] = None,
) -> None:
    """Make a corpus to try things on.

    It is a folder of Parquet files with the columns of one of the two jobs.
    """
    from tasks.corpora.generate import CorpusConfig, generate_corpus

    config = configure(CorpusConfig, change_values({}, assignments or []), "configuration of the corpus")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"writing {out}", total=rows)
        paths = generate_corpus(out, job, rows, config, on_rows=lambda count: progress.advance(bar, count))
    print(f"{rows:,} rows in {len(paths)} files in {out}")


@app.command()
def run(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration file (TOML).")],
    assignments: Assignments = None,
) -> None:
    """Train a run to its end, or go on with one that exists.

    Interrupt it as you like: the same command goes on from the promoted checkpoint.
    """
    config = load_configuration(configuration, assignments or [])
    with configured_server() as server:
        # Prefect takes seconds to import: other commands need not wait for it, and the server starts meanwhile.
        from flows.local import run_locally

        if server is not None:
            server.wait()
        run_locally(config)


@app.command()
def status(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Say where a run stands."""
    from flows.commands.status import read_status, render_status

    found = read_status(*_find_run(run, assignments or []))
    _print(found, as_json, render_status)


@app.command()
def verify(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Hash every checkpoint that is kept and say which are valid. Exit code 1 if one is not."""
    from flows.commands.verify import render_verification, verify_run

    found = verify_run(*_find_run(run, assignments or []))
    _print(found, as_json, render_verification)
    if not found["valid"]:
        raise typer.Exit(1)


@app.command()
def scrub(
    target: Annotated[
        str, typer.Argument(metavar="STORE|RUN", help="A store, a run's address STORE/runs/NAME, or a configuration.")
    ],
    assignments: Assignments = None,
    megabytes_per_second: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Read no faster than this, on average.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Re-hash all that is kept, and alert on rot.

    Of a run, or of all runs of a store: checkpoints, ledger and data set. Exit code 1 if any of it has rotted. What is
    read is what the store has, not copies on this machine. A damaged checkpoint of a run that nobody trains is set
    aside. With PREFECT_API_URL set, the server gets an event holdfast.rot for each damaged thing. Safe while runs are
    in training; for a schedule, see the deployment `scrub`.
    """
    from flows.scrub import render_scrub, scrub_with_display
    from tasks.telling.messages import show_messages

    show_messages()
    names_a_run = bool(assignments) or _is_file(target)
    found = scrub_with_display(
        *(_find_run(target, assignments or []) if names_a_run else find_target(target)), megabytes_per_second
    )
    _print(found, as_json, render_scrub)
    if not found["ok"]:
        raise typer.Exit(1)


@app.command()
def prune(
    run: RunArgument,
    assignments: Assignments = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Delete the files of checkpoints that earlier segments set aside, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the checkpoints that a run no longer keeps.

    What stays follows from the policy that the run was last continued with; --set checkpoint.keep=2 and the like
    change it for this once. The resume point, the one before it and what is being read stay in any case. Saves that
    were cut off and steps that were never promoted go too. Safe while the run is in training.
    """
    from flows.commands.prune import prune_run, render_prune

    store, name = _find_run(run, assignments or [])
    _print(prune_run(store, name, assignments or [], dry_run, set_aside), as_json, render_prune)


@app.command()
def audit(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Prove from the ledger which samples trained the model.

    Every sample once per epoch, none skipped, none repeated, in the order of the pure functions, up to the promoted
    checkpoint. Exit code 1 if not, with the steps and the samples.
    """
    from flows.commands.audit import audit_with_display, render_audit

    found = audit_with_display(*_find_run(run, assignments or []))
    _print(found, as_json, render_audit)
    if not found["ok"]:
        raise typer.Exit(1)


@app.command()
def advise(
    run: RunArgument,
    assignments: Assignments = None,
    failures_per_day: Annotated[
        float | None, typer.Option(metavar="N", help="Crashes per day to reckon with; else the run's own.")
    ] = None,
    stall_seconds: Annotated[
        float | None, typer.Option(metavar="N", help="What a save stops training for; else measured.")
    ] = None,
    durable_seconds: Annotated[
        float | None, typer.Option(metavar="N", help="From there until it is in the store; else measured.")
    ] = None,
    restart_seconds: Annotated[
        float | None, typer.Option(metavar="N", help="From the start to the first step; else measured.")
    ] = None,
    price_per_gb_month: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="Of 10^9 bytes kept for a month; 0.023 if not given.")
    ] = None,
    price_per_1000_puts: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="If not given: 0.005 in a bucket, nothing in a folder."),
    ] = None,
    failures_per_gpu_hour: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="For other numbers of GPUs, and while the run had no crash; 2.0e-5 if not given."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the simulation; 0 if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say how often to save, from what was measured.

    Too often, and training stands still for saves; too seldom, and a crash takes much. What is best follows from the
    stall of a save, the time until it is durable, the time of a restart and how often the run crashes: all measured,
    or given. The table shows overhead, lost work and storage cost for every interval, computed and simulated. The
    interval as configured is compared with the best one; --set checkpoint.every_seconds=300 and the like compare
    another. A page with a chart is put to the store: runs/RUN/advice.html. Nothing about the run is changed.
    """
    from flows.commands.advise import advise_run, render_advice

    options = {
        "failures_per_day": failures_per_day,
        "stall_seconds": stall_seconds,
        "durable_seconds": durable_seconds,
        "restart_seconds": restart_seconds,
        "price_per_gb_month": price_per_gb_month,
        "price_per_1000_puts": price_per_1000_puts,
        "failures_per_gpu_hour": failures_per_gpu_hour,
        "seed": seed,
    }
    store, name = _find_run(run, assignments or [])
    _print(advise_run(store, name, assignments or [], options), as_json, render_advice)


@app.command()
def drill(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration file (TOML).")],
    assignments: Assignments = None,
    kills: Annotated[
        int, typer.Option(min=1, metavar="N", help="Times the second run is killed, each in another stretch of it.")
    ] = 3,
    world_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Ranks of the second run's starts, taken in turn; each at most train.leaves. If not given: as many as "
            "configured but 2 at least, and half as many. Where there are fewer GPUs, ranks share them.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Decides the steps of the kills; drawn if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the promise to the test on your own data.

    Two runs are trained. One goes straight through; the other is killed with SIGKILL and started again on another
    number of ranks, time after time. Then samples, weights, losses and metrics are compared. Your own run is not
    touched. The two runs and a page with the verdict stay in the store: runs/RUN-drill-1-straight,
    runs/RUN-drill-1-interrupted and drills/RUN-1.html, with 2 for the second drill.

    Exit code 0 if the promise holds, 1 if not. With train.sum = 'fast' the samples alone decide, and how far apart
    weights and metrics are is told.
    """
    from flows.commands.drill import drill_run, render_drill

    found = drill_run(configuration, assignments or [], kills, world_sizes, seed)
    _print(found, as_json, render_drill)
    if not found["ok"]:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line and turn errors into messages and exit codes."""
    exit_code = 1
    # Registered first, so called last: Prefect's local server is stopped by then.
    atexit.register(lambda: _leave(exit_code))
    try:
        app(prog_name="holdfast")
    except HoldfastError as error:
        console.print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        exit_code = 1 if isinstance(error, SegmentFailedError | LedgerViolationError) else 2
    except SystemExit as leaving:
        exit_code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)


def _leave(exit_code: int) -> None:
    """End the process before Python takes its modules apart.

    DuckDB's binding prints a page about leaks when it is taken apart while a thread of Prefect's still refers to it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _find_run(text: str, assignments: list[str]) -> tuple[Store, str]:
    """The run behind a configuration file or an address, after the assignments."""
    if _is_file(text):
        config = load_configuration(Path(text), assignments)
        return open_store(config.store), config.run
    store, run = find_target(text)
    if run is None:
        raise _no_run(text, find_runs(store))
    if not assignments:
        return store, run
    started_with = Manifest(store, run).load_head().state.config | {"store": store.address}
    config = configure(RunConfig, change_values(started_with, assignments), f"configuration of {text}")
    return open_store(config.store), config.run


def _no_run(text: str, runs: list[str]) -> ConfigurationError:
    """What is said to somebody who names a store, or nothing that is there, where a run is to be named."""
    if runs:
        return ConfigurationError(
            f"{text!r} is a store, and this command takes one run: STORE/runs/NAME. Its runs are {', '.join(runs)}."
        )
    return ConfigurationError(
        f"{text!r} is neither a configuration file that is there nor a run's address. "
        "Give a TOML file, or the address as `holdfast run` prints it: STORE/runs/NAME."
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:
        return False  # too long for a path, or behind a folder that may not be looked into


def _print(found: dict[str, Any], as_json: bool, render: Callable[[dict[str, Any]], RenderableType]) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        Console(highlight=False).print(render(found), crop=False)  # a path that is cut off is of no use


if __name__ == "__main__":
    main()
