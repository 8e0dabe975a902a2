"""What the terminal shows is what the records say, whole, at every width; where there is none, whole lines."""

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from flows.commands.runs import render_runs
from flows.commands.status import render_status
from storage.objects.local_store import LocalStore
from storage.runs.run_state import RunState, SegmentRecord, Throughput
from tasks.configuration.run import DataConfig, RunConfig
from tasks.console import display, messages, terminal
from tasks.console.announce import announce
from tasks.console.tables import MOST_ROWS, Cell, Kind, Table, show_table
from tasks.reporting.all_runs import list_runs
from tasks.reporting.status import read_status
from tasks.text import NOTHING
from tests.helpers.finished_runs import segments_of
from tests.helpers.many_runs import write_many_runs, write_run
from tests.helpers.runs import make_run
from tests.helpers.terminals import shown
from training.configuration import TrainConfig
from training.metrics.reporter import Report, Reporter
from training.world import World

MARKED = "[red]up[/red] :cat: [/] $[x]"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_table_shows_brackets_and_colons_as_they_are_and_cuts_nothing_off(width: int) -> None:
    table = Table(
        [("Path", "text"), (MARKED, "number")], [[Cell(f"[red]{'w' * 150}[/red]:cat:"), Cell("1,234 → 2,345")]]
    )
    text = shown(show_table(table), width)
    assert MARKED in text and "1,234 → 2,345" in text
    assert text.count("w") == 150 and "".join(text.split()).count("[/red]:cat:") == 2


def test_a_narrow_terminal_leaves_out_what_it_has_no_room_for_and_names_it() -> None:
    columns: list[tuple[str, Kind]] = [("Run", "text"), ("Step", "number"), ("Goodput", "number"), ("Metric", "text")]
    row = [Cell("w" * 30), Cell("1,234"), Cell("98.7 %"), Cell("x" * 20)]
    content = show_table(Table(columns, [row], narrow=("Goodput", "Metric")))
    fewest = {12 + 2 + 5 + 2 + 7 + 2 + 12: [], 12 + 2 + 5 + 2 + 12: ["Goodput"], 12 + 2 + 5: ["Goodput", "Metric"]}
    for width, left_out in fewest.items():
        table, _, note = shown(content, width).partition("Not shown")
        assert [name for name, _ in columns if name not in table.split()] == left_out
        assert ", ".join(left_out) in " ".join(note.split()) and bool(note) == bool(left_out)
        assert table.count("w") == 30 and "1,234" in table
    assert "1,234" in shown(content, min(fewest) - 1)  # what may not be left out stays, however narrow it is


def test_rows_that_are_left_out_are_counted_and_it_is_said_how_to_see_them() -> None:
    table = Table([("Segment", "number")], [[Cell(f"row-{number}")] for number in range(MOST_ROWS + 3)])
    text = shown(show_table(table, MOST_ROWS))
    assert "row-2\n" not in text and "row-3\n" in text and "row-22" in text
    assert "3 earlier rows not shown: --json lists all of them." in text
    assert "row-0" in shown(show_table(table)) and "not shown" not in shown(show_table(table))


def test_the_status_of_many_segments_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    segments = segments_of([("lost", MARKED, 10 * number, 1) for number in range(1, 31)])

    def ended(state: RunState, _generation: int) -> RunState:
        return state.model_copy(update={"segments": segments})

    make_run(store).commit("segments ended", ended)
    status = read_status(store, "run")
    assert len(status["segments"]) == 30
    text = shown(render_status(status), 120)
    assert "10 earlier rows not shown: --json lists all of them." in text
    assert text.count(MARKED) == MOST_ROWS


def test_a_result_is_printed_in_whole_lines_without_padding_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = Table([("Step", "number"), ("Why", "text")], [[Cell("1"), Cell("word " * 60)], [Cell("2"), Cell("b")]])
    terminal.print_content(show_table(table))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[2] == "   2  b"
    assert all(line == line.rstrip() for line in lines)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("holdfast")
    before = logger.handlers, logger.propagate
    yield logger
    logger.handlers, logger.propagate = before


def test_a_message_is_one_whole_line_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    messages.show_messages()
    announce(f"{MARKED} " + "word " * 40 + "end")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" end") and MARKED in line


def test_a_connection_that_prefect_makes_again_by_itself_is_no_traceback_on_the_terminal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    monkeypatch.setattr(logging.getLogger("websockets"), "level", logging.NOTSET)  # as it was, afterwards
    messages.show_messages()
    logging.getLogger("websockets.client").error("keepalive ping failed", exc_info=ConnectionError("no close frame"))
    assert caplog.text == ""


@pytest.fixture(params=[80, 120])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Console:
    console = Console(file=io.StringIO(), force_terminal=True, width=request.param, height=24, highlight=False)
    monkeypatch.setattr(display, "console", console)
    return console


def test_the_bar_has_room_and_the_figures_are_whole(screen: Console) -> None:
    train = TrainConfig(steps=1_000_000, batch_size=64)
    config = RunConfig(run="r", data=DataConfig(text="t", label="l", kind="binary"), train=train)
    with display.SegmentDisplay(config, 123_000) as shown_segment:
        shown_segment.show(Report(phase="restore", step=0))
        measured = Throughput(samples_per_second=12_995.2, tokens_per_second=4_351_325.0, input_wait_fraction=0.0312)
        shown_segment.show(Report(phase="train", step=123_456, loss=0.12345, throughput=measured))
        shown_segment.saved(123_400)
        bar, figures, speed = _lines(shown_segment, screen)
    assert "training" in bar and "12%" in bar and bar.rstrip().endswith("left")
    assert bar.count("━") + bar.count("╸") + bar.count("╺") >= 30
    assert figures == "step 123,456 of 1,000,000, loss 0.1235, saved at step 123,400"
    assert speed == "12,995 samples/s, 4,351,325 tokens/s, 3.1% of the time waiting for data"


def _lines(shown_segment: display.SegmentDisplay, screen: Console) -> list[str]:
    rendered = shown_segment._progress.get_renderable()
    text = Text.from_ansi("".join(part.text for part in screen.render(rendered)))
    return [line.rstrip() for line in text.plain.splitlines() if line.strip()]


def test_the_rate_after_a_resume_counts_the_steps_that_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("training.metrics.reporter.time.monotonic", lambda: now)
    reporter = Reporter(tmp_path / "progress.jsonl", World(0, 1, 0, 1), batch_size=10)
    with reporter.phase("restore"):
        now += 5
    reporter.step = 5000  # what was restored
    with reporter.phase("train"):
        for step in (5001, 5002):
            with reporter.waiting_for_input():
                now += 1
            now += 4  # the step itself
            reporter.stepped(step, 0.5, num_tokens=300, num_microbatches=1)
    reporter.close()
    lines = (tmp_path / "progress.jsonl").read_text().splitlines()
    measured = [report.throughput for report in map(Report.model_validate_json, lines) if report.throughput is not None]
    assert measured and all(one.samples_per_second <= 10 for one in measured)
    assert all(one.tokens_per_second == 30 * one.samples_per_second for one in measured)
    assert all(0 < one.input_wait_fraction < 1 for one in measured)
    whole = reporter.throughput()
    assert reporter.seconds["train"] == 10
    assert whole is not None and whole.input_wait_fraction == pytest.approx(2 / 10)
    assert whole.samples_per_second == pytest.approx(20 / reporter.seconds["train"], abs=0.001)


def test_a_segment_record_that_was_printed_as_json_is_read_back_for_the_table(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    segments: list[SegmentRecord] = segments_of([("lost", "no outcome", 10, 1)])
    make_run(store).commit("ended", lambda state, _: state.model_copy(update={"segments": segments}))
    assert "lost     0 → 10" in shown(render_status(read_status(store, "run")), 100)


def test_the_runs_of_a_store_are_listed_with_one_that_cannot_be_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    for name in ("first", "second"):
        make_run(store, name, steps=1200)
    (key,) = store.list_keys("runs/second/manifest/")
    store.write(key, b"{}")
    text = shown(render_runs(list_runs(store)), 300)
    assert f"2 runs in {store.address}\n" in text
    (first,) = [line.split() for line in text.splitlines() if line.startswith("first ")]
    assert first[:6] == ["first", "created", "0", "1,200", NOTHING, NOTHING]
    assert first[-4:] == ["s", "ago", NOTHING, NOTHING]
    assert "second  unreadable" in text and "second: The manifest" in text


def test_owners_are_a_column_if_one_run_has_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    write_run(store, "plain", "waiting")
    assert "Owner" not in shown(render_runs(list_runs(store)))
    write_run(store, "owned", "new", owner="search team")
    make_run(store, "broken")
    (key,) = store.list_keys("runs/broken/manifest/")
    store.write(key, b"{}")
    heading, *rows = shown(render_runs(list_runs(store))).splitlines()[1:5]
    assert re.split(r"  +", heading.strip())[:3] == ["Run", "Owner", "State"]
    assert [re.split(r"  +", row.strip())[:3] for row in rows[1:]] == [
        ["owned", "search team", "created"], ["plain", NOTHING, "budget"],
    ]  # fmt: skip
    assert re.match(r"broken +unreadable ", rows[0])


def test_the_runs_of_several_teams_can_be_read_in_80_columns(tmp_path: Path) -> None:
    *_, store = write_many_runs(tmp_path, 10)
    lines = shown(render_runs(list_runs(store)), 80).partition("in need of a person")[0].splitlines()[1:]
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["Run", "Owner", "State", "Step", "Of", "Left", "Last", "sign"]
    (row,) = [" ".join(line.split()) for line in lines if "2,870" in line]
    assert re.match(r"risk-and-co\S* risk-and-co\S* silent 2,870 20,000 \S+ 1 h( \d min)? ago$", row)
    assert "Not shown in a terminal of this width: Goodput, Promoted, Newest metric." in " ".join(lines)
