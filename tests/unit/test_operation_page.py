"""What deployments/operation.md says of Prefect's settings is so in the Prefect that is installed."""

import inspect
import re
import signal
from configparser import ConfigParser
from datetime import timedelta

import pytest
from prefect.server.utilities import encryption
from prefect.settings import Settings
from pydantic import ValidationError

from flows.cli import find_commands
from tests.helpers.commands import ROOT

PAGE = (ROOT / "deployments/operation.md").read_text(encoding="utf-8")
SET = re.compile(r"\b(PREFECT_\w+)='?([^`'\s]+)")
EVENTS_KEPT = "PREFECT_SERVER_EVENTS_RETENTION_PERIOD"
# Read from the environment where it is used, and no setting.
ENCRYPTION_KEY = "PREFECT_SERVER_ENCRYPTION_KEY"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this shell or of a test before."""
    for name in set(re.findall(r"PREFECT_[A-Z_]+", PAGE)):
        monkeypatch.delenv(name, raising=False)


def test_what_is_kept_and_how_long_by_default() -> None:
    server = Settings().server
    assert server.events.retention_period == timedelta(days=7)
    vacuum = server.services.db_vacuum
    assert vacuum.enabled_vacuum_types == {"events"} and vacuum.retention_period == timedelta(days=90)
    assert vacuum.loop_seconds == timedelta(hours=1).total_seconds()
    assert server.database.migrate_on_start and server.api.auth_string is None


def test_what_is_set_on_the_page_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict(SET.findall(PAGE))
    assert len(given) == 7
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    vacuum = settings.server.services.db_vacuum
    assert vacuum.enabled_vacuum_types >= {"events", "flow_runs"}
    assert vacuum.retention_period == timedelta(days=30)
    assert settings.server.events.retention_period == timedelta(days=3)
    assert settings.server.api.auth_string is not None
    assert settings.server.api.auth_string == settings.api.auth_string
    assert settings.client.retry_extra_codes == {500} and Settings().client.csrf_support_enabled is False


def test_the_services_unit_has_a_command_that_is_there_and_ends_well_by_sigterm() -> None:
    (text,) = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    unit = ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    program, command, *targets = unit["Service"]["ExecStart"].split()
    assert program.endswith("/bin/holdfast") and command in find_commands() and targets
    assert int(unit["Service"]["SuccessExitStatus"]) == 128 + signal.SIGTERM
    assert "Environment" not in unit["Service"]  # whoever reads a unit would read the password


def test_seconds_are_no_duration_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`259200` ends the server with an error" in PAGE
    monkeypatch.setenv(EVENTS_KEPT, "259200")
    with pytest.raises(ValidationError, match="retention_period"):
        Settings()


def test_the_key_of_blocks_may_stand_in_the_environment_and_else_in_the_database() -> None:
    source = inspect.getsource(encryption)
    assert (
        f'os.getenv(\n        "{ENCRYPTION_KEY}"' in source
        and 'read_configuration(session, "ENCRYPTION_KEY")' in source
    )
    assert ENCRYPTION_KEY in PAGE
