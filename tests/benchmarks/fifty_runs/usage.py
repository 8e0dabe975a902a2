"""What was asked of the server and what came of it between two moments: requests, rows, bytes, processor time.

Invariant: rows are those that PostgreSQL counted as inserted and updated: what was deleted meanwhile counts, too.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from storage.processors import count_processors
from tests.helpers.cpu_times import measure_family
from tests.helpers.postgres_server import DATABASE, HOST, USER, Postgres

REQUEST = re.compile(rb'"([A-Z]+) (/\S*) HTTP/[\d.]+"')
# What differs from one request of a kind to the next.
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NAMED = re.compile(r"(/name|/key)/.*")
TABLES = """
    SELECT relname AS name, n_tup_ins AS inserted, n_tup_upd AS updated, pg_total_relation_size(relid) AS num_bytes
    FROM pg_stat_user_tables
"""
ENDS = "SELECT state_name AS name, count(*) AS number FROM flow_run WHERE state_timestamp >= $1 GROUP BY state_name"
STATISTICS_SECONDS = 1.5  # PostgreSQL's processes add up what they did, and tell of it so much later at the latest


@dataclass(frozen=True)
class Table:
    """Rows of a table since the database was made, and its bytes with its indexes."""

    inserted: int
    updated: int
    num_bytes: int


@dataclass(frozen=True)
class Moment:
    """All that is counted, up to a moment."""

    at: float
    log_bytes: int
    tables: Mapping[str, Table]
    database_bytes: int
    cpu_seconds: Mapping[str, float]
    idle_seconds: float


@dataclass(frozen=True)
class Usage:
    """What lies between two moments: `requests` by route, the others by name."""

    seconds: float
    requests: Counter[str]
    tables: Mapping[str, Table]
    database_bytes: int
    cpu_seconds: Mapping[str, float]
    idle_share: float


def look(server_log: Path, postgres: Postgres, processes: Mapping[str, psutil.Process]) -> Moment:
    """Count now."""
    time.sleep(STATISTICS_SECONDS)  # PostgreSQL counts what was done within that time
    tables, database_bytes = asyncio.run(_ask(postgres))
    return Moment(
        at=time.monotonic(),
        log_bytes=server_log.stat().st_size,
        tables=tables,
        database_bytes=database_bytes,
        cpu_seconds={name: measure_family(process) for name, process in processes.items()},
        idle_seconds=psutil.cpu_times().idle,
    )


def between(before: Moment, after: Moment, server_log: Path) -> Usage:
    """What came between them."""
    seconds = after.at - before.at
    with server_log.open("rb") as log:
        log.seek(before.log_bytes)
        written = log.read(after.log_bytes - before.log_bytes)
    nothing = Table(0, 0, 0)
    return Usage(
        seconds=seconds,
        requests=Counter(_route(method, path) for method, path in REQUEST.findall(written)),
        tables={name: _grown(before.tables.get(name, nothing), now) for name, now in after.tables.items()},
        database_bytes=after.database_bytes - before.database_bytes,
        cpu_seconds={name: now - before.cpu_seconds[name] for name, now in after.cpu_seconds.items()},
        idle_share=(after.idle_seconds - before.idle_seconds) / seconds / count_processors(),
    )


def flow_run_states(postgres: Postgres, since: Any) -> dict[str, int]:
    """Flow runs by the name of the state that they came into since then, a `datetime` with a zone, and are in."""

    async def ask() -> dict[str, int]:
        connection = await _connect(postgres)
        try:
            return {row["name"]: row["number"] for row in await connection.fetch(ENDS, since)}
        finally:
            await connection.close()

    return asyncio.run(ask())


def _route(method: bytes, path: bytes) -> str:
    plain = UUID.sub("ID", path.decode().partition("?")[0])
    named = NAMED.sub(r"\1/NAME", plain)
    return f"{method.decode()} {named}"


def _grown(before: Table, now: Table) -> Table:
    return Table(now.inserted - before.inserted, now.updated - before.updated, now.num_bytes - before.num_bytes)


async def _connect(postgres: Postgres) -> Any:
    return await asyncpg.connect(host=HOST, port=postgres.port, user=USER, database=DATABASE)


async def _ask(postgres: Postgres) -> tuple[dict[str, Table], int]:
    connection = await _connect(postgres)
    try:
        rows = await connection.fetch(TABLES)
        tables = {row["name"]: Table(row["inserted"], row["updated"], row["num_bytes"]) for row in rows}
        return tables, int(await connection.fetchval("SELECT pg_database_size($1)", DATABASE))
    finally:
        await connection.close()
