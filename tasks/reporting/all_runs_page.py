"""The page of all runs of some stores, and its file.

Invariant: the page is a pure function of what was read and of the time; whoever opens its file finds a whole page,
the one before or the newer one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import ConfigurationError
from tasks.reporting.all_runs import describe_metric, seconds_left, shown_step
from tasks.reporting.render import render_page
from tasks.reporting.tiles import Tile
from tasks.text import NOTHING, ago, at_least, count_of, duration, moment, share, shortened

MAX_NEED_CHARACTERS = 1200
# What a person looks for first; the order of the list within each.
_NEEDS, _TRAINS, _WAITS, _COMPLETED = range(4)


@dataclass(frozen=True)
class _Row:
    """A run as the page shows it; all but `share_done` is text. `cells` are (heading, text) after state and steps."""

    run: str
    address: str
    below: str
    state: str
    steps: str
    share_done: float
    cells: list[tuple[str, str]]


def render_runs_page(found: dict[str, Any], now: float, refresh_seconds: int | None = None) -> str:
    """The page as HTML, of what `describe_runs` returned, made at the Unix time `now`.

    With `refresh_seconds` a browser that shows it loads it again after so many seconds; without, never.
    """
    readable = [run for run in found["runs"] if run["error"] is None]
    waiting = [run for run in readable if run["needs_person"] is not None]
    unread = [run for run in found["runs"] if run["error"] is not None]
    away = [store for store in found["stores"] if store["error"] is not None]
    return render_page(
        "reporting/all_runs_page.html.jinja",
        title=f"{count_of(len(found['runs']), 'run')} in {count_of(len(found['stores']), 'store')}",
        standing="stopped" if waiting or unread or away else "complete",
        badge=_describe_badge(len(waiting), len(unread), len(away)),
        stores=found["stores"],
        tiles=_tiles(found["runs"], len(waiting), len(unread)),
        needs=[{**run, "needs_person": shortened(run["needs_person"], MAX_NEED_CHARACTERS)} for run in waiting],
        unread=unread,
        away=away,
        rows=[_row(run, now) for run in sorted(readable, key=_urgency)],
        made_at=moment(now),
        refresh_seconds=refresh_seconds,
    )


def write_runs_page(path: Path, page: str) -> None:
    """Put the page in place of the one before, at once. Raises `ConfigurationError` if it cannot be written there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            # Else a machine that dies may have renamed what is not yet written.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(
            f"Cannot write the page of all runs to {path}: {error.strerror or error}. Give another file."
        ) from error


def _describe_badge(num_waiting: int, num_unread: int, num_away: int) -> str:
    """What is wrong, in a few words."""
    words = [f"{num_waiting:,} in need of a person"] if num_waiting else []
    words += [f"{count_of(num_unread, 'run')} not readable"] if num_unread else []
    words += [f"{count_of(num_away, 'store')} not readable"] if num_away else []
    return ", ".join(words) or "nobody is needed"


def _tiles(runs: Sequence[dict[str, Any]], num_waiting: int, num_unread: int) -> list[Tile]:
    states = [run["state"] for run in runs if run["error"] is None]
    lost = sum(run["steps_lost_total"] for run in runs if run["error"] is None)
    is_least = any(run["steps_lost_is_least"] for run in runs if run["error"] is None)
    trained = sum(run["live_step"] is not None and run["state"] == "running" for run in runs if run["error"] is None)
    return [
        Tile("In need of a person", f"{num_waiting:,}", f"{num_unread:,} more not readable" if num_unread else ""),
        Tile("In training", f"{trained:,}", f"of {count_of(len(runs), 'run')}"),
        Tile("Completed", f"{states.count('completed'):,}"),
        Tile("Steps lost", at_least(f"{lost:,}", is_least), "trained again, or to be"),
    ]


def _urgency(run: dict[str, Any]) -> int:
    if run["needs_person"] is not None:
        return _NEEDS
    if run["state"] == "completed":
        return _COMPLETED
    return _TRAINS if run["holder"] is not None else _WAITS


def _describe_people(run: dict[str, Any]) -> str:
    """Whose the run is, and which process holds it: what is known of them."""
    owner, holder = run["owner"], run["holder"]
    words = [f"owner: {owner}"] if owner is not None else []
    words += [f"held by process {holder['pid']} on {holder['host']}"] if holder is not None else []
    return ", ".join(words)


def _row(run: dict[str, Any], now: float) -> _Row:
    step, total, left = shown_step(run), run["steps_total"], seconds_left(run)
    return _Row(
        run=run["run"],
        address=run["address"],
        below=_describe_people(run),
        state=run["state"],
        steps=f"{step:,} of {total:,}",
        share_done=min(1.0, step / total) if total else 0.0,
        cells=[
            ("Left", NOTHING if left is None else duration(left)),
            ("Promoted", ago(run["promoted_at"], now)),
            ("Last sign of life", ago(run["last_sign_of_life_at"], now)),
            ("Goodput", NOTHING if run["goodput"] is None else share(run["goodput"])),
            ("Newest metric", describe_metric(run["newest_metric"])),
        ],
    )
