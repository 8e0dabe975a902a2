"""`holdfast deploy` on a real server: what it makes, that the second time changes nothing, and what it takes away.

The commands run in this process. That a worker trains what is deployed is shown in `test_deployments.py`, that alerts
arrive in `test_alerts.py`.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.deploying import automations, kept_automations, run_deployment
from tasks.prefect_bridge.alerts import EVENTS
from tests.helpers.deployers import CONFIG, POOL, Deployer
from tests.helpers.messages import require_message
from tests.helpers.operators import Operator, at_the_server, call_with_server
from tests.helpers.prefect_server import find_free_port

EVERY_FIVE_MINUTES = 300.0  # seconds
NOT_FOUND = 404


@pytest.fixture(scope="module")
def operator(prefect_server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """With a pool of this file's."""
    with at_the_server(tmp_path_factory.mktemp("operator"), prefect_server) as operator:
        operator.request("POST", "/work_pools/", json={"name": POOL, "type": "process"})
        yield operator
        operator.request("DELETE", f"/work_pools/{POOL}")


@pytest.fixture
def deployer(operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployer]:
    tag = f"deploying-{uuid4().hex[:8]}"
    for module in (automations, kept_automations, run_deployment):
        monkeypatch.setattr(module, "TAG", tag)  # other tests deploy to the same server
    yield Deployer(tmp_path, operator, tag)
    operator.delete_deployments(tag)


def test_twice_is_as_once(deployer: Deployer) -> None:
    deployer.make_block("team-a")
    typed = ("--tag", "team-a", "--set", "train.ranks=2")
    answer = deployer.ask(*typed)
    made = {(change["kind"], change["name"]): change["did"] for change in answer["changes"]}
    assert made == {
        ("deployment", deployer.name): "created",
        ("schedule", deployer.name): "created",
        **{("automation", name): "created" for name in deployer.told("team-a")},
    }
    found, first = deployer.operator.deployment(deployer.name), deployer.automations()
    again = deployer.ask(*typed)
    assert {(change["kind"], change["name"]): change["did"] for change in again["changes"]} == dict.fromkeys(
        made, "unchanged"
    )
    assert (deployer.operator.deployment(deployer.name), deployer.automations()) == (found, first)

    # What else is needed it says once.
    (line,) = set(answer["notes"]) - set(again["notes"])
    assert line.endswith(f"its machine died: holdfast reconcile {deployer.folder}/store --tag team-a")

    # It says whose it is, and trains that in this folder.
    (schedule,) = found["schedules"]
    assert schedule["active"] and schedule["schedule"]["interval"] == EVERY_FIVE_MINUTES
    assert schedule["schedule"]["timezone"] == "UTC"
    assert found["tags"] == [deployer.tag, "team-a"] and found["work_pool_name"] == POOL
    assert found["parameters"] == {"configuration": str(deployer.folder / CONFIG), "assignments": ["train.ranks=2"]}
    (step,) = found["pull_steps"]
    assert step == {"prefect.deployments.steps.set_working_directory": {"directory": str(deployer.folder)}}
    assert found["labels"]["holdfast.run"] == f"{deployer.folder}/store/runs/{deployer.run}"
    assert found["global_concurrency_limit"] is None


def test_what_is_different_is_changed_and_what_a_person_has_set_stays(deployer: Deployer) -> None:
    deployer.deploy()
    before = deployer.operator.deployment(deployer.name)
    (ours,) = before["schedules"]
    operator, url = deployer.operator, f"/deployments/{before['id']}"
    operator.pause(before["id"], ours["id"])
    nightly = {"schedule": {"cron": "0 1 * * *"}, "active": True}
    operator.request("POST", f"{url}/schedules", json=[nightly])
    variables = before["job_variables"] | {"env": before["job_variables"]["env"] | {"OURS": "1"}}
    operator.request("PATCH", url, json={"job_variables": variables})
    operator.request("PATCH", url, json={"paused": True})

    answer = deployer.ask("--schedule", "*/20 * * * *")
    changes = {change["kind"]: change for change in answer["changes"]}
    assert {kind: change["did"] for kind, change in changes.items()} == {
        "schedule": "updated", "deployment": "unchanged",
    }  # fmt: skip
    assert re.fullmatch(r'every 5 minutes: .* before; now "\*/20 \* \* \* \*" in UTC', changes["schedule"]["why"])
    assert any("schedule resume" in note for note in answer["notes"])
    assert any(f"no notification block named '{deployer.tag}'" in note for note in answer["notes"])
    after = operator.deployment(deployer.name)
    schedules = {schedule["schedule"]["cron"]: schedule["active"] for schedule in after["schedules"]}
    assert schedules == {"*/20 * * * *": False, "0 1 * * *": True}
    assert after["job_variables"] == variables and after["paused"]


def test_alerts_go_to_the_block_of_the_name_and_a_persons_choice_stays(deployer: Deployer) -> None:
    block = deployer.make_block("chosen")
    assert deployer.make_block("chosen") == block  # of a block that is saved again nobody has to be told
    deployer.deploy("--tag", "chosen")
    name = f"{deployer.tag}-alerts-chosen"
    alerts = deployer.automations()[name]
    assert set(alerts["trigger"]["expect"]) == set(EVENTS)
    assert [action["block_document_id"] for action in alerts["actions"]] == [block]

    fewer = [event for event in EVENTS if event != "holdfast.segment-lost"]
    content = {part: alerts[part] for part in ("name", "description", "actions")}
    content |= {"trigger": alerts["trigger"] | {"expect": fewer}, "enabled": False}
    deployer.operator.request("PUT", f"/automations/{alerts['id']}", json=content)
    answer = deployer.ask("--tag", "chosen")
    assert {change["did"] for change in answer["changes"]} == {"unchanged"}
    assert any("does not tell of holdfast.segment-lost" in note for note in answer["notes"])
    assert any("is paused" in note for note in answer["notes"])

    content["description"] = "of an earlier version"
    deployer.operator.request("PUT", f"/automations/{alerts['id']}", json=content)
    assert deployer.deploy("--tag", "chosen")["automation", name] == "updated"
    now = deployer.automations()[name]
    assert now["description"] == alerts["description"] and not now["enabled"]
    assert set(now["trigger"]["expect"]) == set(fewer)


def test_each_team_has_its_own_alerts_and_what_it_leaves_goes(deployer: Deployer) -> None:
    for team in ("red", "blue"):
        deployer.make_block(team)
    deployer.write("other.toml", f"{deployer.tag}-other")
    deployer.deploy("--tag", "red")
    deployer.deploy("--tag", "blue", config="other.toml")
    assert set(deployer.automations()) == deployer.told("red") | deployer.told("blue")
    for team in ("red", "blue"):
        related = deployer.automations()[f"{deployer.tag}-alerts-{team}"]["trigger"]["match_related"]
        assert [spec["prefect.resource.id"] for spec in related] == [f"prefect.tag.{team}"]
    moved = deployer.deploy("--tag", "blue")
    assert {name for (_, name), did in moved.items() if did == "removed"} == deployer.told("red")
    assert set(deployer.automations()) == deployer.told("blue")


@pytest.mark.parametrize("typed", [(), ("--remove",)], ids=["deployed", "removed"])
def test_what_an_earlier_version_made_and_the_reconciler_does_is_taken_away_once_and_what_others_made_stays(
    deployer: Deployer, typed: tuple[str, ...]
) -> None:
    superfluous = ("crash-silent-flow-runs", "start-the-next-flow-run", "crashes", "crashes-ours")
    others = ("crashes-theirs", "of-a-person")
    for name in (*superfluous, superfluous[0], *others):  # of one there are two
        deployer.make_automation(name)
    changes = deployer.ask("--tag", "ours", *typed)["changes"]
    removed = {change["name"]: change["why"] for change in changes if change["did"] == "removed"}
    why = "the reconciler does it: holdfast reconcile STORE"
    assert removed == dict.fromkeys([f"{deployer.tag}-{name}" for name in superfluous], why)
    assert set(deployer.automations()) == {f"{deployer.tag}-{name}" for name in others}
    with patch.object(kept_automations, "_find", wraps=kept_automations._find) as looked:
        assert "removed" not in deployer.deploy("--tag", "ours").values()
    assert looked.call_count == 1
    assert set(deployer.automations()) == {f"{deployer.tag}-{name}" for name in others}


def test_what_was_made_is_taken_away_and_what_others_need_stays(deployer: Deployer) -> None:
    deployer.make_block(deployer.tag)
    deployer.write("other.toml", f"{deployer.tag}-other")
    deployer.deploy()
    deployer.deploy(config="other.toml")
    planned = deployer.operator.submit(deployer.name)  # as the schedule does, and no worker takes it
    assert deployer.deploy("--remove") == {
        ("deployment", deployer.name): "removed",
        **{("automation", name): "kept" for name in deployer.told()},
    }
    assert not deployer.is_deployed() and set(deployer.automations()) == deployer.told()
    assert deployer.operator.api.get(f"/flow_runs/{planned}").status_code == NOT_FOUND
    other = f"scheduled/{deployer.tag}-other"
    under_way = deployer.operator.submit(other)
    running = {"state": {"type": "RUNNING", "name": "Running"}, "force": True}  # no worker is there that would train
    deployer.operator.request("POST", f"/flow_runs/{under_way}/set_state", json=running)
    answer = deployer.ask("--remove", config="other.toml")
    assert [change["did"] for change in answer["changes"]] == ["removed"] * (1 + len(deployer.told()))
    assert deployer.automations() == {}
    # What trains is said, and is not touched.
    (note,) = answer["notes"]
    assert note.endswith(f"holdfast stop {deployer.folder}/store/runs/{deployer.tag}-other")
    assert deployer.operator.states(under_way)[-1]["type"] == "RUNNING"
    deployer.operator.request("DELETE", f"/flow_runs/{under_way}")
    assert deployer.ask("--remove")["notes"] == ["There was nothing to remove."]


def test_without_a_configuration_the_automations_are_made_and_taken_away(deployer: Deployer) -> None:
    deployer.make_block(deployer.tag)
    exit_code, printed = deployer.type()
    assert exit_code == 0, printed
    assert set(deployer.automations()) == deployer.told()
    assert f"Created: automation {deployer.tag}-alerts\n" in printed
    exit_code, printed = deployer.type("--remove")
    assert exit_code == 0 and deployer.automations() == {}


def test_what_is_taken_away_while_somebody_deploys_is_there_again_as_it_was(deployer: Deployer) -> None:
    """The other deployment was made after the look at who needs the automations, and found them."""
    deployer.make_block(deployer.tag)
    deployer.write("other.toml", f"{deployer.tag}-other")
    deployer.deploy()
    before = deployer.automations()
    paused = f"{deployer.tag}-reconciler"
    deployer.operator.request("PATCH", f"/automations/{before[paused]['id']}", json={"enabled": False})
    delete = kept_automations._delete
    found: dict[tuple[str, str], str] = {}

    def delete_late(client: Any, automation: Any) -> None:
        if not found:
            found.update(deployer.deploy(config="other.toml"))
        delete(client, automation)

    with patch.object(kept_automations, "_delete", delete_late):
        assert deployer.deploy("--remove") == {
            ("deployment", deployer.name): "removed",
            **{("automation", name): "kept" for name in deployer.told()},
        }
    assert {found["automation", name] for name in deployer.told()} == {"unchanged"}
    after = deployer.automations()
    assert after[paused]["enabled"] is False
    assert {name: what_it_does(one) for name, one in after.items()} == {
        name: what_it_does(one) for name, one in before.items()
    }


def test_two_that_take_away_at_one_time_both_end_well(deployer: Deployer) -> None:
    deployer.make_block(deployer.tag)
    deployer.type()
    delete = kept_automations._delete
    others: list[tuple[int, str]] = []

    def delete_late(client: Any, automation: Any) -> None:
        if not others:
            with patch.object(kept_automations, "_delete", delete):
                others.append(deployer.type("--remove"))
        delete(client, automation)

    with patch.object(kept_automations, "_delete", delete_late):
        exit_code, printed = deployer.type("--remove")
    assert exit_code == 0, printed
    assert [other_code for other_code, _ in others] == [0], others
    assert deployer.automations() == {}


MISTAKES = {
    "deploy-a-file-that-is-not-there": ["runn.toml"],
    "deploy-with-a-misspelt-setting": [CONFIG, "--set", "train.batch=3"],
    "deploy-to-a-pool-that-is-not-there": [CONFIG, "--pool", "of-nobody"],
    "deploy-by-a-schedule-that-is-none": [CONFIG, "--schedule", "every day"],
    "deploy-for-every-second": [CONFIG, "--schedule", "* * * * * *"],
    "deploy-for-a-team-with-a-space": [CONFIG, "--tag", "Team A"],
    "deploy-under-a-name-with-a-slash": [CONFIG, "--name", "a/b"],
    "deploy-with-a-password-in-an-address": [CONFIG, "--set", "store=s3://key:secret@bucket/prefix"],
    "deploy-a-store-of-another-kind": [CONFIG, "--set", "store=gs://bucket"],
    "deploy-no-run-on-a-pool": ["--pool", POOL],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message_and_nothing_is_made(deployer: Deployer, name: str) -> None:
    deployer.require_message(name, *MISTAKES[name])
    assert not deployer.is_deployed() and deployer.automations() == {}


def test_a_deployment_that_was_made_in_another_way_is_left_alone(deployer: Deployer) -> None:
    operator = deployer.operator
    flow = operator.request("POST", "/flows/", json={"name": "scheduled"})["id"]
    content = {"name": deployer.run, "flow_id": flow, "tags": [deployer.tag], "work_pool_name": POOL}
    operator.request("POST", "/deployments/", json=content)
    before = operator.deployment(deployer.name)
    for name, *typed in (("deploy-over-what-it-did-not-make",), ("remove-what-it-did-not-make", "--remove")):
        deployer.require_message(name, CONFIG, "--pool", POOL, *typed, RUN=deployer.run)
    assert operator.deployment(deployer.name) == before


def test_the_deployment_of_another_run_is_left_alone(deployer: Deployer) -> None:
    deployer.deploy()
    deployer.write("same-name.toml", deployer.run, store="another-store")
    before = deployer.operator.deployment(deployer.name)
    words = {"RUN": deployer.run}
    deployer.require_message("deploy-over-another-run", "same-name.toml", "--pool", POOL, **words)
    deployer.require_message("remove-another-run", "same-name.toml", "--remove", **words)
    assert deployer.operator.deployment(deployer.name) == before
    name = ("--name", f"{deployer.tag}-second")
    other = ("deployment", f"scheduled/{deployer.tag}-second")
    assert deployer.deploy(*name, config="same-name.toml")[other] == "created"
    assert deployer.deploy("--remove", *name, config="same-name.toml")[other] == "removed"


def test_without_a_server_none_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.prefect_server.LocalServer", None)
    require_message("deploy-without-a-server", tmp_path, ["deploy"], partial(call_with_server, None))


def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    port = find_free_port()
    call = partial(call_with_server, f"http://user:secret@127.0.0.1:{port}/api")
    require_message("deploy-to-a-server-that-is-silent", tmp_path, ["deploy"], call, PORT=port)
    typed = call(["deploy", "--json"])
    assert json.loads(typed.stdout)["error"]["kind"] == "ConfigurationError"
    assert "secret" not in typed.stderr + typed.stdout


@pytest.mark.parametrize(
    ("name", "status", "body"),
    [
        ("deploy-without-the-password", 401, '{"exception_message": "Unauthorized"}'),
        ("deploy-to-a-page-for-people", 200, "<html>"),
        ("deploy-to-another-api", 404, "{}"),
        ("deploy-to-a-busy-server", 503, '{"exception_message": "Service Unavailable"}'),
    ],
)
def test_what_answers_and_is_of_no_use_is_named(tmp_path: Path, name: str, status: int, body: str) -> None:
    with answering(status, body) as port, temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        call = partial(call_with_server, f"http://127.0.0.1:{port}/api")
        require_message(name, tmp_path, ["deploy"], call, PORT=port)


@contextmanager
def answering(status: int, body: str) -> Iterator[int]:
    """A web server that gives one answer to everything, as a server of Prefect's with a password does; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def what_it_does(automation: dict[str, Any]) -> Any:
    return without_ids({part: automation[part] for part in ("description", "trigger", "actions")})


def without_ids(part: Any) -> Any:
    """A part of an automation without what the server names anew in each; the events it expects come in any order."""
    if isinstance(part, dict):
        return {
            name: sorted(value) if name == "expect" else without_ids(value)
            for name, value in part.items()
            if name != "id"
        }
    return [without_ids(value) for value in part] if isinstance(part, list) else part
