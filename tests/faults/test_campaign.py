"""A sample of the fault campaign, drawn anew each time; `make campaign` does all of it.

In `make test` are those that train nothing: a prune, and damage to a run that is kept.
"""

import random
from collections.abc import Callable

import pytest

from tasks.config.load import load_configuration
from tasks.corpora.generate import generate_corpus
from tests.faults.campaign import chains, damage, network, prune_kills
from tests.faults.campaign.points import Point
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import CONFIGURATION, CORPUS_ROWS, Site
from tests.helpers.prefect_server import clean_environment
from tests.helpers.trained_runs import train_run

NUM_POINTS, NUM_PRUNES, NUM_FLIPS, NUM_CUTS = 1, 1, 40, 15


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> Site:
    """With one rank, which costs half; `make campaign` has two, and several ranks die in `test_interruptions.py`."""
    made = Site(tmp_path_factory.mktemp("site"), prefect_server, ranks=1)
    made.prepare()
    return made


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """With a run that was trained without Prefect: what prunes and damages it asks for no more."""
    made = Site(tmp_path_factory.mktemp("kept"), clean_environment(), ranks=1)
    generate_corpus(made.folder / "corpus", "policy", CORPUS_ROWS)
    # Saves beside training would be overtaken by its last step, and a prune would find nothing to delete.
    undisturbed = made.new_run("undisturbed", checkpoint__background=False, checkpoint__every_steps=10)
    train_run(load_configuration(CONFIGURATION, undisturbed.assignments()))
    made.reference = undisturbed.status()
    return made


@pytest.fixture
def generator() -> random.Random:
    seed = random.randrange(2**32)
    print(f"points of seed {seed}")  # shown when the test fails
    return random.Random(seed)


@pytest.mark.slow
def test_a_machine_that_dies_at_any_operation_costs_nothing(site: Site, generator: random.Random) -> None:
    beginning, continuing = chains.trace_points(site)
    # That these are found shows that the trace sees what decides: a save's files, its index, a commit, a deletion.
    for wanted in ("index.json", "promoted step N", "model.safetensors"):
        assert any(point.moment.operation == "link" and wanted in point.moment.place for point in continuing)
    assert {point.phase for point in continuing} >= {"save", "commit", "deletion", "restore", "validation"}
    drawn = _draw(generator, [*beginning, *continuing], NUM_POINTS)
    first, later = ([point for point in drawn if point in points] for points in (beginning, continuing))
    chain = chains.kill_at_each(site, first, later, death="power")
    assert chain.problems == [] and chain.never_met == []
    assert [point.signature for point in chain.killed] == [point.signature for point in drawn]


@pytest.mark.slow
def test_a_run_over_a_bucket_that_fails_for_a_moment_is_as_if_nothing_had_been(site: Site) -> None:
    with network.running_bucket(site) as bucket:
        attempt = network.meet(site, bucket, network.NETWORK_FAULTS[0])
    assert (attempt.fired, attempt.verdict) == (1, "equal"), attempt.note


def test_a_prune_that_is_cut_off_is_finished_by_the_next_one(kept: Site, generator: random.Random) -> None:
    points = prune_kills.trace_prune(kept)
    assert {point.moment.operation for point in points} >= {"link", "fsync", "unlink", "rmdir"}
    attempt = prune_kills.kill_at_each(kept, _draw(generator, points, NUM_PRUNES))
    assert (attempt.fired, attempt.verdict, attempt.note) == (NUM_PRUNES, "equal", "")


@pytest.mark.parametrize(("cause", "count"), [(damage.flip_bits, NUM_FLIPS), (damage.cut_short, NUM_CUTS)])
def test_every_damaged_file_of_a_kept_run_is_noticed(
    kept: Site, generator: random.Random, cause: Callable[..., Attempt], count: int
) -> None:
    attempt = cause(kept, generator, count)
    assert attempt.verdict == "clear error", attempt.note


def _draw(generator: random.Random, points: list[Point], count: int) -> list[Point]:
    """So many of them, in the order in which a command comes to them."""
    return [points[index] for index in sorted(generator.sample(range(len(points)), count))]
