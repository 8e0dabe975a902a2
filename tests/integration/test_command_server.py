"""Commands that tests have forked end as those that a user starts: output, exit code, environment."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command_server import call_forked, is_forked, running_command_server
from tests.helpers.commands import COMMAND, ROOT
from tests.helpers.fault_plans import FaultPlan, Moment


@pytest.fixture(scope="module")
def environment(prefect_server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of all tests; without workers of xdist no server of commands is started for them."""
    if is_forked(prefect_server):
        yield prefect_server
        return
    with running_command_server(tmp_path_factory.mktemp("commands"), prefect_server) as own:
        yield own


@pytest.mark.parametrize(
    "line", [["--version"], ["status"], ["status", "missing/runs/small"], ["run", "--json", "missing.toml"]]
)
def test_a_forked_command_prints_and_returns_what_one_that_was_started_does(
    line: list[str], environment: dict[str, str]
) -> None:
    forked = call_forked(line, environment, 120)
    started = subprocess.run([*COMMAND, *line], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_a_forked_command_has_the_environment_that_it_is_given(environment: dict[str, str]) -> None:
    forked = call_forked(["status", "s3://bucket/runs/small"], environment | {"AWS_PROFILE": "nobody's"}, 120)
    assert forked.returncode == 2 and "nobody's" in forked.stderr


def test_with_settings_of_which_libraries_are_loaded_a_command_is_not_forked(environment: dict[str, str]) -> None:
    assert is_forked(environment) and is_forked(environment | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert not is_forked(environment | {"PREFECT_LOGGING_LEVEL": "DEBUG"})
    assert not is_forked(environment | {"PYTHONPATH": "/elsewhere"})
    assert not is_forked(os.environ)


def test_with_a_plan_of_faults_a_command_is_forked_if_they_are_ranks(
    environment: dict[str, str], tmp_path: Path
) -> None:
    def with_a_plan(plan: FaultPlan) -> dict[str, str]:
        return environment | plan.environment(tmp_path, [tmp_path])

    plan = FaultPlan().kill_at_step(3)
    assert call_forked(["--version"], with_a_plan(plan), 120).returncode == 0
    assert [path.name.partition("-")[0] for path in (tmp_path / "family").iterdir()] == ["command"]
    assert is_forked(with_a_plan(plan))
    for other in (plan.traced(), plan.clock(60), plan.on_another_host(), plan.disk_full(Moment(operation="write"))):
        assert not is_forked(with_a_plan(other))
