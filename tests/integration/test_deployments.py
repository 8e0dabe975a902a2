"""The deployments on a real local server, their flow runs in a real worker: what an operator gets.

Holdfast is installed from its wheel, and the folders that are deployed from and worked in have packages `flows`,
`tasks`, ... of their own.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deployments import audit, report, scrub
from flows.resume import resume
from storage.objects.local_store import LocalStore
from storage.runs.run_state import RunState
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import ROOT, call_here, processes_mentioning, write_program
from tests.helpers.guided import NUM_PLANNED, Guided, type_guide
from tests.helpers.kept_runs import make_kept_run
from tests.helpers.operators import (
    CONFIGURATION,
    ENDED,
    ENDLESS,
    NEVER,
    Operator,
    deployed,
    kill_all,
    working,
)
from tests.helpers.wheels import Installed, without_python_path, write_own_packages

# What both ways to deploy have in common.
ALIKE = (
    "entrypoint", "tags", "work_pool_name", "job_variables", "pull_steps", "parameter_openapi_schema",
    "enforce_parameter_schema", "paused", "global_concurrency_limit",
)  # fmt: skip
DRILL_STEPS = 3000  # enough for a kill in the middle of it on a quick machine
DRILL_SEED = 20
MORE_STEPS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an operator deploys from: a configuration file and, relative to it, data and store."""
    folder = tmp_path_factory.mktemp("operator")
    # Tests wait for checkpoints again and again.
    (folder / "tiny.toml").write_text(CONFIGURATION.replace("every_steps = 400", "every_steps = 100"))
    (folder / "run.toml").write_text(CONFIGURATION.replace('run = "tiny"', 'run = "guided"'))
    generate_corpus(folder / "corpus", "policy", 600)
    write_own_packages(folder)
    return folder


@pytest.fixture(scope="module")
def prefect(installed: Installed) -> list[str]:
    """The command `prefect` where the wheel is installed. With `-m` the current folder is the first to be searched."""
    return [str(installed.programs / "python"), "-m", "prefect", "--no-prompt"]


@pytest.fixture(scope="module")
def environment(prefect_server: dict[str, str]) -> dict[str, str]:
    return without_python_path(prefect_server)


@pytest.fixture(scope="module")
def guided(
    folder: Path,
    prefect: list[str],
    environment: dict[str, str],
    installed: Installed,
    tmp_path_factory: pytest.TempPathFactory,
) -> Guided:
    """What was there after the guide's lines were typed, with the programs of the environment that has the wheel."""
    programs = tmp_path_factory.mktemp("programs")
    write_program(programs / "prefect", *prefect)
    path = os.pathsep.join([str(programs), str(installed.programs), os.environ["PATH"]])
    return type_guide(folder, environment | {"PATH": path}, "guided")


@pytest.fixture(scope="module")
def operator(folder: Path, prefect: list[str], environment: dict[str, str], guided: Guided) -> Iterator[Operator]:
    """With all deployments of prefect.yaml, and one of the run `tiny` by `holdfast deploy`."""
    with deployed(folder, prefect, environment, has_pool=True) as operator:
        made = operator.type("deploy", "tiny.toml", "--schedule", NEVER)
        assert made.returncode == 0, made.stderr
        yield operator
        operator.delete_deployments("holdfast")
        assert operator.type("deploy", "--remove").returncode == 0
        assert operator.automations("holdfast-") == {}


@pytest.fixture(scope="module")
def worked(operator: Operator, prefect: list[str], environment: dict[str, str]) -> Iterator[Operator]:
    """A worker is there, in another folder than the one deployed from."""
    elsewhere = operator.folder / "elsewhere"
    write_own_packages(elsewhere)
    with working(operator, prefect, environment, elsewhere):
        yield operator


@pytest.fixture(scope="module")
def cancelled(worked: Operator) -> str:
    """A flow run whose ranks were killed at once, then when they had got on, and that was then cancelled."""
    flow_run = worked.submit("scheduled/tiny", tags=["holdfast", "team-a"])
    ranks = str(worked.folder / "store/.tmp/scratch/runs/tiny")
    worked.wait(lambda: bool(processes_mentioning(ranks)))
    kill_all(processes_mentioning(ranks))
    worked.wait(lambda: worked.segment_has_saved(2))
    kill_all(processes_mentioning(ranks))
    worked.wait(lambda: worked.segment_has_saved(3))
    worked.cancel(flow_run)
    worked.wait(lambda: worked.states(flow_run)[-1]["type"] in ENDED)
    return flow_run


def test_all_are_deployed_to_the_pool_without_a_limit_whose_loss_would_end_training(operator: Operator) -> None:
    for name in (
        "scheduled/train",
        "resume/resume",
        "audit/audit",
        "report/report",
        "evaluate/evaluate",
        "export/export",
        "scrub/scrub",
        "drill/drill",
    ):
        deployment = operator.deployment(name)
        assert deployment["work_pool_name"] == "holdfast"
        assert deployment["global_concurrency_limit"] is None
        assert deployment["job_variables"]["env"]["PREFECT_LOGGING_EXTRA_LOGGERS"] == "holdfast"
        (step,) = deployment["pull_steps"]
        assert step == {"prefect.deployments.steps.set_working_directory": {"directory": str(operator.folder)}}


def test_the_lines_of_the_guide_make_a_deployment_as_prefect_yaml_has_it(operator: Operator, guided: Guided) -> None:
    made, train = guided.deployment, operator.deployment("scheduled/train")
    for field in ALIKE:
        assert made[field] == train[field], field
    (schedule,) = made["schedules"]
    assert schedule["schedule"]["interval"] == timedelta(minutes=5).total_seconds() and schedule["active"]
    assert made["parameters"] == {"configuration": str(operator.folder / "run.toml")}
    assert "Created: deployment scheduled/guided" in guided.printed
    assert f": holdfast reconcile {operator.folder}/store\n" in guided.printed


def test_the_lines_of_the_guide_have_people_told(guided: Guided) -> None:
    assert set(guided.automations) == {"holdfast-alerts", "holdfast-reconciler"}
    for name, automation in guided.automations.items():
        assert [action["block_document_id"] for action in automation["actions"]] == [guided.block]
        assert f"Created: automation {name}\n" in guided.printed
    assert "Watching 1 store" in guided.reconciler and "obody" not in guided.reconciler


def test_the_server_plans_the_flow_runs_of_the_schedule(operator: Operator, guided: Guided) -> None:
    operator.wait(lambda: len(operator.scheduled_times("scheduled/train")) >= NUM_PLANNED)
    for times in (guided.scheduled_times, operator.scheduled_times("scheduled/train")):
        first, second, third = times[:NUM_PLANNED]
        assert second - first == third - second == timedelta(minutes=5)


def test_train_is_on_a_schedule_and_nothing_but_the_end_of_the_run_ends_a_flow_run(operator: Operator) -> None:
    deployment = operator.deployment("scheduled/train")
    (schedule,) = deployment["schedules"]
    assert schedule["schedule"]["cron"] == "*/5 * * * *"
    assert "segment_seconds" not in deployment["parameters"]
    assert (ROOT / deployment["parameters"]["configuration"]).is_file()
    assert operator.deployment("resume/resume")["schedules"] == []


def test_what_is_kept_is_scrubbed_every_night(operator: Operator) -> None:
    (schedule,) = operator.deployment("scrub/scrub")["schedules"]
    assert schedule["active"] and schedule["schedule"]["cron"] == "0 3 * * *"


def test_the_forms_ask_for_little_and_explain_each_field(operator: Operator) -> None:
    train, resume, scrub, drill = (
        operator.deployment(name)["parameter_openapi_schema"]
        for name in ("scheduled/train", "resume/resume", "scrub/scrub", "drill/drill")
    )
    assert list(train["properties"]) == ["configuration", "segment_seconds", "assignments"]
    assert train["required"] == ["configuration"]
    assert list(resume["properties"]) == [
        "store", "run", "segment_seconds", "steps", "ranks", "back_to_step", "learning_rate_factor", "max_rollbacks",
        "patience", "save_every_seconds", "dry_run",
    ]  # fmt: skip
    assert resume["required"] == ["store", "run"]
    assert list(scrub["properties"]) == ["address", "megabytes_per_second"]
    assert scrub["required"] == ["address"]
    assert list(drill["properties"]) == ["configuration", "kills", "world_sizes", "steps", "seed", "assignments"]
    assert drill["required"] == ["configuration"]
    fields = [field for form in (train, resume, scrub, drill) for field in form["properties"].values()]
    assert all(field["description"] for field in fields)
    assert resume["properties"]["steps"]["anyOf"] == [{"minimum": 1, "type": "integer"}, {"type": "null"}]


def test_a_wrong_value_is_refused_by_the_form(operator: Operator) -> None:
    url = f"/deployments/{operator.deployment('resume/resume')['id']}/create_flow_run"
    response = operator.api.post(url, json={"parameters": {"store": "store", "run": "tiny", "steps": 0}})
    assert response.status_code == 409
    assert "steps" in response.text


def test_a_segment_killed_at_once_is_tried_again_and_one_that_had_got_on_is_followed_by_the_next(
    worked: Operator, cancelled: str
) -> None:
    at_once, later, followed = worked.state().segments[:3]
    assert (at_once.outcome, later.outcome, followed.outcome) == ("lost", "lost", "preempted")
    assert at_once.last_step == later.first_step == 0
    assert 0 < followed.first_step < followed.last_step
    # Of a segment that was lost the step is red, though the chain goes on.
    steps = worked.steps(worked.find_training(cancelled))
    assert steps[f"segment {later.fence}: steps 0 to {later.last_step:,}"] == "FAILED"
    names = [state["name"] for state in worked.states(worked.find_training(cancelled))]
    assert names[:4] == ["Pending", "Running", "AwaitingRetry", "Running"]
    assert names.count("AwaitingRetry") == 1


def test_a_cancelled_flow_run_saves_and_ends_as_cancelled_and_the_next_one_goes_on(
    worked: Operator, cancelled: str
) -> None:
    for name in (cancelled, worked.find_training(cancelled)):
        assert worked.states(name)[-1]["type"] == "CANCELLED", worked.worker_log.read_text()
        # By which its team is told of it.
        assert set(worked.tags(name)) == {"holdfast", "team-a"}
    state = worked.state()
    segment = state.segments[2]
    assert (segment.outcome, segment.cause, segment.steps_lost) == ("preempted", "asked to stop by a signal", 0)
    assert state.lease is None and state.promoted is not None and state.promoted.step == segment.last_step


@pytest.mark.slow
@pytest.mark.usefixtures("cancelled")
def test_a_stop_by_the_store_ends_everything_as_cancelled_with_no_step_lost(worked: Operator) -> None:
    """Without a worker in `test_stop_requests.py` and `test_values_of_flows.py`."""
    before = worked.state().promoted
    flow_run = worked.submit("scheduled/train", configuration="tiny.toml")
    worked.wait(lambda: worked.segment_has_saved(4))
    stopped = call_here(["stop", worked.folder / "store/runs/tiny"])
    assert stopped.returncode == 0, stopped.stderr
    assert "preempted, at step" in stopped.stdout
    worked.wait(lambda: worked.states(flow_run)[-1]["type"] in ENDED)
    training = worked.find_training(flow_run)
    for one in (flow_run, training):
        state = worked.states(one)[-1]
        assert state["type"] == "CANCELLED", worked.worker_log.read_text()
        assert "asked for the end of training with `holdfast stop`" in state["message"]
    segment = worked.state().segments[3]
    assert (segment.outcome, segment.steps_lost) == ("preempted", 0)
    assert before is not None and segment.first_step == before.step < segment.last_step < ENDLESS
    worked.wait(lambda: set(worked.steps(training).values()) <= set(ENDED))
    report = worked.folder / "store/runs/tiny/report.html"
    assert f"at step {segment.last_step:,}" in report.read_text()


@pytest.mark.slow
def test_train_stops_at_its_time_budget(worked: Operator) -> None:
    """Ranks do in `test_resume.py`."""
    flow_run = worked.run("scheduled/train", configuration="tiny.toml", segment_seconds=2, assignments=["run=budgeted"])
    assert flow_run["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    state = worked.state("budgeted")
    (segment,) = state.segments
    assert state.promoted is not None
    assert (segment.outcome, segment.last_step, segment.steps_lost) == ("budget", state.promoted.step, 0)
    assert flow_run["state"]["message"] == f"budgeted: budget, step {state.promoted.step:,} of {ENDLESS:,}"


@pytest.fixture(scope="module")
def resumed(worked: Operator, cancelled: str) -> tuple[RunState, dict[str, Any]]:
    """The run before it was resumed with fewer steps than its file says, and the flow run that took it to its end."""
    state = worked.state()
    assert state.promoted is not None
    flow_run = worked.run("resume/resume", store="store", run="tiny", steps=state.promoted.step + MORE_STEPS)
    return state, flow_run


@pytest.mark.usefixtures("cancelled")
def test_a_dry_run_of_resume_says_what_it_would_do_and_does_nothing(worked: Operator) -> None:
    state = worked.state()
    assert state.promoted is not None
    steps, store = state.promoted.step + MORE_STEPS, worked.folder / "store"
    plan = resume.fn(str(store), "tiny", steps=steps, dry_run=True)
    assert plan.name == "Dry run" and plan.message is not None
    assert f"from step {state.promoted.step:,} of {steps:,}" in plan.message
    assert f"train.steps: was {ENDLESS}, is {steps} now" in plan.message
    assert worked.state() == state


@pytest.mark.slow
def test_resume_goes_on_to_the_end(worked: Operator, resumed: tuple[RunState, dict[str, Any]]) -> None:
    state, flow_run = resumed
    assert flow_run["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    ended = worked.state()
    assert state.promoted is not None
    assert [segment.outcome for segment in ended.segments[len(state.segments) :]] == ["completed"]
    assert ended.segments[-1].first_step == state.promoted.step
    assert ended.is_complete
    steps = state.promoted.step + MORE_STEPS
    assert flow_run["state"]["message"] == f"tiny: completed, step {steps:,} of {steps:,}"
    for look, words in ((audit, "The ledger is intact"), (report, "/runs/tiny/report.html")):
        looked = look.fn(f"{worked.folder}/store/runs/tiny")
        assert looked.is_completed() and words in (looked.message or "")


@pytest.mark.slow
@pytest.mark.usefixtures("resumed")
def test_a_tick_of_the_schedule_leaves_a_run_that_is_complete_as_it_is(worked: Operator) -> None:
    """Without a worker in `test_interruptions.py`. The file still has another number of steps."""
    ended = worked.state()
    tick = worked.run("scheduled/train", configuration="tiny.toml")
    assert tick["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    assert worked.state().segments == ended.segments


@pytest.mark.slow
def test_what_a_person_has_to_put_right_is_not_tried_again(worked: Operator) -> None:
    """Without a worker in `test_values_of_flows.py`."""
    assignments = ["run=hopeless", "data.label=no_such_column"]
    failed = worked.run("scheduled/train", configuration="tiny.toml", assignments=assignments)
    assert failed["state"]["type"] == "FAILED"
    assert "no_such_column" in failed["state"]["message"]
    names = [state["name"] for state in worked.states(worked.find_training(failed["id"]))]
    assert names == ["Pending", "Running", "Failed"]


@pytest.mark.slow
def test_a_drill_trains_twice_kills_one_of_the_two_and_its_verdict_is_in_the_ui(worked: Operator) -> None:
    drilled = worked.run(
        "drill/drill", configuration="tiny.toml", kills=1, world_sizes=[2, 1], steps=DRILL_STEPS, seed=DRILL_SEED,
        assignments=["run=drilled", "checkpoint.every_steps=100"],
    )  # fmt: skip
    assert drilled["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    straight, interrupted = (worked.state(f"drilled-drill-1-{name}") for name in ("straight", "interrupted"))
    ends = [(segment.outcome, segment.world_size) for segment in interrupted.segments]
    assert ends == [("lost", 2), ("completed", 1)]
    assert straight.promoted is not None and interrupted.promoted is not None
    assert straight.promoted.weights_sha256 == interrupted.promoted.weights_sha256
    assert drilled["state"]["message"] == (
        "The run that was killed 1 time, on 2 and 1 ranks, ended with the same model, bit for bit, as the run without "
        "interruptions."
    )
    page = worked.folder / "store/drills/drilled-1.html"
    assert "bit for bit" in page.read_text()
    artifact = worked.artifacts(drilled["id"])["drill-drilled-1"]
    assert artifact["data"].startswith("# Identical") and str(page) in artifact["data"]
    assert not worked.has_begun("drilled")  # the run itself is not touched
    assert processes_mentioning("runs/drilled-drill-1-") == []


def test_a_scrub_that_finds_rot_fails_and_tells_the_server(
    operator: Operator, environment: dict[str, str], tmp_path: Path
) -> None:
    """In this process: what a worker makes of what is deployed is shown of `train` and `resume`."""
    store = LocalStore(tmp_path / "kept")
    newest = make_kept_run(store, tmp_path).load_head().state.kept[0]
    model = store.root / newest.path / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    with temporary_settings({PREFECT_API_URL: environment["PREFECT_API_URL"]}):
        failed = scrub(store.address, return_state=True)
    assert failed.is_failed()
    assert f"{newest.path}/model.safetensors was changed" in (failed.message or "")
    rotten = f"holdfast.{store.address}/{newest.path}"
    operator.wait(lambda: bool(operator.events("holdfast.rot", rotten)))
    (event,) = operator.events("holdfast.rot", rotten)
    assert event["payload"].items() >= {"run": "run", "kind": "checkpoint", "step": 30, "is_quarantined": True}.items()
    assert f"prefect.flow-run.{failed.state_details.flow_run_id}" in [
        related["prefect.resource.id"] for related in event["related"]
    ]
