"""`holdfast drill`: the product's promise, put to the test on the user's own data and configuration.

Invariant: does nothing that a user could not do. It trains two runs by the command `holdfast run`, kills all processes
of one of them with SIGKILL, starts the same command again, and compares what the two left in the store.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, ConfigurationArgument, read_configuration
from flows.commands.audit import audit_with_display
from flows.commands.results import ending_in_order, print_result
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import secrets

    import storage.checkpoints.tensor_files as tensor_files
    import storage.objects.addresses as addresses
    import tasks.config.load as settings
    import tasks.console.display as displays
    import tasks.console.messages as messages
    import tasks.console.tables as tables
    import tasks.data.pipeline as pipeline
    import tasks.drills.comparison as comparing
    import tasks.drills.ledger_difference as ledger_difference
    import tasks.drills.page as drill_page
    import tasks.drills.plan as planning
    import tasks.drills.rank_kills as rank_kills
    import tasks.drills.records as records
    import tasks.drills.started_run as started_run
    import tasks.drills.words as drill_words
    import tasks.models.pretrained as pretrained
    import tasks.run_paths as run_folders
    import tasks.supervision.following as following
    import tasks.supervision.gpus as gpus
    import tasks.text as words

if TYPE_CHECKING:
    from tasks.configuration.run import RunConfig
    from tasks.run_paths import RunPaths
    from training.metrics.reporter import Report


POLL_SECONDS = 0.05
# Processes are killed, which one can do to those of this machine.
STEPS = 1000
ON_THIS_MACHINE = ("cluster.kind=local", "cluster.nodes=1")


def drill(
    configuration: ConfigurationArgument,
    assignments: Assignments = None,
    kills: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="How often the second run is killed, at steps spread over the run."),
    ] = 3,
    world_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Numbers of ranks for the second run's starts, each at most train.microbatches. Default: the "
            "configured number but at least 2, and half of it. Where there are fewer GPUs, ranks share them.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Decides at which steps to kill. Default: random.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test on your own data that interruptions change nothing.

    Two runs are trained. One is not interrupted; the other is killed with SIGKILL and started again on another number
    of ranks, several times. Each time that it has several ranks, one of them is killed alone before. Then samples,
    weights, losses and metrics are compared. Your own run is not touched. The two runs and a page with the verdict stay
    in the store: runs/RUN-drill-1-straight, runs/RUN-drill-1-interrupted and drills/RUN-1.html, with 2 for the second
    drill.

    All ranks are processes of this machine, also where cluster.kind names a cluster.

    Exit code 0 if the two agree, 1 if not. With train.sum = 'fast' only the samples decide; how far apart weights and
    metrics are is reported.
    """
    read_configuration(configuration, assignments or [])
    found = drill_run(configuration, assignments or [], kills, world_sizes, seed)
    print_result(found, as_json, render_drill)
    if not found["ok"]:
        raise typer.Exit(1)


def drill_run(
    configuration: Path, assignments: Sequence[str], kills: int, world_sizes: str | None, seed: int | None
) -> dict[str, Any]:
    """The drill from the first command to the page; its result, JSON-able. Raises `HoldfastError`.

    Exits with 128 plus the signal's number when asked to stop: what was being trained is stopped in good order then.
    """
    messages.show_messages()
    with ending_in_order():
        return Drill(configuration, assignments, kills, world_sizes, seed, report=_print_progress).run()


class Drill:
    """One drill under way: what its phases share."""

    def __init__(
        self,
        configuration: Path,
        assignments: Sequence[str],
        kills: int,
        world_sizes: str | None,
        seed: int | None,
        report: Callable[[str], None],
    ) -> None:
        """`report` gets a sentence about each thing that happens. Raises `HoldfastError` for what cannot be done."""
        self._report = report
        self.configuration = configuration
        is_here = settings.load_configuration(configuration, assignments).cluster.kind == "local"
        self.assignments = assignments if is_here else [*assignments, *ON_THIS_MACHINE]
        self.config = settings.load_configuration(configuration, self.assignments)
        if self.config.train.steps is None:  # kills are aimed before the rows are counted
            self.assignments = [*self.assignments, f"train.steps={STEPS}"]
            self.config = settings.load_configuration(configuration, self.assignments)
        self.run_paths = run_folders.open_run_paths(self.config)
        seed = secrets.randbelow(2**32) if seed is None else seed
        self.plan: planning.DrillPlan = planning.plan_drill(self.config, self.run_paths.store, kills, world_sizes, seed)
        can_share = self.config.train.device != "cpu" and max(self.plan.world_sizes) > 1
        self.num_gpus = gpus.count_gpus() if can_share else 0
        self.rank_kills: list[rank_kills.RankKill] = []

    def run(self) -> dict[str, Any]:
        """Train, kill, compare; the result, JSON-able. Raises `HoldfastError`."""
        plan = self.plan
        for name in (plan.straight, plan.interrupted):
            # A name that is too long is better refused now than after an hour.
            run_paths = run_folders.open_run_paths(self._configure(name))
            # What a drill of the same name left here, whose runs were removed since, would pass for news of this one.
            shutil.rmtree(run_paths.scratch, ignore_errors=True)
        aims = ", ".join(f"{step:,}" for step in plan.aims)
        self._report(f"Drill {plan.number} of {plan.run}, seed {plan.seed}: kills are planned from step {aims} on.")
        self._report("1. Preparing the data set that both runs use.")
        self._prepare()
        self._report(f"2. Training {plan.straight}, which nothing interrupts, on {_ranks(self.config.train.ranks)}.")
        self._train_straight()
        self._report(f"3. Training {plan.interrupted}.")
        kills = self._train_interrupted()
        self._report("4. Comparing the two: audits and ledgers, weights, losses, metrics.")
        return self._conclude(kills)

    def _prepare(self) -> None:
        addresses.check_writable(self.run_paths.store)
        run_folders.require_scratch(self.run_paths)
        with displays.PreparationDisplay() as display:
            data = pretrained.pin_model(self.config).data
            pipeline.prepare_dataset(data, self.run_paths.store, self.run_paths.data_scratch, display.show)

    def _train_straight(self) -> None:
        began = time.monotonic()
        self._start(self.plan.straight, self.config.train.ranks)
        self._report(
            f"   {words.count_of(self.config.train.num_steps, 'step')} in {words.duration(time.monotonic() - began)}."
        )

    def _train_interrupted(self) -> list[comparing.Kill]:
        """Start again until the run is complete, killing each start that has an aim."""
        kills: list[comparing.Kill] = []
        for index, aim in enumerate([*self.plan.aims, None]):
            world_size = self.plan.world_size(index)
            kill = self._start(self.plan.interrupted, world_size, aim, self.plan.rank_aim(index))
            ending = "trained to the last step" if kill is None else f"killed at step {kill.step:,}"
            self._report(f"   Start {index + 1} on {_ranks(world_size)}: {ending}.")
            if kill is None:
                break
            kills.append(kill)
        return kills

    def _start(
        self, run: str, world_size: int, aim: int | None = None, rank_aim: int | None = None
    ) -> comparing.Kill | None:
        """Run the command to its end, or kill it at the first sign that it has trained step `aim` or a later one.

        From step `rank_aim` on one rank alone is killed before, and then it is seen how the run goes on.
        """
        config = self._configure(run, world_size)
        run_paths = run_folders.open_run_paths(config)
        follower = following.RunFollower(run_paths)
        one_rank = rank_kills.RankKiller(follower, run_paths, world_size, rank_aim)
        with (
            started_run.StartedRun(self.configuration, self._assign(run, world_size)) as process,
            displays.SegmentDisplay(config, _resume_step(run_paths)) as display,
        ):
            while process.is_running(POLL_SECONDS):
                for report in follower.read():
                    display.show(report)
                    if report.checkpoint is not None:
                        display.saved(report.checkpoint.step)
                    one_rank.see(report)
                    if aim is not None and _is_met(aim, report, follower) and not one_rank.is_waiting:
                        self._keep(one_rank)
                        process.is_running(self.plan.delay_seconds(aim))
                        process.kill()
                        last_step = max(later.step for later in [report, *follower.read()])
                        return comparing.Kill(aim, last_step, world_size, follower.fence or 0)
            process.require_success()
        one_rank.end()
        self._keep(one_rank)
        return None

    def _keep(self, one_rank: rank_kills.RankKiller) -> None:
        if (kill := one_rank.kill) is not None:
            self.rank_kills.append(kill)
            how = "the others trained on" if kill.trained_on else "the segment ended"
            self._report(f"   Rank {kill.rank} alone was killed at step {kill.step:,}: {how}.")

    def _conclude(self, kills: list[comparing.Kill]) -> dict[str, Any]:
        comparison = self._compare()
        hits = comparing.find_hits(kills, comparison.interrupted)
        if not hits and not self.rank_kills and comparison.holds:
            raise ConfigurationError(
                "No kill took effect: the run ended before the first one was due, so nothing was tested. "
                "Give more steps (train.steps) or fewer kills."
            )
        command = self._command()
        page = drill_page.render_drill_page(self.plan, comparison, hits, command, self.rank_kills)
        self.run_paths.store.write(self.plan.page_key, page.encode())
        return {
            "ok": comparison.holds,
            "exact": comparison.exact,
            "seed": self.plan.seed,
            "runs": {
                "straight": comparing.describe_run(comparison.straight),
                "interrupted": comparing.describe_run(comparison.interrupted),
            },
            "kills_planned": len(self.plan.aims),
            "kills": [asdict(kill) for kill in hits],
            "rank_kills": [asdict(kill) for kill in self.rank_kills],
            "comparison": comparing.describe_comparison(comparison),
            "findings": [asdict(finding) for finding in drill_words.list_findings(comparison)],
            "verdict": asdict(drill_words.drill_verdict(self.plan, comparison, hits, self.rank_kills)),
            "page": f"{self.run_paths.store.address}/{self.plan.page_key}",
            "command": command,
        }

    def _compare(self) -> comparing.Comparison:
        store, memory_limit = self.run_paths.store, self.config.data.memory_limit
        straight, interrupted = (
            records.read_trained_run(store, run, audit_with_display(store, run))
            for run in (self.plan.straight, self.plan.interrupted)
        )
        scratch = self.run_paths.data_scratch
        return comparing.Comparison(
            exact=self.config.train.sum == "exact",
            straight=straight,
            interrupted=interrupted,
            ledgers=ledger_difference.compare_ledgers(
                store, straight.ledger, interrupted.ledger, memory_limit, scratch
            ),
            distance=tensor_files.weights_distance(straight.model, interrupted.model),
        )

    def _configure(self, run: str, world_size: int | None = None) -> RunConfig:
        return settings.load_configuration(self.configuration, self._assign(run, world_size or self.config.train.ranks))

    def _assign(self, run: str, world_size: int) -> list[str]:
        shared = ["train.share_gpus=true"] if 0 < self.num_gpus < world_size and run == self.plan.interrupted else []
        # Where a rank's death ends its segment, the run has to go on by itself.
        retried = [] if self.config.retry.attempts else ["retry.attempts=1"]
        # A drill's runs are no experiments to track.
        return [*self.assignments, "tracking={}", f"run={run}", f"train.ranks={world_size}", *retried, *shared]

    def _command(self) -> str:
        """What makes the same drill again."""
        settings = [part for assignment in self.assignments for part in ("--set", assignment)]
        sizes = ",".join(map(str, self.plan.world_sizes))
        options = ["--kills", str(len(self.plan.aims)), "--world-sizes", sizes, "--seed", str(self.plan.seed)]
        return shlex.join(["holdfast", "drill", str(self.configuration), *settings, *options])


def render_drill(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    table = tables.show_table(
        drill_page.findings_table([drill_words.Finding(**finding) for finding in result["findings"]])
    )
    verdict = result["verdict"]
    badge = Text(verdict["badge"], "bold green" if result["ok"] else "bold red")
    # On one line however narrow the terminal is, so that it can be copied.
    page = Text(f"page {result['page']}", no_wrap=True, overflow="ignore")
    return Group(table, Text(), badge, Text(verdict["headline"]), *map(Text, verdict["remarks"]), page)


def _resume_step(run_paths: RunPaths) -> int:
    head = run_paths.manifest.find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def _is_met(aim: int, report: Report, follower: following.RunFollower) -> bool:
    """Whether the ranks are in the middle of it: at least one step of this very segment was trained."""
    return follower.first_step is not None and report.step > follower.first_step and report.step >= aim


def _ranks(number: int) -> str:
    return words.count_of(number, "rank")


def _print_progress(text: str) -> None:
    console.print(text, style="cyan", soft_wrap=True)
