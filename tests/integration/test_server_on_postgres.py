"""A server as it is operated: Prefect on PostgreSQL, a worker, the deployments."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.reconciling.reconciler import ServerWatch
from tests.helpers.commands import wait_until
from tests.helpers.operators import ENDED, PREFECT, operating, working
from tests.helpers.postgres_server import PACKAGE, Postgres, find_programs, made_postgres
from tests.helpers.prefect_server import running_prefect_server
from tests.helpers.reconciled import LOOK_SECONDS, LOOKS_UNTIL_DEAD, Clock

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        find_programs() is None, reason=f"PostgreSQL is not installed; on Debian 12: apt-get install {PACKAGE}"
    ),
]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with made_postgres() as postgres:
        yield postgres


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What an operator deploys from."""
    folder = tmp_path / "operator"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of the Prefect server."""
    home = tmp_path / "prefect"
    home.mkdir()
    return home


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_flow_run_begins_by_the_schedule_is_cancelled_and_resume_goes_on_to_the_end(
    postgres: Postgres, folder: Path, home: Path
) -> None:
    with (
        postgres.serving(),
        running_prefect_server(home, database=postgres.url) as server,
        operating(folder, server) as operator,
        working(operator, PREFECT, server, folder),
    ):
        operator.begin_by_itself("scheduled/train", configuration="tiny.toml")
        operator.wait(lambda: bool(operator.running("scheduled/train")))
        operator.rest("scheduled/train")
        (flow_run,) = operator.running("scheduled/train")
        operator.wait(lambda: operator.segment_has_saved(1))
        operator.cancel(flow_run)
        operator.wait(lambda: operator.states(flow_run)[-1]["type"] in ENDED)
        for one in (flow_run, training := operator.find_training(flow_run)):
            assert operator.states(one)[-1]["type"] == "CANCELLED", operator.worker_log.read_text()
        operator.wait(lambda: set(operator.steps(training).values()) <= set(ENDED))
        (segment,) = operator.state().segments
        assert (segment.outcome, segment.steps_lost) == ("preempted", 0)

        steps = segment.last_step + 40
        resumed = operator.run("resume/resume", store="store", run="tiny", steps=steps)
        assert resumed["state"]["type"] == "COMPLETED", operator.worker_log.read_text()
        assert operator.state().is_complete
        assert operator.state().segments[-1].first_step == segment.last_step
    assert not (home / "prefect.db").exists()  # all of this stood in PostgreSQL


@pytest.mark.slow
def test_a_server_whose_database_is_away_counts_as_away_for_the_reconciler(postgres: Postgres, home: Path) -> None:
    clock = Clock()
    with ExitStack() as database:
        database.enter_context(postgres.serving())
        with (
            running_prefect_server(home, database=postgres.url) as server,
            temporary_settings({PREFECT_API_URL: server["PREFECT_API_URL"]}),
        ):
            watch = ServerWatch(clock)
            watch.look()
            assert watch.pages() == {}
            database.close()
            watch.look()
            clock.now += LOOK_SECONDS * LOOKS_UNTIL_DEAD
            assert set(watch.pages()) == {"server-away"}
            with postgres.serving():
                wait_until(partial(finds_no_page, watch))


def finds_no_page(watch: ServerWatch) -> bool:
    watch.look()
    return watch.pages() == {}
