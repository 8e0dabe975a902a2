"""What a kill costs where ranks are on several nodes, and what the pause is made of: see `bench_survivors.py`.

The nodes are processes of this machine with a store in a folder, so all files have one clock. The parts of a pause:
until the agent of a rank sees its end (from there on it counts the age of the next view); until the first node has read
that view in the store, and has it in its folder; until the last one has it; and until the members have met, caught up,
and train on, on all nodes.
"""

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storage.runs.segments import find_outcome, segment_path
from tests.helpers.dying_nodes import dying_nodes
from tests.helpers.elastic_runs import Runs
from tests.helpers.nodes import Nodes, running_nodes, spec_of_nodes
from tests.helpers.survivors import newest_complete, train_as_far
from training.views.account import all_views
from training.views.stored import FOLDER_NAME, StoredViews

MOST_MOMENTS_SECONDS = 1.0
# A busy machine is not silent.
SILENT_SECONDS = 120


class Pause(NamedTuple):
    """Of one kill, in seconds: all of it, and its parts."""

    pause: float
    seen: float
    decided: float
    told: float
    met: float


def measure(runs: Runs, train: dict[str, Any], num_nodes: int, num_ranks: int, num_kills: int) -> None:
    """Kill so many ranks of so many nodes, and print what came of it."""
    made = spec_of_nodes(runs.next_spec(num_ranks, **train), Path(runs.store.address).parent / "scratch", num_nodes)
    names = [f"n{number}" for number in range(1, num_nodes + 1)]
    output = made.scratch_folder.parent / "output"
    output.mkdir(parents=True)
    with dying_nodes(), running_nodes(made, runs.store, names, output, silent_seconds=SILENT_SECONDS) as nodes:
        killed_at = kill(nodes, num_ranks, num_kills)
        pauses = find_pauses(nodes, killed_at)
        for name in names:
            nodes.stop(name)
        codes = nodes.wait()
        outcome = find_outcome(runs.store, made.run, made.fence)
        assert outcome is not None and set(codes.values()) == {0}, nodes.read_output()
    load = os.getloadavg()[0]
    found = runs.newest_of(made)
    is_same = found.index.files == train_as_far(found, runs, **train)[found.index.step].index.files
    print(
        f"{len(pauses)} kills of {num_ranks} ranks on {num_nodes} nodes in {outcome.last_step:,} steps and "
        f"{outcome.seconds:.0f} s; a checkpoint was read: {'restore' in outcome.phases}; load {load:.1f}."
    )
    figures: dict[str, float] = {"kills": len(pauses), "is_same": is_same}
    for name, values in zip(Pause._fields, zip(*pauses, strict=True), strict=True):
        figures |= {name: statistics.median(values), f"{name}_p95": quantile(values)}
    print(" ".join(f"{name}={value:.4g}" for name, value in figures.items()))


def kill(nodes: Nodes, num_ranks: int, num_kills: int) -> dict[int, float]:
    """Kill so often, each time some moments after nobody was missing any more; when, by the process that was killed.

    Returns when nobody is missing.
    """
    views, before = nodes.views(nodes.names[0]), -1
    killed_at: dict[int, float] = {}

    def is_complete() -> bool:
        number = newest_complete(views, num_ranks)
        return number is not None and number != before

    while True:
        nodes.wait_until(is_complete)
        if len(killed_at) == num_kills:
            return killed_at
        before = newest_complete(views, num_ranks) or 0
        time.sleep(random.uniform(0, MOST_MOMENTS_SECONDS))  # the moment within a step is to be any
        victim = random.choice([rank for name in nodes.names for rank in nodes.ranks(name)])
        killed_at[victim.pid] = time.time()
        os.kill(victim.pid, signal.SIGKILL)


def quantile(values: Sequence[float]) -> float:
    """Of which 95 in a hundred are no more."""
    return sorted(values)[int(0.95 * (len(values) - 1))]


def find_pauses(nodes: Nodes, killed_at: dict[int, float]) -> list[Pause]:
    """What came of each kill, while the nodes have their folders."""
    views = [nodes.views(name) for name in nodes.names]

    def times_of(name: str) -> list[float]:
        """When this file was written on each node."""
        return [(nodes.folder(node) / FOLDER_NAME / name).stat().st_mtime for node in nodes.names]

    pauses = []
    for number, pid, seen in _deaths(nodes):
        at, known = killed_at[pid], times_of(f"{number:06d}.json")
        going_in = next(later for later in range(number, 10**6) if views[0].find_going(later) is not None)
        going = max(times_of(views[0].going_file(going_in).name))
        pauses.append(Pause(going - at, seen - at, min(known) - seen, max(known) - min(known), going - max(known)))
    return pauses


def _deaths(nodes: Nodes) -> Iterator[tuple[int, int, float]]:
    """The view without it, the process, and when its agent saw its end, of each rank that died."""
    spec = nodes.spec
    folder = Path(spec.store) / segment_path(spec.run, spec.fence) / FOLDER_NAME
    for view, _ in all_views(StoredViews(spec.open_store(), spec.run, spec.fence)):
        file = folder / f"{view.number:06d}.json"
        seconds_old = json.loads(file.read_text())["seconds_old"]
        yield from ((view.number, lost.pid, file.stat().st_mtime - seconds_old) for lost in view.lost)
