"""A bucket that does not answer for a while ends no run: what was under way is done when it answers again."""

import subprocess
import uuid
from pathlib import Path

from tests.helpers.commands import ROOT, RUN_SECONDS, Runner, kill_everything, wait_until
from tests.helpers.faulty_proxy import FaultyProxy, running_proxy
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import BUCKET, running_s3_server, s3_environment
from tests.helpers.tiny_runs import write_tiny_configuration

# What is under way, and the request of which it is the first.
MOMENTS = {
    "Settling segment 2": ("GET", "/outcome.json"),
    "Evaluating": ("PUT", "/evaluations/"),  # by the ranks
    "Writing the report": ("PUT", "/report.html"),
}


def test_a_bucket_that_is_gone_for_a_while_at_settle_at_evaluate_and_at_report_ends_no_run(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    log = tmp_path / "run.log"
    with running_s3_server() as server, running_proxy(server) as proxy:
        runner = make_runner(tmp_path, prefect_server, proxy)
        outages = {what: proxy.go_away(*request) for what, request in MOMENTS.items()}
        with log.open("wb") as output:
            command = runner.line("run", retry__attempts=0)
            process = subprocess.Popen(command, env=dict(runner.environment), cwd=ROOT, stdout=output, stderr=output)
        try:
            for what, outage in outages.items():
                assert wait_until(lambda o=outage: o.fired > 0, process), log.read_text()  # type: ignore[misc]
                assert wait_until(lambda w=what: f"{w}: attempt 2 of " in words(log), process), log.read_text()  # type: ignore[misc]
                outage.is_over = True
            assert process.wait(RUN_SECONDS) == 0, log.read_text()
        finally:
            kill_everything(process)
        status = runner.status()
    assert (status["state"], len(status["segments"]), status["steps_lost_total"]) == ("completed", 1, 0)
    assert "Cannot reach the store s3://" in words(log) and "Traceback" not in log.read_text()


def make_runner(folder: Path, environment: dict[str, str], proxy: FaultyProxy) -> Runner:
    """A run in the bucket behind the proxy, whose requests are made once: it is not they that wait."""
    store = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    write_parquet(folder / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(folder, "patient", store, folder / "data")
    environment = environment | s3_environment(proxy.endpoint, AWS_MAX_ATTEMPTS="1")
    return Runner(configuration, {"scratch": folder / "scratch"}, environment)


def words(log: Path) -> str:
    """What was said, however its lines were broken."""
    return " ".join(log.read_text().split())
