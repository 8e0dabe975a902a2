"""Commands that tests have forked end as those that a user starts: output, exit code, environment."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tests.helpers.command_server import ForkedCommand, call_forked, is_forked, running_command_server
from tests.helpers.commands import COMMAND, ROOT, RUN_SECONDS, Runner, wait_until
from tests.helpers.fault_plans import FaultPlan, Moment, read_fired
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration
from training.agents.agent import TITLE
from training.stopping import SUPERVISOR_VARIABLE


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


def test_with_a_plan_of_faults_a_command_is_forked_but_for_another_clock_or_machine(
    environment: dict[str, str], tmp_path: Path
) -> None:
    def with_a_plan(plan: FaultPlan) -> dict[str, str]:
        return environment | plan.environment(tmp_path, [tmp_path])

    plan = FaultPlan().kill_at_step(3)
    assert call_forked(["--version"], with_a_plan(plan), 120).returncode == 0
    assert [path.name.partition("-")[0] for path in (tmp_path / "family").iterdir()] == ["command"]
    for heard_of_late in (plan, plan.traced(), plan.disk_full(Moment(operation="write"))):
        assert is_forked(with_a_plan(heard_of_late))
    for heard_of_early in (plan.clock(60), plan.on_another_host()):
        assert not is_forked(with_a_plan(heard_of_early))


def test_an_agent_of_a_forked_command_is_forked_and_the_commands_own_child(
    environment: dict[str, str], tmp_path: Path
) -> None:
    source = write_parquet(tmp_path / "data.parquet", text_columns(200))
    configuration = write_tiny_configuration(tmp_path, "forked", tmp_path / "store", source)
    runner = Runner(configuration, {"run": "forked", "store": tmp_path / "store"}, environment)
    runner.prepare()
    folder = tmp_path / "store/.tmp/scratch/runs/forked"
    with FaultPlan().hang(0, 2).injected(runner, tmp_path / "plan") as plan:
        command = runner.start()
        assert wait_until(lambda: bool(read_fired(plan)), command), runner.log.read_text()
        (rank,) = read_fired(plan)
        try:
            agent = psutil.Process(rank["pid"]).parent()
            assert agent is not None and " ".join(agent.cmdline()).startswith(f"{TITLE} {folder}")
            assert SUPERVISOR_VARIABLE not in agent.environ()  # in that of the server: one that was started has it
            lease = Manifest(LocalStore(tmp_path / "store"), "forked").load_head().state.lease
            assert lease is not None and agent.ppid() == lease.holder.pid == command.pid == os.getsid(command.pid)
            require_killed(["status", f"{tmp_path / 'store'}/runs/forked", "--watch"], environment, tmp_path / "said")
        finally:
            os.kill(rank["pid"], signal.SIGCONT)
        assert command.wait(RUN_SECONDS) == 0, runner.log.read_text()
    assert runner.status()["segments"][0]["outcome"] == "completed"


def require_killed(line: list[str], environment: dict[str, str], output: Path) -> None:
    """A command that does not end by itself is waited for, and killed, as one that was started."""
    with output.open("w") as said:
        command = ForkedCommand(line, environment, (said, said), in_own_session=True)
    with pytest.raises(subprocess.TimeoutExpired):
        command.wait(0.2)
    assert command.poll() is command.returncode is None
    command.kill()
    assert command.wait(60) == command.poll() == -signal.SIGKILL
