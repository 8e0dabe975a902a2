"""How a server of Prefect's is begun in a process that we have started, and what its database has. Imports no Prefect.

`prefect server start` loads more, listens to signals later, and leaves the server behind when it is killed.
"""

import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

USES = (
    "prefect.server.api.server.create_app",
    "prefect.server.api.server.API_ROUTERS",
    "prefect.server.database alembic_version",
)

# Loaded without a search for garbage, of which there is hardly any: a sixth of the processor time. And before uvicorn
# listens to signals: a command that ends at once, by a mistake in its configuration, need not wait for it. FastAPI
# looks for a request's route in one router after the other, and makes the routes of each when it first does: what a run
# asks for comes first, and most of the others are never made.
ASKED_FIRST = ("/flows", "/flow_runs", "/artifacts", "/csrf-token", "/events", "/admin")
SERVE = f"""
import gc
gc.disable()
import prefect.server.api.server as server
server.API_ROUTERS = tuple(sorted(server.API_ROUTERS, key=lambda router: router.prefix not in {ASKED_FIRST}))
gc.freeze()
gc.enable()
from uvicorn.main import main
main()
"""
APPLICATION = "prefect.server.api.server:create_app"


def serving(port: int) -> list[str]:
    """The command that is a server on this port of 127.0.0.1, for as long as it lives.

    Uses `create_app`, as `prefect server start` does, and changes the order of `API_ROUTERS`. There is no public way to
    have the server in a process of one's own. If `create_app` goes, no local server starts, and the command ends with
    that error; if `API_ROUTERS` goes, too.
    """
    arguments = ["--factory", APPLICATION, "--host", "127.0.0.1", "--lifespan", "on"]
    return [sys.executable, "-c", SERVE, *arguments, "--port", str(port), "--log-level", "error"]


def is_whole(database: Path) -> bool:
    """Whether SQLite finds no damage, and the tables were made to the end: nobody looks at them later.

    Reads the table `alembic_version` of Prefect's database, whose row is written when all tables are there. Prefect
    tells only a server that is running. If it goes, no empty database is used again, and each start makes its tables.
    """
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        found = connection.execute("pragma quick_check").fetchall()
        return found == [("ok",)] and bool(connection.execute("select version_num from alembic_version").fetchall())
    return False
