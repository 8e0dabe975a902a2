"""The runbook: each line that a person may type from it works, and nothing is missing that it has to explain."""

import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import replace
from typing import get_args

import pytest

from storage.runs.run_state import Outcome
from tasks.prefect_bridge.alerts import EVENTS
from tests.helpers.commands import ROOT, RUN_SECONDS, Runner, call_here, write_programs
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

DEPLOYMENTS = ROOT / "deployments"
RUNBOOK = (DEPLOYMENTS / "runbook.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a person copies from a table: it names a store, a run or a configuration.
SPAN = re.compile(r"`([a-z]+ [^`]*\b(?:STORE|RUN|CONFIG)\b[^`]*)`")
LINES = list(
    dict.fromkeys(
        line.partition("#")[0].strip()
        for line in [*(line for block in BLOCK.findall(RUNBOOK) for line in block.splitlines()), *SPAN.findall(RUNBOOK)]
    )
)
# What a run is to go on with. They differ in that alone from a line that is typed in every test run.
CHANGES = [line for line in LINES if line.startswith("holdfast run CONFIG --set ")]
STEPS = 200
ROW = re.compile(r"^\| `?([\w.-]+)`?[^|]*\|", re.MULTILINE)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> Runner:
    """A small run that is complete; `environment` has a command `holdfast` that is this very project."""
    folder = tmp_path_factory.mktemp("runbook")
    write_parquet(folder / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(folder, "small", folder / "store", folder / "data")
    # So many that some saves are complete before the last one is due: an advice is computed from what they took.
    configuration.write_text(configuration.read_text().replace("\nsteps = 4\n", f"\nsteps = {STEPS}\n"))
    programs = write_programs(folder / "programs")
    runner = Runner(configuration, {"run": "small", "store": folder / "store"}, prefect_server)
    runner.prepare()
    runner.run(checkpoint__every_steps=50)
    return replace(runner, environment=prefect_server | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.slow) if line in CHANGES else line for line in LINES]
)
def test_each_line_can_be_typed_as_it_stands(line: str, shell: Runner) -> None:
    values = {"STORE": shell.settings["store"], "RUN": shell.settings["run"], "CONFIG": shell.configuration}
    typed = re.sub(r"\b(STORE|RUN|CONFIG)\b", lambda found: str(values[found[1]]), line)
    program, *arguments = shlex.split(typed)
    if program == "holdfast" and arguments[0] != "run":  # of which a shell finds the command
        result = call_here(arguments)
    else:
        result = subprocess.run(
            ["bash", "-c", typed], env=dict(shell.environment), cwd=shell.configuration.parent, capture_output=True,
            text=True, timeout=RUN_SECONDS,
        )  # fmt: skip
    assert result.returncode == 0, f"{typed}\n{result.stdout}{result.stderr}"
    assert result.stdout


@pytest.mark.parametrize("line", CHANGES)
def test_what_a_run_is_to_go_on_with_can_be_set(line: str, shell: Runner) -> None:
    arguments = [str(shell.configuration) if part == "CONFIG" else part for part in line.split()[2:]]
    printed = call_here(["config", *arguments])
    assert printed.returncode == 0, printed.stderr
    found = tomllib.loads(printed.stdout)
    for assignment in arguments[2::2]:
        (section, _, key), value = assignment.partition("=")[0].partition("."), assignment.partition("=")[2]
        assert found[section][key] == float(value)


def test_the_lines_are_found() -> None:
    commands = {" ".join(line.split()[:2]) for line in LINES}
    wanted = ("status", "verify", "scrub", "audit", "report", "advise", "prune", "run")
    assert commands >= {f"holdfast {name}" for name in wanted} | {"prefect flow-run", "df -h"}
    assert any("--set segment.hang_seconds" in line for line in LINES)  # one that stands in a table alone


def test_every_outcome_and_every_event_has_a_row() -> None:
    explained = ROW.findall(RUNBOOK)
    assert set(get_args(Outcome)) - set(explained) == set()
    assert set(EVENTS) - set(explained) == set()
    assert {name for name in explained if name.startswith("holdfast.")} - set(EVENTS) == set()


def test_every_final_state_of_a_flow_run_has_a_row() -> None:
    table = RUNBOOK.partition("\n## Final states of a flow run\n")[2].partition("\n## ")[0]
    assert {"Completed", "Skipped", "Failed", "Crashed", "Cancelled", "Suspended"} <= set(ROW.findall(table))


def test_every_link_leads_to_a_file_or_a_heading_that_is_there() -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", RUNBOOK):
        name, _, heading = target.partition("#")
        text = (DEPLOYMENTS / name).read_text(encoding="utf-8") if name else RUNBOOK
        headings = {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
        assert not heading or heading in headings, target
