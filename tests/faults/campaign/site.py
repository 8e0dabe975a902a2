"""Where a campaign takes place: one small corpus, one store, one Prefect server, and the run that nothing disturbs.

Invariant: every run of a site has the same settings, so that all must come to the weights of that run.
"""

import itertools
import shutil
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.corpora.generate import generate_corpus
from tasks.data.sources.source_file import SETTLED_SECONDS
from tests.helpers.commands import ROOT, Runner
from tests.helpers.fault_plans import FaultPlan

CONFIGURATION = ROOT / "deployments/configs/demo.toml"
STEPS = 60
# Late enough that checkpoints were dropped before it, and early enough that most of the run is still to come.
DEATH_STEP = STEPS // 3
# Small, and yet with all that a run has: validations, checkpoints that are dropped, an evaluation.
SETTINGS: dict[str, Any] = {
    "train__steps": STEPS,
    "train__batch_size": 16,
    "model__width": 16,
    "model__layers": 1,
    "model__heads": 2,
    "model__feedforward": 32,
    "data__vocabulary_size": 300,
    "data__max_tokens": 32,
    "checkpoint__every_steps": 3,
    "checkpoint__keep": 3,
    "validation__every_steps": 30,
    "retry__delay_seconds": 0.1,
    "retry__reread_seconds": 0,
}
CORPUS_ROWS = 600


@dataclass
class Site:
    """Makes runs that differ in nothing but their name, and knows how they must end."""

    folder: Path
    environment: dict[str, str]
    ranks: int = 2
    configuration: Path = CONFIGURATION
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    reference: dict[str, Any] = field(default_factory=dict)
    dead: Runner | None = None
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def prepare(self) -> None:
        """Make the corpus, and let the run go through that nothing disturbs."""
        generate_corpus(self.folder / "corpus", "policy", CORPUS_ROWS)
        # What files look like is kept of settled ones alone. This run keeps it, or the next one would: the one that is
        # traced, and no other, would have points for it.
        time.sleep(SETTLED_SECONDS)
        runner = self.new_run("undisturbed")
        runner.run()
        self.reference = runner.status()

    def new_run(self, name: str, store: Path | str | None = None, **settings: Any) -> Runner:
        """A run that has not begun yet; in a store of its own if one is given."""
        run = f"{name}-{next(self._numbers)}"
        places = {"data__source": self.folder / "corpus", "store": store or self.folder / "store", "run": run}
        settings = {**self.settings, "train__ranks": self.ranks, **settings, **places}
        return Runner(self.configuration, settings, dict(self.environment))

    def new_folder(self, name: str) -> Path:
        """A path that nobody has taken: for a plan, a copy, scratch."""
        return self.folder / "folders" / f"{name}-{next(self._numbers)}"

    def leave_dead(self, runner: Runner) -> None:
        """Leave a run as a machine leaves it that dies in training, if the run has not come so far yet."""
        plan = FaultPlan().kill_at_step(DEATH_STEP, rank=0, death="machine")
        with plan.injected(runner, self.new_folder("left")):
            runner.call("run")

    def new_dead_run(self) -> Runner:
        """A run as `leave_dead` leaves it, copied to a store of its own; it is trained once.

        Its manifest names the place where its ranks had their files, whoever has a copy of it: what they left there is
        put back for each one.
        """
        if self.dead is None:
            self.dead = self.new_run("dead")
            self.leave_dead(self.dead)
        place = Path(self.dead.settings["store"]) / ".tmp/scratch/runs" / self.dead.settings["run"]
        kept = self.folder / "left" / self.dead.settings["run"]
        if kept.exists():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(kept, place)
        else:
            shutil.copytree(place, kept)
        return self._copy(self.dead)

    def copy_undisturbed(self) -> Runner:
        """The undisturbed run in a store of its own, to be damaged or pruned."""
        return self._copy(Runner(self.configuration, {"store": self.folder / "store", "run": self.reference["run"]}))

    def _copy(self, runner: Runner) -> Runner:
        """The run with its data set, copied to a store of its own."""
        run, copy = runner.settings["run"], self.new_folder("copy")
        for kind in (f"runs/{run}", "datasets"):
            shutil.copytree(Path(runner.settings["store"]) / kind, copy / kind)
        copied = self.new_run("copied", copy)
        copied.settings["run"] = run
        return copied

    def find_difference(
        self, runner: Runner, reference: dict[str, Any] | None = None, unused: Collection[str] = ()
    ) -> str | None:
        """What is wrong with a run that was continued to its end, in words; None if it is as if nothing had been.

        `reference` is the status of the run that it must be equal to, if that is not the undisturbed one; `unused` are
        the paths of checkpoints that were made bad.
        """
        status, reference = runner.status(), reference or self.reference
        if status["state"] != "completed":
            return f"the run is {status['state']}"
        expected, found = reference["promoted"], status["promoted"]
        if found["weights_sha256"] != expected["weights_sha256"]:
            return f"weights {found['weights_sha256'][:16]}, expected {expected['weights_sha256'][:16]}"
        if status["metrics"] != reference["metrics"]:
            return f"metrics {status['metrics']}, expected {reference['metrics']}"
        if any(record["path"] not in unused for record in status["quarantined"]):
            return f"a bad checkpoint was found where no file was damaged: {status['quarantined']}"
        for command in ("audit", "verify"):
            checked = runner.call(command)
            if checked.returncode != 0:
                return f"{command}: {checked.stdout}{checked.stderr}"
        return None


def start_logged(runner: Runner, log: Path) -> "subprocess.Popen[bytes]":
    """`holdfast run` in the background; what it prints is added to the log."""
    with log.open("ab") as output:
        return subprocess.Popen(
            runner.line("run"), env=dict(runner.environment), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
