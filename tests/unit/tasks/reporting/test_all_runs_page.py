"""The page of all runs says what the list says, first what a person has to do, and nothing in a run can break it."""

import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from storage.errors import ConfigurationError, StoreUnavailableError
from storage.objects.local_store import LocalStore
from tasks.reporting.all_runs import StoreReading, describe_runs, read_stores, seconds_left
from tasks.reporting.all_runs_page import render_runs_page, write_runs_page
from tests.helpers.many_runs import KINDS, write_many_runs, write_run

HOSTILE = "<script>alert(1)<"


class Read(HTMLParser):
    """Elements with their attributes, and what is read on the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


def render(*readings: StoreReading, refresh_seconds: int | None = None) -> str:
    return render_runs_page(describe_runs(readings), time.time(), refresh_seconds)


def test_every_run_is_there_and_those_that_need_a_person_are_first(tmp_path: Path) -> None:
    stores = write_many_runs(tmp_path, len(KINDS))
    found = describe_runs(read_stores(*stores))
    text = Read(render_runs_page(found, time.time())).text
    assert "10 runs in 3 stores 2 in need of a person" in text
    assert "In need of a person 2 " in text and "In training 4 of 10 runs" in text and "Completed 2 " in text
    listed = text[text.index("Newest metric") :]
    needy = [run for run in found["runs"] if run["needs_person"] is not None]
    assert {run["state"] for run in needy} == {"silent", "failed"}
    for run in found["runs"]:
        assert f"{run['run']} {run['state']}" in listed and run["address"] in listed
    places = {run["run"]: listed.index(f"{run['run']} {run['state']}") for run in found["runs"]}
    assert sorted(places, key=lambda run: places[run])[:2] == [run["run"] for run in needy]
    for run in needy:
        assert text.index(run["needs_person"]) < text.index("Newest metric")


def test_a_run_in_training_has_its_steps_time_promotion_goodput_metric_and_holder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write_run(store, "trains", "training", 4)
    page = render(*read_stores(store))
    text = Read(page).text
    row = text[text.index("trains running") :]
    assert row.startswith("trains running 2,520 of 20,000 31 min 4 s 6 min ")
    assert re.search(r"ago \d\.\d s ago \d\d\.\d % macro-F1 0\.8123, validation", row)
    assert re.search(r"/runs/trains, held by process \d+ on gpu-host-04", row)
    assert 'style="width:12.6%"' in page


def test_whose_a_run_is_stands_with_it_and_where_it_needs_a_person(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write_run(store, "failed", "failed", owner=f"R&D {HOSTILE}")
    write_run(store, "trains", "training", 4, owner="search team")
    page = render(*read_stores(store))
    text = Read(page).text
    assert re.search(rf"In need of a person failed \S+/runs/failed Owner: R&D {re.escape(HOSTILE)} Its last", text)
    assert re.search(rf"/runs/failed, owner: R&D {re.escape(HOSTILE)}", text) and HOSTILE not in page
    assert re.search(r"/runs/trains, owner: search team, held by process \d+ on gpu-host-04", text)


def test_without_an_owner_the_page_has_no_word_of_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for kind in ("failed", "training"):
        write_run(store, kind, kind)
    text = Read(render(*read_stores(store))).text.replace(store.address, "")
    assert "owner" not in text.lower()


def test_of_a_run_that_is_silent_nobody_knows_how_long_it_takes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write_run(store, "silent", "silent")
    (run,) = describe_runs(read_stores(store))["runs"]
    assert run["live"]["seconds_left"] > 0 and seconds_left(run) is None


def test_a_store_and_a_run_that_cannot_be_read_stand_there_with_the_reason(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("good", "broken"):
        write_run(store, name, "new")
    (key,) = store.list_keys("runs/broken/manifest/")
    store.write(key, b"{}")
    away = StoreReading("s3://away/holdfast", [], StoreUnavailableError("Nobody answers at 10.0.0.5."))
    text = Read(render(*read_stores(store), away)).text
    assert "2 runs in 2 stores 1 run not readable, 1 store not readable" in text
    assert "The store s3://away/holdfast Nobody answers at 10.0.0.5." in text
    assert re.search(r"broken /\S+/runs/broken The manifest", text)
    assert "good created 0 of 20,000" in text


def test_without_a_run_the_page_says_so() -> None:
    text = Read(render(StoreReading("s3://empty", []))).text
    assert "0 runs in 1 store nobody is needed" in text and "There is no run that can be read." in text


def test_what_comes_from_outside_is_text_and_the_page_loads_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "<img src=x onerror=alert(1)>")
    write_run(store, HOSTILE, "failed")
    away = StoreReading("s3://<script>", [], StoreUnavailableError('<a href="javascript:alert(1)">\x1b[31m'))
    page = render(*read_stores(store), away)
    read = Read(page)
    assert read.text.count(HOSTILE) >= 2 and "\x1b" not in page
    assert {tag for tag, _ in read.elements}.isdisjoint({"script", "a", "img", "link", "iframe", "object"})
    names = {name for _, attributes in read.elements for name in attributes}
    assert names.isdisjoint({"src", "href"}) and not [name for name in names if name.startswith("on")]
    assert "url(" not in page and "@import" not in page


def test_the_page_is_loaded_again_only_if_asked(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write_run(store, "new", "new")
    assert "http-equiv" not in str([e for e in Read(render(*read_stores(store))).elements if "refresh" in str(e)])
    refreshing = Read(render(*read_stores(store), refresh_seconds=30))
    assert ("meta", {"http-equiv": "refresh", "content": "30"}) in refreshing.elements


def test_the_file_is_replaced_at_once_and_nothing_else_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.html"
    write_runs_page(path, "first")
    before = path.stat()
    write_runs_page(path, "second")
    assert path.read_text() == "second" and path.stat().st_ino != before.st_ino

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match=r"Cannot write the page of all runs to .*runs\.html: No space left"):
        write_runs_page(path, "third")
    assert path.read_text() == "second" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none/runs\.html: No such file or directory\. Give another file"):
        write_runs_page(tmp_path / "none" / "runs.html", "page")
