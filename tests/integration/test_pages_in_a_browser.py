"""The pages as a browser shows them, on a desktop and on a phone: no error, and nothing to scroll sideways."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from tasks.reporting.all_runs import StoreReading, describe_runs, read_stores
from tasks.reporting.all_runs_page import render_runs_page, write_runs_page
from tasks.reporting.run_page import render_report
from tests.helpers.browser import Page, browsing
from tests.helpers.finished_runs import interrupted_run
from tests.helpers.many_runs import write_many_runs, write_run
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


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of all runs, as files: of fifty, of none, of a store that is away, and of names that no line can hold."""
    folder = tmp_path_factory.mktemp("lists")
    odd = LocalStore(folder / ("<script>document.title='hostile'<" + "/script>"))
    for name in ("w" * 180, "<script>document.title='hostile'<"):
        write_run(odd, name, "failed", 3)
    away = StoreReading("s3://away/" + "w" * 90, [], StoreUnavailableError("No answer from http://" + "w" * 90))
    readings = {
        "fifty": read_stores(*write_many_runs(folder / "many", 50)), "none": [StoreReading("s3://empty/holdfast", [])],
        "odd": [*read_stores(odd), away],
    }  # fmt: skip
    written = {name: folder / f"{name}.html" for name in readings}
    for name, path in written.items():
        write_runs_page(path, render_runs_page(describe_runs(readings[name]), time.time()))
    return written


@pytest.mark.parametrize(
    ("name", "screen"),
    itertools.product(("fifty", "none", "odd"), ((1280, 900), (390, 844))),
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}px",
)
def test_the_page_of_all_runs_fits_the_screen_and_runs_no_script(
    page: Page, lists: dict[str, Path], name: str, screen: tuple[int, int], tmp_path: Path
) -> None:
    width, height = screen
    page.errors.clear()
    page.resize(width, height, is_phone=width < 500)
    page.open(lists[name].as_uri())
    page.wait_for_text("Stores")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('td.run').length") == {"fifty": 50, "none": 0, "odd": 2}[name]
    # On a phone the headings of the table are beside each figure.
    hidden = page.evaluate("[...document.querySelectorAll('.runs thead')].map(e => e.offsetHeight === 0)")
    assert hidden == ([] if name == "none" else [width < 500])
    assert page.evaluate("document.scripts.length") == 0 and page.evaluate("document.title") != "hostile"
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
