"""The command `holdfast`.

Invariant: a user's mistake ends as one message on stderr and exit code 2, an interruption as 128 plus the signal, any
other failure as 1; nothing that a person has to read is a traceback.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from flows.options.advise import advise
from flows.options.audit import audit
from flows.options.config import config
from flows.options.corpus import corpus
from flows.options.drill import drill
from flows.options.evaluate import evaluate
from flows.options.export import export
from flows.options.logs import logs
from flows.options.predict import predict
from flows.options.prepare import prepare
from flows.options.prune import prune
from flows.options.recover import recover
from flows.options.report import report
from flows.options.run import run
from flows.options.runs import runs
from flows.options.scrub import scrub
from flows.options.status import status
from flows.options.stop import stop
from flows.options.verify import verify
from storage.errors import HoldfastError, LedgerViolationError, SegmentFailedError
from tasks.telling.terminal import console

app = typer.Typer(
    help="Train text classifiers on machines that may be taken away at any time, and get the same model as without "
    "interruption.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a failure, 2 something for you to correct, 128 plus the signal when asked to stop. "
    "The terms used here are explained in README.md, section Glossary.",
)
# In the order in which a newcomer needs them.
for command in (
    corpus, config, prepare, run, stop, status, logs, runs, report, evaluate, export, predict, verify, scrub, prune,
    recover, audit, advise, drill,
):  # fmt: skip
    app.command()(command)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line of this process, and leave it."""
    exit_code = 1
    # Registered first, so called last: Prefect's local server is stopped by then.
    atexit.register(lambda: _leave(exit_code))
    exit_code = execute(sys.argv[1:])


def execute(arguments: Sequence[str]) -> int:
    """Run one command, and turn errors into messages; its exit code."""
    try:
        app(list(arguments), prog_name="holdfast")
    except HoldfastError as error:
        console.print(f"Error: {error}", style="red", soft_wrap=True)
        return 1 if isinstance(error, SegmentFailedError | LedgerViolationError) else 2
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def _leave(exit_code: int) -> None:
    """End the process before Python takes its modules apart.

    DuckDB's binding prints a page about leaks when it is taken apart while a thread of Prefect's still refers to it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
