"""What can be said of deployments/compose.yaml without a Docker daemon: its parts fit each other and the project."""

import json
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import prefect.settings
import pytest
import yaml

from flows.cli import find_commands
from tests.helpers.commands import ROOT

DEPLOYMENTS = ROOT / "deployments"
TEXT = (DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = (DEPLOYMENTS / ".env.example").read_text(encoding="utf-8")
# The services that are reached by others.
ASKED = ("database", "server", "s3", "mlflow")
VARIABLE = re.compile(r"\$\{(\w+)(:[?-])?")
SECRET = re.compile(r"PASSWORD|SECRET|ACCESS_KEY")
REQUIRED = re.compile(r"^\$\{\w+:\?.*\}$")


def test_there_is_a_service_for_each_part() -> None:
    assert set(SERVICES) == {*ASKED, "worker", "reconciler"}


def test_whoever_is_asked_by_others_says_whether_it_is_healthy() -> None:
    """Each address in a service's settings or command is a service that the healthcheck speaks of."""
    for name, service in SERVICES.items():
        settings = [*map(str, service.get("environment", {}).values()), *map(str, service.get("command", []))]
        named = {other for other in SERVICES for text in settings if re.search(rf"[/@]{other}:\d+", text)}
        assert all("healthcheck" in SERVICES[other] for other in named), name
    assert all({"test", "interval", "timeout", "retries"} <= SERVICES[name]["healthcheck"].keys() for name in ASKED)


def test_a_service_waits_until_those_are_healthy_that_it_cannot_begin_without() -> None:
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert {name: set(others) for name, others in waits.items() if others} == {
        "server": {"database"},
        "worker": {"server", "s3"},
        "reconciler": {"server", "s3"},
    }
    assert {other["condition"] for others in waits.values() for other in others.values()} == {"service_healthy"}
    assert all("healthcheck" in SERVICES[other] for others in waits.values() for other in others)


def test_every_image_has_a_version_and_every_service_is_started_again() -> None:
    for service in SERVICES.values():
        tag = service["image"].rpartition(":")[2]
        assert re.search(r"\d+\.\d+", tag), service["image"]
        assert service["restart"] == "unless-stopped"


def test_the_server_has_the_libraries_of_the_tests() -> None:
    server = SERVICES["server"]
    lines = server["build"]["dockerfile_inline"].splitlines()
    (install,) = [line for line in lines if "pip install" in line]
    assert "--constraint constraints.txt prefect" in install
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"prefect=={version('prefect')}" in constraints
    assert server["image"] == f"holdfast-server:{version('prefect')}"
    driver = re.match(r"postgresql\+(\w+)://", server["environment"]["PREFECT_API_DATABASE_CONNECTION_URL"])
    assert driver is not None and f"{driver[1]}=={version(driver[1])}" in constraints
    (base,) = [line for line in lines if line.startswith("FROM")]
    assert base.removeprefix("FROM ") in (ROOT / "Containerfile").read_text()


def test_the_worker_is_this_project_and_takes_from_the_pool_that_is_deployed_to() -> None:
    worker = SERVICES["worker"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert worker["image"] == f"holdfast:{project['version']}"
    build = worker["build"]
    assert (DEPLOYMENTS / build["context"] / build["dockerfile"]).samefile(ROOT / "Containerfile")
    pools = {one["work_pool"]["name"] for one in deployments()}
    assert pools == {worker["command"][worker["command"].index("--pool") + 1]}
    # Where the image's user may write, and where the paths of prefect.yaml lead to what it names.
    home = re.findall(r"^WORKDIR (.+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)[-1]
    assert [f"work:{home}", f".:{home}/deployments:ro"] == worker["volumes"]
    named = [
        one["parameters"]["configuration"] for one in deployments() if "configuration" in one.get("parameters", ())
    ]
    assert named and all(path.startswith("deployments/") and (ROOT / path).is_file() for path in named)


def test_the_reconciler_is_the_workers_image_with_the_same_server_and_store() -> None:
    worker, reconciler = SERVICES["worker"], SERVICES["reconciler"]
    assert reconciler["image"] == worker["image"] and "entrypoint" not in reconciler
    assert reconciler["command"][0] in find_commands()
    assert reconciler["environment"].items() <= worker["environment"].items()


def test_every_name_is_a_setting_of_prefects() -> None:
    names = {name for one in SERVICES.values() for name in one.get("environment", {}) if name.startswith("PREFECT_")}
    assert len(names) >= 4
    assert {name for name in names if not hasattr(prefect.settings, name)} == set()


def test_nothing_is_told_to_anybody_outside() -> None:
    for name in ("server", "worker", "reconciler"):
        environment = SERVICES[name]["environment"]
        assert environment["DO_NOT_TRACK"] == "1"
        assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert SERVICES["mlflow"]["environment"]["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_no_secret_stands_in_the_file_and_each_that_is_needed_is_asked_for() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            assert not SECRET.search(name) or REQUIRED.match(value), name
    assert not re.search(r"://\w+:(?!\$\{)[^/@\s]+@", TEXT)
    needed = {name for name, kind in VARIABLE.findall(TEXT) if kind == ":?"}
    assert needed == set(re.findall(r"^(\w+)=$", EXAMPLE, re.MULTILINE))
    given = {name for name, kind in VARIABLE.findall(TEXT) if kind == ":-"}
    assert given == set(re.findall(r"^#(\w+)=", EXAMPLE, re.MULTILINE))
    assert "/deployments/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_ports_are_open_for_this_machine_alone_unless_an_address_is_given() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("${HOLDFAST_ADDRESS:-127.0.0.1}:") for port in ports)


def test_what_has_to_last_is_in_a_volume() -> None:
    for name in (*ASKED, "worker"):
        used = {volume.partition(":")[0] for volume in SERVICES[name].get("volumes", [])} - {"."}
        assert used <= set(COMPOSE["volumes"])
        assert used or name == "server"  # which keeps all it has in the database


def test_what_keeps_data_has_the_time_to_write_them_before_it_is_killed() -> None:
    keeping = {name for name in SERVICES if name in ("database", "s3")}
    assert all(int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= 60 for name in keeping)


def test_an_images_context_has_what_is_copied_and_neither_secrets_nor_data_nor_what_is_built() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert {"pyproject.toml", "storage", "training"} <= names and not names & set(ignored)
    assert {".git", ".venv", "deployments", "tests"} <= set(ignored)  # deployments has .env
    kept_out = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("/")}
    assert {name for name in kept_out if "/" not in name and not name.startswith(".")} <= set(ignored)


def test_docker_itself_can_read_it(tmp_path: Path) -> None:
    compose = find_compose()
    if compose is None:
        pytest.skip("Docker has no command `compose` here")
    (tmp_path / ".env").write_text(EXAMPLE.replace("=\n", "=x\n"))
    command = [*compose, "--env-file", str(tmp_path / ".env"), "--file", str(DEPLOYMENTS / "compose.yaml")]
    done = subprocess.run([*command, "config", "--format", "json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(SERVICES)


def find_compose() -> list[str] | None:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return None


def deployments() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())["deployments"]
    return found
