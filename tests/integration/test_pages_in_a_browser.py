"""The report as a browser shows it, on a desktop and on a phone: no error, and nothing to scroll sideways."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.reporting.run_page import render_report
from tests.helpers.browser import Page, browsing
from tests.helpers.finished_runs import interrupted_run
from tests.helpers.rollbacks import rollback_to


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browsing() as page:
        yield page


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of finished runs, as files; one was rolled back by hand and has a name that no line can hold."""
    folder = tmp_path_factory.mktemp("reports")
    multiclass, binary = interrupted_run(), interrupted_run("binary")
    rollback = rollback_to(600, 700).model_copy(update={"asked_by": "flow run 1", "cause": "A person asked for it."})
    odd = replace(multiclass, state=multiclass.state.model_copy(update={"rollbacks": [rollback], "run": "w" * 120}))
    baseline = {
        "metrics": {"accuracy": 0.99, "macro_f1": 0.99, "auc": 0.999}, "reason": None, "num_rows": 200_000,
        "num_train_rows": 1_234_567, "num_test_rows": 1203, "num_terms": 131_072,
    }  # fmt: skip
    assert multiclass.evaluation is not None
    tested = {"metrics": multiclass.evaluation["metrics"], "metrics_step": 1200}
    multiclass = replace(multiclass, state=multiclass.state.model_copy(update=tested))
    written = {}
    for name, records in {"multiclass": multiclass, "binary": binary, "odd": odd}.items():
        written[name] = folder / f"{name}.html"
        page = render_report(
            records.state, records.history, records.evaluation, records.dataset, records.calibration, (), baseline
        )
        written[name].write_text(page)
    return written


@pytest.mark.parametrize(
    ("name", "screen"),
    itertools.product(("multiclass", "binary", "odd"), ((1280, 900), (390, 844))),
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}px",
)
def test_the_report_fits_the_screen_and_the_console_stays_empty(
    page: Page, reports: dict[str, Path], name: str, screen: tuple[int, int], tmp_path: Path
) -> None:
    width, height = screen
    page.errors.clear()
    page.resize(width, height, is_phone=width < 500)
    page.open(reports[name].as_uri())
    page.wait_for_text("Goodput")
    assert ("A linear model on counts of tokens is better" in page.text()) == (name == "multiclass")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    pictures = page.evaluate("[...document.images].map(i => i.naturalWidth)")
    assert all(pictures)
    (tmp_path / "screen.png").write_bytes(page.take_picture())  # for whoever looks into why it failed
    assert page.errors == []


def test_an_error_in_the_console_and_a_page_that_is_too_wide_would_be_noticed(page: Page, tmp_path: Path) -> None:
    """The assertions above look at something."""
    page.errors.clear()
    page.resize(390, 844, is_phone=True)
    (tmp_path / "bad.html").write_text(
        "<meta name=viewport content='width=device-width'><p style='width: 900px'>wide</p>"
        "<script>console.error('first'); undefined_function()</script><img src='missing.png'>"
    )
    page.open((tmp_path / "bad.html").as_uri())
    page.wait_for_text("wide")
    assert page.evaluate("document.documentElement.scrollWidth") > 390
    assert len(page.errors) == 3, page.errors
