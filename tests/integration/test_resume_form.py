"""The form of `resume` in Prefect's real UI, as a person in a browser fills it in; and what the flow run's page shows.

Pictures of what is seen go to the folder that HOLDFAST_PICTURES names, if it is set: those in deployments/pictures are
made so.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.browser import Page, browsing
from tests.helpers.commands import call_here
from tests.helpers.operators import ENDED, PREFECT, Operator, operating, working
from tests.helpers.prefect_server import running_prefect_server

pytestmark = [pytest.mark.server, pytest.mark.slow]

RUN = "continued"
# More than are made before the test ends it.
STEPS = 2_000_000
DESKTOP = (1280, 1500)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, server: dict[str, str]) -> Iterator[Operator]:
    """An operator with a worker, and a run that was stopped."""
    folder = tmp_path_factory.mktemp("operator")
    with operating(folder, server) as operator, working(operator, PREFECT, server, folder):
        flow_run = operator.begin(RUN)
        call_here(["stop", folder / "store/runs" / RUN])
        operator.wait(lambda: operator.states(flow_run)[-1]["type"] in ENDED)
        yield operator


@pytest.fixture
def page() -> Iterator[Page]:
    with browsing() as page:
        page.resize(*DESKTOP)
        yield page


def test_filled_in_and_submitted_the_run_goes_on_and_its_page_shows_where_it_is(
    stopped: Operator, server: dict[str, str], page: Page
) -> None:
    address = server["PREFECT_API_URL"].removesuffix("/api")
    deployment = stopped.deployment("resume/resume")["id"]
    page.open(f"{address}/deployments/deployment/{deployment}/run")
    page.write(field("store", "textarea"), "store")
    page.write(field("run", "textarea"), RUN)
    page.click(field("steps (Optional)", "button", "int"))
    page.write(field("steps (Optional)", "input"), str(STEPS))
    keep(page, "form")
    page.click(button("Submit"))
    page.wait_for("!location.pathname.endsWith('/run')")  # the form is left
    stopped.wait(lambda: bool(stopped.flow_runs("resume/resume")))
    (flow_run,) = stopped.flow_runs("resume/resume")
    stopped.wait(lambda: stopped.segment_has_saved(2, RUN))
    assert stopped.state(RUN).steps_total == STEPS

    training = stopped.find_training(flow_run)
    stopped.wait(lambda: {f"progress-{RUN}", f"loss-{RUN}"} <= set(stopped.artifacts(training)))
    page.open(f"{address}/runs/flow-run/{training}")
    page.click(tab("Artifacts"))
    page.wait_for_text(f"progress-{RUN}")
    page.wait_for_text(f"loss-{RUN}")
    keep(page, "artifacts")
    call_here(["stop", stopped.folder / "store/runs" / RUN])
    stopped.wait(lambda: stopped.states(flow_run)[-1]["type"] in ENDED)
    page.open(f"{address}/runs/flow-run/{flow_run}")
    page.wait_for_text("Cancelled")


def field(label: str, kind: str, text: str | None = None) -> str:
    """The element of this kind, and with this text on it, in the part of the form with this label."""
    return (
        "[...document.querySelectorAll('.schema-form-property')]"
        f".find(part => part.querySelector('.schema-form-property__label').innerText === {json.dumps(label)})"
        f"?.querySelectorAll('.p-label__body {kind}').values()"
        f".find(found => {json.dumps(text)} === null || found.innerText === {json.dumps(text)})"
    )


def button(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find(found => found.innerText === {json.dumps(text)})"


def tab(text: str) -> str:
    return f"[...document.querySelectorAll('[role=tab], .p-tab, button')].find(e => e.innerText === {json.dumps(text)})"


def keep(page: Page, name: str) -> None:
    folder = os.environ.get("HOLDFAST_PICTURES")
    if folder is not None:
        (Path(folder) / f"{name}.png").write_bytes(page.take_picture())
