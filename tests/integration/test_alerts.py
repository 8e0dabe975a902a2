"""What an operator set up by the README's commands is sent: a real server, its automation, a webhook, real runs.

In `make test`: what the automation sends is looked at in `test_deploy_command.py`, and a real server gets an event in
`test_deployments.py`.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.prefect_bridge.alerts import EVENTS, NO_PROGRESS, RUN_ENDED, SEGMENT_LOST
from tests.helpers.commands import ROOT, Runner, kill_everything, processes_mentioning, wait_until, write_programs
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import running_prefect_server
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.webhooks import running_webhook

pytestmark = [pytest.mark.server, pytest.mark.slow]

HOOK = "https://example.org/hook"
# Of the page's section about teams: the pool, the block and the deployment. Reconciler and worker are the last lines.
TEAM_COMMANDS = re.compile(
    r"^```sh\n(prefect work-pool create search .*?)^holdfast reconcile", re.MULTILINE | re.DOTALL
)
TEAM, TEAM_HOOK = "search", "https://example.org/search"
COMMANDS = re.compile(r"^```sh\n(python -c .*?)^```$", re.MULTILINE | re.DOTALL)
# More than a run makes between two looks at it, and more than any makes here.
STEPS, ENDLESS = 400, 1_000_000
# Tasks raise alerts within a flow run.
FLOWS = """
import sys
from prefect import flow, tags
from tasks.prefect_bridge.alerts import EVENTS, alert

@flow
def tell_everything():
    for name in EVENTS:
        alert(name, "/store/runs/told", f"the words of {name}", run=sys.argv[1])

with tags(*sys.argv[2:]):
    tell_everything()
"""


@dataclass
class Phone:
    """What whoever is on call has received: the texts of all messages, in no order that matters."""

    url: str
    texts: list[str]

    def about(self, event: str, run: str) -> list[str]:
        """Those whose subject is this event of this run, without the subject."""
        subject = f"{event}: run {run}\n"
        return [text.removeprefix(subject) for text in self.texts if text.startswith(subject)]


@pytest.fixture(scope="module")
def phones() -> Iterator[dict[str, Phone]]:
    """A web server each that takes what notification blocks post: of all, and of the team."""
    with running_webhook() as of_all, running_webhook() as of_team:
        yield {"hook": Phone(*of_all), TEAM: Phone(*of_team)}


@pytest.fixture(scope="module")
def phone(phones: dict[str, Phone]) -> Phone:
    """Of who is told of all runs."""
    return phones["hook"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, phone: Phone) -> Iterator[dict[str, str]]:
    """A server of its own, with automations; the one of the README is created by the README's commands."""
    home = tmp_path_factory.mktemp("prefect")
    with running_prefect_server(home, with_automations=True) as environment:
        programs = write_programs(tmp_path_factory.mktemp("operator") / "programs")
        environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        type_commands(COMMANDS, {HOOK: phone.url}, environment, programs)
        yield environment


def type_commands(commands: re.Pattern[str], urls: dict[str, str], environment: dict[str, str], folder: Path) -> None:
    """Those of the README that match, with other addresses."""
    (text,) = commands.findall((ROOT / "deployments/README.md").read_text(encoding="utf-8"))
    for url, real in urls.items():
        assert url in text
        text = text.replace(url, real)
    typed = subprocess.run(["bash", "-ec", text], cwd=folder, capture_output=True, text=True, env=environment)
    assert typed.returncode == 0, typed.stdout + typed.stderr


@pytest.fixture
def runner(tmp_path: Path, environment: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(tmp_path, "told", tmp_path / "store", tmp_path / "data")
    settings = {"store": tmp_path / "store", "train__steps": STEPS, "retry__delay_seconds": 0.1}
    return Runner(configuration, settings, environment)


@pytest.fixture(scope="module")
def told(environment: dict[str, str]) -> None:
    tell_everything(environment, "told")


@pytest.mark.usefixtures("told")
def test_each_event_arrives_with_its_words_and_the_address(phone: Phone) -> None:
    expected = {name: [f"the words of {name}\n\n/store/runs/told"] for name in EVENTS}
    assert wait_until(lambda: {name: phone.about(name, "told") for name in EVENTS} == expected)


def test_a_team_is_told_of_its_own_runs_and_of_no_others(
    phones: dict[str, Phone], environment: dict[str, str], tmp_path: Path
) -> None:
    write_tiny_configuration(tmp_path, "run", tmp_path / "store", tmp_path / "data")  # run.toml
    type_commands(TEAM_COMMANDS, {TEAM_HOOK: phones[TEAM].url}, environment, tmp_path)
    tell_everything(environment, "theirs")
    tell_everything(environment, "ours", TEAM)
    expected = {name: [f"the words of {name}\n\n/store/runs/told"] for name in EVENTS}
    assert wait_until(lambda: {name: phones[TEAM].about(name, "ours") for name in EVENTS} == expected)
    assert {text.partition("\n")[0] for text in phones[TEAM].texts} == {f"{name}: run ours" for name in EVENTS}


def test_of_a_run_whose_ranks_were_killed_it_is_told_that_a_segment_was_lost_and_nothing_of_its_good_end(
    runner: Runner, phone: Phone, environment: dict[str, str]
) -> None:
    runner.settings["run"] = "killed"
    process = runner.start(train__steps=ENDLESS, validation__every_steps=ENDLESS, checkpoint__every_steps=10)
    try:
        assert wait_until(lambda: step_of(runner) > 0, process), runner.log.read_text()
        kill_ranks(runner)
        assert wait_until(lambda: bool(phone.about(SEGMENT_LOST, "killed")), process), runner.log.read_text()
    finally:
        kill_everything(process)
    (text,) = phone.about(SEGMENT_LOST, "killed")
    assert text.startswith("Segment ended: ") and "The run goes on from step " in text
    assert text.endswith(f"\n\n{runner.settings['store']}/runs/killed")
    runner.run(train__steps=step_of(runner) + STEPS)
    tell_everything(environment, "last")  # what comes after all that the run has sent
    assert wait_until(lambda: bool(phone.about(RUN_ENDED, "last")))
    assert phone.about(RUN_ENDED, "killed") == phone.about(NO_PROGRESS, "killed") == []


def test_of_data_that_a_person_has_to_put_right_it_is_told_once_with_the_message(runner: Runner, phone: Phone) -> None:
    runner.settings["run"] = "mistaken"
    failed = runner.call("run", data__max_missing_fraction=0.0, data__numeric='["length"]')
    assert failed.returncode == 2, failed.stderr
    assert wait_until(lambda: bool(phone.about(RUN_ENDED, "mistaken")))
    (text,) = phone.about(RUN_ENDED, "mistaken")
    assert text.startswith("Run 'mistaken' ended with an error that a person has to look at: ")
    assert "length" in text


def tell_everything(environment: dict[str, str], run: str, *tags: str) -> None:
    """A flow run with these tags, in which all alerts are raised."""
    command = [sys.executable, "-c", FLOWS, run, *tags]
    called = subprocess.run(command, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert called.returncode == 0, called.stderr


def step_of(runner: Runner) -> int:
    """The step of the resume point; 0 before the run has begun."""
    store = LocalStore(Path(runner.settings["store"]))
    head = Manifest(store, str(runner.settings["run"])).find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def kill_ranks(runner: Runner) -> None:
    for pid in processes_mentioning(str(Path(runner.settings["store"]) / ".tmp/scratch/runs")):
        with contextlib.suppress(ProcessLookupError):  # it may end at this moment
            os.kill(pid, signal.SIGKILL)
