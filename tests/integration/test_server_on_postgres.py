"""A server as it is operated: Prefect on PostgreSQL, a worker, the deployments."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.operators import ENDED, PREFECT, operating, working
from tests.helpers.postgres_server import PACKAGE, Postgres, find_programs, made_postgres
from tests.helpers.prefect_server import running_prefect_server

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
