"""What the Prefect of one command has for itself, and what it leaves to the user."""

import fcntl
import os
import sqlite3
import stat
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from flows.own_prefect import (
    DATABASE,
    IN_USE,
    PREFIX,
    PROXY_SETTINGS,
    ask_loopback_directly,
    database_settings,
    give_home,
    keep_empty_database,
    own_folder,
)
from flows.prefect_server import SETTINGS, configured_server


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of commands are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("PREFECT_HOME", "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"):
        monkeypatch.setenv(name, "x")  # so that it is put back, whatever the test makes of it
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_folder_is_this_users_alone_and_is_removed_with_its_command() -> None:
    with own_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert not folder.exists()


def test_what_a_killed_command_left_is_removed_and_what_another_one_uses_is_not() -> None:
    with own_folder() as first:
        left = first.parent / f"{PREFIX}killed"
        left.mkdir()
        (left / IN_USE).touch()
        with own_folder() as second:
            assert first.is_dir() and second.is_dir() and not left.exists()
            with (first / IN_USE).open() as in_use, pytest.raises(BlockingIOError):
                fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)


def make_tables(database: Path) -> None:
    """As a server leaves them whose migrations came to their end."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table flow_run (id)")
        connection.execute("create table alembic_version (version_num)")
        connection.execute("insert into alembic_version values ('newest')")


def test_tables_that_were_made_once_are_there_for_the_next_command_and_are_not_made_again() -> None:
    made = "PREFECT_SERVER_DATABASE_MIGRATE_ON_START"
    with own_folder() as folder:
        assert made not in database_settings(folder)
        make_tables(folder / DATABASE)
        keep_empty_database(folder)
    with own_folder() as folder, closing(sqlite3.connect(folder / DATABASE)) as database:
        assert database.execute("select count(*) from flow_run").fetchone() == (0,)
        assert database_settings(folder)[made] == "false"


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut", "without its version"])
def test_a_kept_database_that_is_not_whole_is_not_used(damage: str) -> None:
    with own_folder() as folder:
        make_tables(folder / DATABASE)
        keep_empty_database(folder)
        (kept,) = folder.parent.glob("empty-*.db")
    if damage == "without its version":
        with closing(sqlite3.connect(kept)) as connection, connection:
            connection.execute("delete from alembic_version")
    else:
        whole = kept.read_bytes()
        kept.write_bytes({"empty": b"", "garbage": b"tables" * 1000, "cut": whole[: len(whole) // 2]}[damage])
    with own_folder() as folder:
        assert not (folder / DATABASE).exists()
        assert "PREFECT_SERVER_DATABASE_MIGRATE_ON_START" not in database_settings(folder)


def test_a_database_that_the_user_names_is_used(temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, service = "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED"
    settings = database_settings(temporary_folder)
    assert settings[name].endswith(str(temporary_folder / DATABASE)) and settings[service] == "false"
    profiles = temporary_folder / "home" / ".prefect" / "profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text(f'active = "mine"\n[profiles.mine]\n{name} = "postgresql+asyncpg://host/database"\n')
    assert name not in database_settings(temporary_folder)
    profiles.unlink()
    monkeypatch.setenv(name, "postgresql+asyncpg://host/database")
    assert not {name, service} & database_settings(temporary_folder).keys()


def test_a_home_is_given_where_there_is_none_that_can_be_written(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_home(temporary_folder)
    assert "PREFECT_HOME" not in os.environ
    (temporary_folder / "file").touch()
    monkeypatch.setenv("HOME", str(temporary_folder / "file"))
    give_home(temporary_folder)
    assert os.environ["PREFECT_HOME"] == str(temporary_folder)


def test_a_user_without_an_entry_gets_a_home(temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 54321)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    give_home(temporary_folder)
    assert Path.home() == temporary_folder


def test_the_home_that_prefect_gets_is_not_there_while_a_configuration_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", *SETTINGS, *PROXY_SETTINGS):
        monkeypatch.setenv(name, "")  # so that it is put back
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 54321)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with configured_server() as server:
        assert server.local is None
        with pytest.raises(RuntimeError, match="home"):
            Path("~/store").expanduser()


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", "127.0.0.1,localhost"), ("a.org, localhost", "a.org,localhost,127.0.0.1"), ("*", "*")],
)
def test_no_proxy_is_asked_for_this_machine(given: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, given)
    ask_loopback_directly()
    assert (os.environ["NO_PROXY"], os.environ["no_proxy"]) == (expected, expected)
