"""DuckDB as it is opened for a block: the memory that it may use is the one that was asked for."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import ConfigurationError
from tasks.data.database import HASH_VALUES, hash_sql, open_database


@pytest.mark.parametrize(("limit", "shown"), [("2GB", "1.8 GiB"), ("512MB", "488.2 MiB"), ("1GiB", "1.0 GiB")])
def test_a_size_is_the_limit(tmp_path: Path, limit: str, shown: str) -> None:
    with open_database(limit, tmp_path) as connection:
        assert connection.execute("SELECT current_setting('memory_limit')").fetchall() == [(shown,)]


def test_unlimited_is_more_than_any_machine_has(tmp_path: Path) -> None:
    with open_database("unlimited", tmp_path) as connection:
        ((shown,),) = connection.execute("SELECT current_setting('memory_limit')").fetchall()
    assert shown.endswith("PiB")


@pytest.mark.parametrize("limit", ["100", "2 apples"])
def test_what_is_no_size_is_an_error_that_shows_what_one_looks_like(tmp_path: Path, limit: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a size like '2GB'"), open_database(limit, tmp_path):
        pass


def test_all_connections_to_a_database_know_one_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    with open_database("1GiB", tmp_path) as connection, connection.cursor() as other:
        for opened in (connection, other):
            assert opened.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@given(text=st.text(max_size=150))
def test_the_hash_of_a_text_is_the_last_half_of_its_md5_as_a_number(
    text: str, database: duckdb.DuckDBPyConnection
) -> None:
    asked = f"SELECT {hash_sql('$text')}, md5_number_lower($text)"
    ((found, known),) = database.execute(asked, {"text": text}).fetchall()
    assert found == known == int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little") < HASH_VALUES


def test_what_is_missing_has_no_hash() -> None:
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT {hash_sql('NULL::VARCHAR')}").fetchall() == [(None,)]
