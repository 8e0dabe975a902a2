"""A whole run over a bucket that does not answer for a while: what was under way is done when it answers again.

On Ceph, or on moto where Ceph is not installed.
"""

import json
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.ceph_server import find_missing_programs
from tests.helpers.commands import ROOT, RUN_SECONDS, Runner, kill_everything, wait_until
from tests.helpers.faulty_proxy import FaultyProxy, running_proxy
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import BUCKET, s3_environment, upload_folder, use_s3
from tests.helpers.tiny_runs import write_tiny_configuration

# What is under way, and the request of which it is the first.
MOMENTS = {
    "Settling segment 2": ("GET", "/outcome.json"),
    "Evaluating": ("PUT", "/evaluations/"),  # by the ranks
    "Writing the report": ("PUT", "/report.html"),
}


@dataclass
class Over:
    """A run that is over: how it ended, what it said, and how to ask about it."""

    runner: Runner
    exit_code: int
    said: str


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("s3_endpoint" if find_missing_programs() else "ceph_endpoint"))


@pytest.fixture(scope="module")
def over(server: str, prefect_server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    folder = tmp_path_factory.mktemp("gone")
    log = folder / "run.log"
    with running_proxy(server) as proxy:
        runner = make_runner(folder, prefect_server, proxy)
        outages = {what: proxy.go_away(*request) for what, request in MOMENTS.items()}
        with log.open("wb") as output:
            command = runner.line("run", retry__attempts=0)
            process = subprocess.Popen(command, env=dict(runner.environment), cwd=ROOT, stdout=output, stderr=output)
        try:
            for what, outage in outages.items():
                assert wait_until(lambda o=outage: o.fired > 0, process), log.read_text()  # type: ignore[misc]
                assert wait_until(lambda w=what: f"{w}: attempt 2 of " in words(log), process), log.read_text()  # type: ignore[misc]
                outage.is_over = True
            exit_code = process.wait(RUN_SECONDS)
        finally:
            kill_everything(process)
        yield Over(runner, exit_code, words(log))


def make_runner(folder: Path, environment: dict[str, str], proxy: FaultyProxy) -> Runner:
    """A run whose store and source are in the bucket behind the proxy, and whose requests are made once."""
    store = f"s3://{BUCKET}/{uuid.uuid4().hex}/prefix"
    write_parquet(folder / "data" / "part-0.parquet", text_columns(120))
    with pytest.MonkeyPatch.context() as patch:
        use_s3(patch, proxy.endpoint)
        source = upload_folder(folder / "data")
    configuration = write_tiny_configuration(folder, "patient", store, source)
    # What is downloaded goes below TMPDIR.
    environment = environment | s3_environment(proxy.endpoint, AWS_MAX_ATTEMPTS="1") | {"TMPDIR": str(folder)}
    return Runner(configuration, {"scratch": folder / "scratch"}, environment)


def words(log: Path) -> str:
    """What was said, however its lines were broken."""
    return " ".join(log.read_text().split())


@pytest.mark.slow
def test_a_bucket_that_is_gone_for_a_while_at_settle_at_evaluate_and_at_report_ends_no_run(over: Over) -> None:
    assert over.exit_code == 0, over.said
    assert "Cannot reach the store s3://" in over.said and "Traceback" not in over.said
    asked = over.runner.call("status", "--json")
    status = json.loads(asked.stdout)
    assert (status["state"], status["step"], len(status["segments"])) == ("completed", 4, 1)
    assert status["steps_lost_total"] == 0


@pytest.mark.slow
def test_what_the_run_left_in_the_bucket_is_proven_file_by_file_and_sample_by_sample(over: Over) -> None:
    verified = over.runner.call("verify")
    assert verified.returncode == 0 and "None yet." not in verified.stdout, verified.stdout + verified.stderr
    audited = over.runner.call("audit")
    assert audited.returncode == 0, audited.stdout + audited.stderr
