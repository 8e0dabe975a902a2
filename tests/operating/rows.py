"""A row of the table: a disturbance, what was expected, what was seen, and what of it was wrong.

Invariant: a row is right only if the run ended with the weights of the undisturbed one, every flow run of it is shown
in a final state that is true, and people were told what the row says and nothing else.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from tests.helpers.commands import call_here
from tests.operating.place import COMPLETE, Place
from tests.operating.runs import Run, Watch, wait_for

# Within so long Prefect shows what is so: a look, a minute of them, and what follows.
STATE_SECONDS = 120.0
SETTLE_SECONDS = 300.0
OVER = "[over]"


@dataclass
class Row:
    """What became of one disturbance. None: it does not apply."""

    disturbance: str
    expected: str
    seen: list[str] = field(default_factory=list)
    steps_lost: int | None = None
    pause: float | None = None  # seconds, the longest without a step
    true_after: float | None = None  # seconds until Prefect shows what became of the flow run
    told: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)


@dataclass
class Operated:
    """The place, what is watched in it, and the weights that nothing disturbed."""

    place: Place
    watch: Watch
    weights: str = ""
    claimed: Counter[str] = field(default_factory=Counter)  # what rows have accounted for of what people were told

    def new_run(self, name: str, **settings: object) -> Run:
        return Run(self.place, self.watch, name, **settings)

    def training(self, name: str, **settings: object) -> Run:
        """A run that trains and has saved."""
        run = self.new_run(name, **settings)
        run.begin()
        run.wait_until_training()
        return run


class Trial:
    """One run that meets a disturbance, and the row that it fills."""

    def __init__(self, operated: Operated, run: Run, disturbance: str, expected: str) -> None:
        self.row = Row(disturbance, expected)
        self._operated, self._run = operated, run
        self.struck_at = time.monotonic()
        self.flow_runs = run.flow_runs_of_holder() if run.is_training() else []
        self._lost_before = 0

    def strike(self, do: Callable[[], object]) -> None:
        """What is there just before is noted, and then it takes place."""
        # In an evaluation, which is a lease of its own, it may not be noted yet; it is the same flow run.
        self.flow_runs = self._run.flow_runs_of_holder() or self.flow_runs
        self._lost_before = steps_lost(self._run)
        self.struck_at = time.monotonic()
        do()

    def require_states(self, *expected: Collection[str], within: float = STATE_SECONDS) -> None:
        """The flow run `train` that held the run, and the one around it, come to one of these states, in time."""

        def are_so() -> bool:
            return all(name in names for name, names in zip(self._run.states(self.flow_runs), expected, strict=True))

        try:
            wait_for(are_so, "states", max(SETTLE_SECONDS, within))
        except (TimeoutError, ValueError):
            names = self._run.states(self.flow_runs)
            self.row.wrong.append(f"its flow runs are shown as {names}, expected {[sorted(one) for one in expected]}")
            return
        self.row.true_after = time.monotonic() - self.struck_at
        self.row.seen.append(" in ".join(self._run.states(self.flow_runs)))
        self.row.require(
            self.row.true_after <= within, f"shown only after {self.row.true_after:.0f} s, expected {within:.0f}"
        )

    def end(
        self,
        outcomes: Sequence[Collection[str]],
        pages: Sequence[str] = (),
        may: Sequence[str] = (),
        most_lost: int = 0,
        num_ends: int = 1,
    ) -> Row:
        """The run comes to its end by itself: its segments ended like this, in their order, with at most so many steps
        lost, and people were told `pages` of it, perhaps `may`, and that it is complete, `num_ends` times: after more
        than one end it has another number of steps than the undisturbed run.
        """
        run, row = self._run, self.row
        run.wait(run.is_complete, "it is complete")
        state = run.state
        found = [segment.outcome for segment in state.segments]
        row.seen.append(", ".join(found))
        row.steps_lost = steps_lost(run) - self._lost_before
        row.pause = self._operated.watch.seen.longest_pause(run.name, self.struck_at)
        fits = len(found) == len(outcomes) and all(one in those for one, those in zip(found, outcomes, strict=True))
        row.require(fits, f"its segments ended in {found}, expected {[sorted(one) for one in outcomes]}")
        row.require(row.steps_lost <= most_lost, f"{row.steps_lost} steps lost, expected at most {most_lost}")
        assert state.promoted is not None
        if num_ends == 1:
            same = state.promoted.weights_sha256 == self._operated.weights
            row.require(same, f"weights {state.promoted.weights_sha256[:16]}, expected {self._operated.weights[:16]}")
        self._require_intact()
        flow_runs = run.all_flow_runs()
        try:
            wait_for(partial(run.are_final, flow_runs), "all final", SETTLE_SECONDS)
        except TimeoutError:
            row.wrong.append(f"in the end its flow runs are {run.states(flow_runs)}")
        self._require_told([*pages, *[COMPLETE] * num_ends], may)
        return row

    def _require_intact(self) -> None:
        with self._operated.place.typing:
            audit = call_here(["audit", self._run.address])
        self.row.require(audit.returncode == 0, f"audit: {audit.stdout}{audit.stderr}")

    def _require_told(self, pages: Sequence[str], may: Sequence[str]) -> None:
        """Each page once; what is over is told, too."""
        wanted = Counter(pages)

        def told() -> Counter[str]:
            return Counter(kind_of(text) for text in self._operated.place.told if is_about(text, self._run.name))

        try:
            wait_for(lambda: not wanted - told(), "pages", SETTLE_SECONDS)
        except TimeoutError:
            missing = sorted((wanted - told()).elements())
            self.row.wrong.append(f"nobody was told: {missing}")
        found = told()
        self.row.told += sorted(found.elements())
        more = found - wanted - Counter({kind: found[kind] for kind in may})
        self.row.require(not more, f"people were told, for nothing: {sorted(more.elements())}")
        self._operated.claimed += Counter(text for text in self._operated.place.told if is_about(text, self._run.name))


def require_told(operated: Operated, row: Row, since: int, expected: Sequence[str]) -> None:
    """What was told since then of a store or a server, in this order, and nothing else of them."""

    def told() -> list[str]:
        return [text for text in operated.place.told[since:] if is_of_service(text)]

    def are_there() -> bool:
        return [kind_of(text) for text in told()] == list(expected)

    try:
        wait_for(are_there, "pages of services", STATE_SECONDS)
    except TimeoutError:
        row.wrong.append(f"of services was told: {[kind_of(text) for text in told()]}, expected {list(expected)}")
    row.told += [kind_of(text) for text in told()]
    operated.claimed += Counter(told())


def kind_of(text: str) -> str:
    """'[warning] run-dead', or 'holdfast.segment-lost'."""
    return text.partition(": ")[0]


def is_about(text: str, run: str) -> bool:
    return text.partition(": ")[2].removeprefix("run ") == run


def is_of_service(text: str) -> bool:
    return any(kind in text for kind in ("store-away", "store-refuses", "server-away", "reconciler-silent"))


def steps_lost(run: Run) -> int:
    return sum(segment.steps_lost or 0 for segment in run.state.segments)


def find_ranks(run: str) -> list[psutil.Process]:
    """Those that have not ended: of one that has the system knows no command line."""
    found = psutil.process_iter(["name", "cmdline"])
    return [one for one in found if _is_rank(one) and f"/runs/{run}/" in " ".join(one.info["cmdline"] or [])]


def find_agent(run: str) -> psutil.Process:
    """The one whose ranks train the run."""
    parent = find_ranks(run)[0].parent()
    assert parent is not None
    return parent


def _is_rank(process: psutil.Process) -> bool:
    return (process.info["name"] or "").startswith("hf-rank")


def render(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    head = (
        "| disturbance | expected | seen | steps lost | longest pause, s | states true after, s | told | |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {row.disturbance} | {row.expected} | {'; '.join(row.seen)} | {_figure(row.steps_lost)} | "
        f"{_figure(row.pause)} | {_figure(row.true_after)} | {', '.join(row.told) or 'nothing'} | "
        f"{'**' + _one_line('; '.join(row.wrong)) + '**' if row.wrong else 'right'} |\n"
        for row in rows
    )


def write(rows: Sequence[Row], folder: Path) -> Path:
    (path := folder / "operate.md").write_text(render(rows))
    return path


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
