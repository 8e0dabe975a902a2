"""`holdfast drill`: the product's promise, put to the test on the user's own data and configuration.

Invariant: does nothing that a user could not do. It trains two runs by the command `holdfast run`, kills all processes
of one of them with SIGKILL, starts the same command again, and compares what the two left in the store.
"""

import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.audit import audit_with_display
from flows.commands.ending import ending_in_order
from flows.commands.started_run import StartedRun
from storage.checkpoints.tensor_files import weights_distance
from storage.errors import ConfigurationError
from storage.objects.addresses import check_writable
from tasks.configuration import RunConfig
from tasks.data.pipeline import prepare_dataset
from tasks.drills.comparison import Comparison, Kill, describe_comparison, describe_run, find_hits
from tasks.drills.ledger_difference import compare_ledgers
from tasks.drills.page import findings_table, render_drill_page
from tasks.drills.plan import DrillPlan, plan_drill
from tasks.drills.records import read_trained_run
from tasks.drills.words import Finding, judge_drill, list_findings
from tasks.pages.tables import show_table
from tasks.pages.words import count_of, duration
from tasks.places import RunPlaces, open_places, require_scratch
from tasks.running.following import RunFollower
from tasks.running.gpus import count_gpus
from tasks.settings.reading import load_configuration
from tasks.telling.display import PreparationDisplay, SegmentDisplay
from tasks.telling.messages import show_messages
from tasks.telling.terminal import console
from training.watching.reporter import Report

POLL_SECONDS = 0.05
# Processes are killed, which one can do to those of this machine.
STEPS = 1000
ON_THIS_MACHINE = ("cluster.kind=local", "cluster.nodes=1")


def drill_run(
    configuration: Path, assignments: Sequence[str], kills: int, world_sizes: str | None, seed: int | None
) -> dict[str, Any]:
    """The drill from the first command to the page; its result, JSON-able. Raises `HoldfastError`.

    Exits with 128 plus the signal's number when asked to stop: what was being trained is stopped in good order then.
    """
    show_messages()
    with ending_in_order():
        return Drill(configuration, assignments, kills, world_sizes, seed, say=_say).run()


class Drill:
    """One drill under way: what its phases share."""

    def __init__(
        self,
        configuration: Path,
        assignments: Sequence[str],
        kills: int,
        world_sizes: str | None,
        seed: int | None,
        say: Callable[[str], None],
    ) -> None:
        """`say` gets a sentence about each thing that happens. Raises `HoldfastError` for what cannot be done."""
        self._say = say
        self.configuration = configuration
        is_here = load_configuration(configuration, assignments).cluster.kind == "local"
        self.assignments = assignments if is_here else [*assignments, *ON_THIS_MACHINE]
        self.config = load_configuration(configuration, self.assignments)
        if self.config.train.steps is None:  # kills are aimed before the rows are counted
            self.assignments = [*self.assignments, f"train.steps={STEPS}"]
            self.config = load_configuration(configuration, self.assignments)
        self.places = open_places(self.config)
        seed = secrets.randbelow(2**32) if seed is None else seed
        self.plan: DrillPlan = plan_drill(self.config, self.places.store, kills, world_sizes, seed)
        can_share = self.config.train.device != "cpu" and max(self.plan.world_sizes) > 1
        self.num_gpus = count_gpus() if can_share else 0

    def run(self) -> dict[str, Any]:
        """Train, kill, compare; the result, JSON-able. Raises `HoldfastError`."""
        plan = self.plan
        for name in (plan.straight, plan.interrupted):
            # A name that is too long is better refused now than after an hour.
            places = open_places(self._configure(name))
            # What a drill of the same name left here, whose runs were removed since, would pass for news of this one.
            shutil.rmtree(places.scratch, ignore_errors=True)
        aims = ", ".join(f"{step:,}" for step in plan.aims)
        self._say(f"Drill {plan.number} of {plan.run}, seed {plan.seed}: kills are planned from step {aims} on.")
        self._say("1. Preparing the data set that both runs use.")
        self._prepare()
        self._say(f"2. Training {plan.straight}, which nothing interrupts, on {_ranks(self.config.train.ranks)}.")
        self._train_straight()
        self._say(f"3. Training {plan.interrupted}.")
        kills = self._train_interrupted()
        self._say("4. Comparing the two: audits and ledgers, weights, losses, metrics.")
        return self._conclude(kills)

    def _prepare(self) -> None:
        check_writable(self.places.store)
        require_scratch(self.places)
        with PreparationDisplay() as display:
            prepare_dataset(self.config.data, self.places.store, self.places.data_scratch, display.show)

    def _train_straight(self) -> None:
        began = time.monotonic()
        self._start(self.plan.straight, self.config.train.ranks, aim=None)
        self._say(f"   {count_of(self.config.train.num_steps, 'step')} in {duration(time.monotonic() - began)}.")

    def _train_interrupted(self) -> list[Kill]:
        """Start again until the run is complete, killing each start that has an aim."""
        kills: list[Kill] = []
        for index, aim in enumerate([*self.plan.aims, None]):
            world_size = self.plan.world_size(index)
            kill = self._start(self.plan.interrupted, world_size, aim)
            ending = "trained to the last step" if kill is None else f"killed at step {kill.step:,}"
            self._say(f"   Start {index + 1} on {_ranks(world_size)}: {ending}.")
            if kill is None:
                break
            kills.append(kill)
        return kills

    def _start(self, run: str, world_size: int, aim: int | None) -> Kill | None:
        """Run the command to its end, or kill it at the first sign that it has trained step `aim` or a later one."""
        config = self._configure(run, world_size)
        places = open_places(config)
        follower = RunFollower(places)
        with (
            StartedRun(self.configuration, self._assign(run, world_size)) as process,
            SegmentDisplay(config, _resume_step(places)) as display,
        ):
            while process.is_running(POLL_SECONDS):
                for report in follower.read():
                    display.show(report)
                    if report.checkpoint is not None:
                        display.saved(report.checkpoint.step)
                    if aim is not None and _is_met(aim, report, follower):
                        process.is_running(self.plan.delay_seconds(aim))
                        process.kill()
                        last_step = max(later.step for later in [report, *follower.read()])
                        return Kill(aim, last_step, world_size, follower.fence or 0)
            process.require_success()
        return None

    def _conclude(self, kills: list[Kill]) -> dict[str, Any]:
        comparison = self._compare()
        hits = find_hits(kills, comparison.interrupted)
        if not hits and comparison.holds:
            raise ConfigurationError(
                "No kill took effect: the run ended before the first one was due, so nothing was tested. "
                "Give more steps (train.steps) or fewer kills."
            )
        command = self._command()
        page = render_drill_page(self.plan, comparison, hits, command)
        self.places.store.write(self.plan.page_key, page.encode())
        return {
            "ok": comparison.holds,
            "exact": comparison.exact,
            "seed": self.plan.seed,
            "runs": {
                "straight": describe_run(comparison.straight),
                "interrupted": describe_run(comparison.interrupted),
            },
            "kills_planned": len(self.plan.aims),
            "kills": [asdict(kill) for kill in hits],
            "comparison": describe_comparison(comparison),
            "findings": [asdict(finding) for finding in list_findings(comparison)],
            "verdict": asdict(judge_drill(self.plan, comparison, hits)),
            "page": f"{self.places.store.address}/{self.plan.page_key}",
            "command": command,
        }

    def _compare(self) -> Comparison:
        store, memory_limit = self.places.store, self.config.data.memory_limit
        straight, interrupted = (
            read_trained_run(store, run, audit_with_display(store, run))
            for run in (self.plan.straight, self.plan.interrupted)
        )
        scratch = self.places.data_scratch
        return Comparison(
            exact=self.config.train.sum == "exact",
            straight=straight,
            interrupted=interrupted,
            ledgers=compare_ledgers(store, straight.ledger, interrupted.ledger, memory_limit, scratch),
            distance=weights_distance(straight.model, interrupted.model),
        )

    def _configure(self, run: str, world_size: int | None = None) -> RunConfig:
        return load_configuration(self.configuration, self._assign(run, world_size or self.config.train.ranks))

    def _assign(self, run: str, world_size: int) -> list[str]:
        shared = ["train.share_gpus=true"] if 0 < self.num_gpus < world_size and run == self.plan.interrupted else []
        # A drill's runs are nobody's experiments.
        return [*self.assignments, "tracking={}", f"run={run}", f"train.ranks={world_size}", *shared]

    def _command(self) -> str:
        """What makes the same drill again."""
        settings = [part for assignment in self.assignments for part in ("--set", assignment)]
        sizes = ",".join(map(str, self.plan.world_sizes))
        options = ["--kills", str(len(self.plan.aims)), "--world-sizes", sizes, "--seed", str(self.plan.seed)]
        return shlex.join(["holdfast", "drill", str(self.configuration), *settings, *options])


def render_drill(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    table = show_table(findings_table([Finding(**finding) for finding in result["findings"]]))
    verdict = result["verdict"]
    badge = Text(verdict["badge"], "bold green" if result["ok"] else "bold red")
    # On one line however narrow the terminal is, so that it can be copied.
    page = Text(f"page {result['page']}", no_wrap=True, overflow="ignore")
    return Group(table, Text(), badge, Text(verdict["headline"]), *map(Text, verdict["remarks"]), page)


def _resume_step(places: RunPlaces) -> int:
    head = places.manifest.find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def _is_met(aim: int, report: Report, follower: RunFollower) -> bool:
    """Whether the ranks are in the middle of it: at least one step of this very segment was trained."""
    return follower.first_step is not None and report.step > follower.first_step and report.step >= aim


def _ranks(number: int) -> str:
    return count_of(number, "rank")


def _say(text: str) -> None:
    console.print(text, style="cyan", soft_wrap=True)
