"""`holdfast status RUN --watch`: the same status again and again, for as long as the run is under way.

Invariant: reads only, and only the store. A store that does not answer for a while ends nothing.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from flows.commands.status import describe_work, read_status, render_status
from storage.errors import StoreUnavailableError
from storage.objects.store import Store
from tasks.telling.terminal import console, print_content

# A status, and why no newer one could be read.
Show = Callable[[dict[str, Any], str | None], None]


def watch_status(store: Store, run: str, every_seconds: float) -> None:
    """Show the status until the run is complete. Raises `RunMissingError`."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    if not terminal.is_terminal:
        _watch(store, run, every_seconds, _Lines().show)
        return
    screen = _Screen(Live(console=terminal, auto_refresh=False, transient=True), every_seconds)
    try:
        with screen.live:
            _watch(store, run, every_seconds, screen.show)
    finally:
        # Meanwhile what is higher or wider than the terminal is cut off.
        print_content(Group(*screen.shown))


def _watch(store: Store, run: str, every_seconds: float, show: Show) -> None:
    status, trouble = read_status(store, run), None
    while True:
        show(status, trouble)
        if status["state"] == "completed":
            return
        time.sleep(every_seconds)  # the store tells nobody that something has changed
        try:
            status, trouble = read_status(store, run), None
        except StoreUnavailableError as error:
            trouble = f"The store does not answer; it is asked again: {error}"


class _Screen:
    """The newest status in place of the one before. `shown` is what is to stay."""

    def __init__(self, live: Live, every_seconds: float) -> None:
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
        line = ", ".join(filter(None, [progress, describe_work(status)]))
        if line != self._shown:
            print(f"{_now()}  {line}", flush=True)
        self._shown = line


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
