"""Each page says all that a person needs, and is a row of the runbook."""

import re
from pathlib import Path
from typing import get_args

import pytest

from tasks.reconciling.pages import DO, OVER, SEVERITIES, Kind, Page, page_of_place

RUNBOOK = (Path(__file__).parents[4] / "deployments" / "runbook.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w-]+)`, (info|warning|critical) \|", re.MULTILINE)


def test_each_kind_is_a_row_of_the_runbook_with_its_severity() -> None:
    section = RUNBOOK.partition("\n## Pages\n")[2].partition("\n## ")[0]
    by_an_automation = {"reconciler-silent": "critical"}
    over_at_once = {"run-complete": "info"}
    assert dict(ROW.findall(section)) == SEVERITIES | by_an_automation | over_at_once
    assert set(get_args(Kind)) == set(SEVERITIES) == set(DO) == set(OVER)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_page_says_what_where_how_far_and_what_to_do(kind: Kind) -> None:
    page = Page(kind=kind, about="demo", address="/s/runs/demo", what="It died.", host="gpu-7", step="step 7 of 100")
    for part in ("It died.", "/s/runs/demo", "gpu-7", "step 7 of 100", DO[kind], f"section Pages: {kind}"):
        assert part in page.body
    assert page.subject == f"[{SEVERITIES[kind]}] {kind}: demo"
    assert page.over_subject == f"[over] {kind}: demo"
    assert "1 min 30 s" in page.over_body(90.0) and "/s/runs/demo" in page.over_body(None)


def test_whose_the_run_is_stands_in_the_page_where_it_is_known() -> None:
    page = Page(kind="run-stuck", about="demo", address="/s/runs/demo", what="It died.", owner="search team")
    for body in (page.body, page.over_body(90.0)):
        assert "\nOwner: search team" in body
    unknown = page.model_copy(update={"owner": None})
    assert "Owner" not in unknown.body + unknown.over_body(None)


def test_no_password_of_an_address_is_in_a_page() -> None:
    page = page_of_place("server-away", "http://admin:secret@prefect:4200/api?token=secret", "No answer.")
    assert "secret" not in f"{page.subject}{page.body}{page.over_body(1.0)}" and "prefect:4200/api" in page.body
