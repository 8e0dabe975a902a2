"""What a drill is going to do: names of its two runs, the steps at which it kills, and the ranks of each start.

Invariant: a pure function of configuration, seed and what is asked for; only the drill's number depends on the store,
where it is taken once and for all. What cannot be done is refused here, before anything is trained.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from storage.errors import ConfigurationError, ObjectExistsError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from tasks.configuration.run import RunConfig

DRILLS_FOLDER = "drills"
# Ranks report twice a second: a kill that is due later than this would often find the run over.
LAST_SHARE_AIMED_AT = 0.85
LONGEST_DELAY_SECONDS = 0.2


@dataclass(frozen=True)
class DrillPlan:
    """`aims[k]` is the step from which on the k-th start is killed; `world_sizes` are taken in turn.

    After `last_aim` nobody is killed any more.
    """

    run: str
    number: int
    seed: int
    aims: Sequence[int]
    last_aim: int
    world_sizes: Sequence[int]

    @property
    def straight(self) -> str:
        """Name of the run that nothing interrupts."""
        return f"{self.run}-drill-{self.number}-straight"

    @property
    def interrupted(self) -> str:
        """Name of the run that is killed."""
        return f"{self.run}-drill-{self.number}-interrupted"

    @property
    def page_key(self) -> str:
        return f"{DRILLS_FOLDER}/{self.run}-{self.number}.html"

    def delay_seconds(self, aim: int) -> float:
        """A moment to wait when the ranks report the step aimed at: they like to report when a save begins or ends."""
        return random.Random(f"{self.seed} {aim}").uniform(0, LONGEST_DELAY_SECONDS)

    def rank_aim(self, start_index: int) -> int | None:
        """The step from which on one rank of a start alone is killed, in the first half of what the start has to do.

        None for a start with one rank.
        """
        if self.world_size(start_index) == 1:
            return None
        borders = [0, *self.aims, self.last_aim]
        first, end = borders[start_index : start_index + 2]
        return random.Random(f"{self.seed} rank {start_index}").randint(first + 1, max(first + 1, (first + end) // 2))

    def world_size(self, start_index: int) -> int:
        """Ranks of a start, counted from 0."""
        return self.world_sizes[start_index % len(self.world_sizes)]


def plan_drill(config: RunConfig, store: Store, kills: int, world_sizes: str | None, seed: int) -> DrillPlan:
    """Raises `ConfigurationError` for what cannot be done with this configuration."""
    aims = aim_kills(config.train.num_steps, kills, seed)
    sizes = choose_world_sizes(world_sizes, config.train.ranks, config.train.microbatches)
    return DrillPlan(
        run=config.run,
        number=take_number(store, config.run),
        seed=seed,
        aims=aims,
        last_aim=_last_aim(config.train.num_steps),
        world_sizes=sizes,
    )


def take_number(store: Store, run: str) -> int:
    """The first number that no drill of this run has; from now on this one has it, whichever process asks meanwhile."""
    number = 1
    while any(Manifest(store, name).find_head() for name in _names(run, number)) or not _take(store, run, number):
        number += 1
    return number


def _take(store: Store, run: str, number: int) -> bool:
    try:
        store.write_if_absent(f"{DRILLS_FOLDER}/{run}-{number}.json", canonical_json({"run": run, "number": number}))
    except ObjectExistsError:
        return False
    return True


def aim_kills(steps: int, kills: int, seed: int) -> list[int]:
    """A random step in each of `kills` intervals of equal length, which together are most of the run."""
    last = _last_aim(steps)
    if kills > last:
        raise ConfigurationError(
            f"{kills} kills do not fit into train.steps = {steps}: at most {last}, so that each interrupts another "
            "part of the run. Give fewer kills or more steps."
        )
    generator = random.Random(seed)
    borders = [1 + last * index // kills for index in range(kills + 1)]
    return [generator.randrange(first, end) for first, end in pairwise(borders)]


def _last_aim(steps: int) -> int:
    return max(1, int(steps * LAST_SHARE_AIMED_AT))


def choose_world_sizes(text: str | None, ranks: int, microbatches: int) -> list[int]:
    """The sizes in '2,3,1'; if there is no text, two sizes: as many ranks as configured, 2 at least, and half of them.

    Raises `ConfigurationError` for what is no number of ranks or more than there are microbatches.
    """
    if text is None:
        most = min(max(2, ranks), microbatches)
        return [most, most // 2] if most > 1 else [1]
    sizes = [_parse_size(part, text) for part in text.split(",")]
    if max(sizes) > microbatches:
        raise ConfigurationError(
            f"World sizes {text}: train.microbatches = {microbatches}, and each rank needs a microbatch, so "
            f"{max(sizes)} ranks are too many. Give sizes from 1 to {microbatches}, or raise train.microbatches."
        )
    return sizes


def _parse_size(part: str, text: str) -> int:
    if not part.strip().isdecimal() or int(part) < 1:
        raise ConfigurationError(
            f"World sizes are numbers of ranks from 1 on with commas between them, for instance 2,3,1; "
            f"found {part.strip()!r} in {text!r}."
        )
    return int(part)


def _names(run: str, number: int) -> tuple[str, str]:
    plan = DrillPlan(run, number, 0, (), 0, ())
    return plan.straight, plan.interrupted
