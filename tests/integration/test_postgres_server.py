"""The PostgreSQL of the tests: whoever uses it can rely on what it does when it is killed."""

import asyncio
import os

import asyncpg
import psutil
import pytest

from tests.helpers.commands import kill_everything, processes_mentioning
from tests.helpers.postgres_server import DATABASE, HOST, PACKAGE, USER, Postgres, find_programs, made_postgres

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        find_programs() is None, reason=f"PostgreSQL is not installed; on Debian 12: apt-get install {PACKAGE}"
    ),
]


def test_a_server_that_is_killed_is_served_again_with_what_it_had_and_nothing_of_it_stays() -> None:
    with made_postgres() as postgres:
        with postgres.serving() as server:
            ask(postgres, "create table kept (number int)")
            ask(postgres, "insert into kept values (17)")
            if os.getuid() == 0:
                assert psutil.Process(server.pid).username() == "nobody"
            kill_everything(server)
        with postgres.serving():
            assert ask(postgres, "select number from kept") == [17]
    assert not postgres.folder.exists()
    assert processes_mentioning(str(postgres.folder)) == []


def ask(postgres: Postgres, statement: str) -> list[object]:
    """The first column of all rows, by the driver that Prefect's server uses."""

    async def fetch() -> list[object]:
        connection = await asyncpg.connect(host=HOST, port=postgres.port, user=USER, database=DATABASE)
        try:
            return [row[0] for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(fetch())
