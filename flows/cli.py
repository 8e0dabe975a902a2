"""The command `holdfast`: its commands, each found by its file in `flows/commands`.

Invariant: a user's mistake ends as one message on stderr and exit code 2, an interruption as 128 plus the signal, any
other failure as 1; nothing that a person has to read is a traceback. With --json the message is on stdout too, as JSON.
"""

import atexit
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer

from flows import commands
from flows.commands.results import CommandStopped, print_error_as_json, require_written
from storage.errors import HoldfastError, LedgerViolationError, ResultUnwrittenError, SegmentFailedError
from tasks.console.terminal import console, lose_what_cannot_be_shown

# In the order in which a newcomer needs them; help lists a command that is not named here after them.
FIRST_COMMANDS = (
    "corpus", "config", "prepare", "run", "stop", "status", "logs", "runs", "report", "evaluate", "export", "predict",
    "verify", "scrub", "prune", "recover", "audit", "advise", "drill", "deploy",
    "reconcile",
)  # fmt: skip
# What lies beside the commands and is none.
SHARED_BY_COMMANDS = {"arguments", "results"}


def find_commands() -> list[str]:
    """The names of all commands, in the order of the help."""
    found = {module.name for module in iter_modules(commands.__path__)} - SHARED_BY_COMMANDS
    return [name for name in FIRST_COMMANDS if name in found] + sorted(found - set(FIRST_COMMANDS))


def load_command(name: str) -> Callable[..., None]:
    """The function of a command, whose arguments and options are those of the command."""
    function: Callable[..., None] = getattr(import_module(f"{commands.__name__}.{name}"), name)
    return function


def read_summary(name: str) -> str:
    """The first line of a command's docstring, from its file: to load all of them would take longest of all in help."""
    source = Path(commands.__path__[0], f"{name}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {name}\(.*?"""(.+?)("""|$)', source, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line for these arguments: with the command that they call, or with all where they call none."""
    app = typer.Typer(
        help="Train text classifiers on machines that may be taken away at any time, and get the same model as without "
        "interruption.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Exit codes: 0 done, 1 a failure, 2 something for you to correct, 128 plus the signal when asked to "
        "stop. The terms used here are explained in deployments/commands.md, section Glossary.",
    )
    app.callback()(_common)
    names = find_commands()
    if arguments and arguments[0] in names:
        app.command()(load_command(arguments[0]))
        return app
    for name in names:
        app.command(name, help=read_summary(name))(_nothing)
    return app


def _nothing() -> None: ...


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"holdfast {version('holdfast')}")
        raise typer.Exit


def _common(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line of this process, and leave it."""
    _require_utf8()
    lose_what_cannot_be_shown()
    exit_code = 1
    # Registered first, so called last: Prefect's local server is stopped by then.
    atexit.register(lambda: _leave(exit_code))
    exit_code = execute(sys.argv[1:])


def execute(arguments: Sequence[str]) -> int:
    """Run one command, and turn errors into messages; its exit code."""
    try:
        _call(arguments)
        require_written()
    except ResultUnwrittenError as error:
        console.print(f"Error: {error}", style="red", soft_wrap=True)
        return 1
    except HoldfastError as error:
        console.print(f"Error: {error}", style="red", soft_wrap=True)
        if "--json" in arguments:
            print_error_as_json(type(error).__name__, str(error))
        return 1 if isinstance(error, SegmentFailedError | LedgerViolationError) else 2
    except CommandStopped as stopped:
        console.print(stopped.message, soft_wrap=True)
        if "--json" in arguments:
            print_error_as_json(CommandStopped.__name__, stopped.message)
        return stopped.code
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def _call(arguments: Sequence[str]) -> None:
    """Returns where the command did what it was to do; else raises, also as an exit."""
    try:
        make_app(arguments)(list(arguments), prog_name="holdfast")
    except SystemExit as leaving:  # so Typer ends each command
        if leaving.code not in (0, None):
            raise


def _require_utf8() -> None:
    """Begin again in Python's UTF-8 mode where the locale has another encoding: paths and texts are UTF-8."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONUTF8": "1"})


def _leave(exit_code: int) -> None:
    """End the process before Python takes its modules apart.

    DuckDB's binding prints a page about leaks when it is taken apart while a thread of Prefect's still refers to it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
