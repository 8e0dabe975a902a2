"""Faults that are injected from outside take place where the plan says, as often as it says, and leave their mark."""

import errno
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.faults.campaign.points import find_points
from tests.faults.campaign.results import Result, render_table, sum_up
from tests.helpers.commands import ROOT
from tests.helpers.fault_plans import FaultPlan, Moment, read_fired, read_plan, read_trace
from tests.helpers.prefect_server import clean_environment

# What a process of the product does, in short; the name of its module on the command line makes it one.
PUT = """
import sys
from pathlib import Path
from storage.objects.local_store import LocalStore
store = LocalStore(Path(sys.argv[2]))
for number in range(3):
    store.write_if_absent(f"runs/demo/object-{number}", b"x" * 1000)
"""
LINKED = Moment("command", "link", "runs/RUN/object")


def put(plan: FaultPlan, folder: Path, code: str = PUT, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the code as a command that meets the plan; its store is `folder / "store"`, which is there already."""
    (folder / "store").mkdir(exist_ok=True)
    environment = clean_environment() | plan.environment(folder / "plan", [folder / "store"])
    line = [sys.executable, "-c", code, "flows.cli", str(folder / "store"), *arguments]
    return subprocess.run(line, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)


def stored(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "store").rglob("object-*"))


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = (
        FaultPlan()
        .kill(LINKED, "power")
        .nan(row=7)
        .hang(1, 3)
        .flip("sum", 1, 3, 70)
        .clock(-5.0)
        .on_another_host()
        .traced()
    )
    plan.environment(tmp_path, [tmp_path / "store"])
    assert read_plan(tmp_path) == ([str(tmp_path / "store")], plan)


def test_a_process_dies_just_before_the_operation_and_only_once(tmp_path: Path) -> None:
    plan = FaultPlan().kill(Moment("command", "link", "runs/RUN/object", nth=2))
    assert put(plan, tmp_path).returncode == -signal.SIGKILL
    assert stored(tmp_path) == ["object-0"]
    (mark,) = read_fired(tmp_path / "plan")
    assert (mark["operation"], mark["place"], mark["fault"]) == ("link", "runs/RUN/object-1", 0)
    again = put(plan, tmp_path)
    assert "ObjectExistsError" in again.stderr and len(read_fired(tmp_path / "plan")) == 1


@pytest.mark.parametrize("times", [1, None])
def test_an_operation_fails_as_often_as_the_plan_says(tmp_path: Path, times: int | None) -> None:
    plan = FaultPlan().disk_full(LINKED, times)
    assert "No space left on device" in put(plan, tmp_path).stderr
    assert put(plan, tmp_path).returncode == (0 if times else 1)
    assert stored(tmp_path) == (["object-0", "object-1", "object-2"] if times else [])


def test_an_operation_fails_for_some_seconds_in_each_process_from_its_first_try_on(tmp_path: Path) -> None:
    plan = FaultPlan().failing_for(0.2, Moment("command", "link", "runs/RUN/object"), "EIO")
    tried = textwrap.indent(PUT, " " * 8)
    again = f"import time\nfor _ in range(2):\n    try:\n{tried}\n    except Exception: time.sleep(1)"
    for _ in range(2):
        assert put(plan, tmp_path).returncode == 1
        fired = len(read_fired(tmp_path / "plan"))
    assert put(plan, tmp_path, again).returncode == 0
    assert len(read_fired(tmp_path / "plan")) > fired
    assert stored(tmp_path) == ["object-0", "object-1", "object-2"]


def test_one_file_of_many_is_named_by_its_path(tmp_path: Path) -> None:
    folders = [f"runs/demo/checkpoints/{step:09d}-f00000002" for step in (3, 6)]
    read = (
        "import sys\nfrom pathlib import Path\nfor name in sys.argv[3:]:\n"
        "    try: print((Path(sys.argv[2]) / name / 'index.json').read_text())\n"
        "    except OSError as error: print(error.errno, error.filename)"
    )
    for folder in folders:
        (tmp_path / "store" / folder).mkdir(parents=True)
        (tmp_path / "store" / folder / "index.json").write_text("sound")
    plan = FaultPlan().failing(Moment(operation="read", path=f"/{folders[1]}/"), "EIO", None)
    for _ in range(2):  # for ever, in every process
        said = put(plan, tmp_path, read, *folders).stdout
        assert said == f"sound\n{errno.EIO} {tmp_path / 'store' / folders[1]}/index.json\n"
    assert {mark["place"] for mark in read_fired(tmp_path / "plan")} == {"runs/RUN/checkpoints/N-fN/index.json"}


def test_what_fails_from_a_moment_on_fails_in_later_processes_from_the_start(tmp_path: Path) -> None:
    plan = FaultPlan().disk_full(Moment("command", "link", "runs/RUN/object", nth=2))
    for _ in range(2):
        assert "No space left on device" in put(plan, tmp_path).stderr
    assert stored(tmp_path) == ["object-0"]


def test_a_write_is_cut_in_half_by_a_kill(tmp_path: Path) -> None:
    put(FaultPlan().kill(Moment(operation="write", place=".tmp/")), tmp_path)
    (temporary,) = (tmp_path / "store" / ".tmp").iterdir()
    assert temporary.stat().st_size == 500


@pytest.mark.parametrize(
    ("forgotten", "expected"),
    [("", ["object-0", "object-1"]), ("sync_folder", []), ("os.fsync", [])],
)
def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path, forgotten: str, expected: list[str]) -> None:
    code = PUT
    if forgotten:  # a store that leaves out this one call
        code = PUT.replace(
            "store =", f"import storage.objects.local_store as used; used.{forgotten} = lambda *_: None\nstore ="
        )
    put(FaultPlan().kill(Moment("command", "link", "object-2"), "power"), tmp_path, code)
    whole = [path.name for path in sorted((tmp_path / "store").rglob("object-*")) if path.stat().st_size == 1000]
    assert whole == expected


def test_the_clock_is_off_by_what_the_plan_says(tmp_path: Path) -> None:
    code = "import time; print(time.time(), time.time_ns())"
    hour = 3600
    there, here = (put(plan, tmp_path, code).stdout.split() for plan in (FaultPlan().clock(-hour), FaultPlan()))
    assert -hour - 60 < float(there[0]) - float(here[0]) <= -hour
    assert abs(float(there[0]) - int(there[1]) / 1e9) < 1


def test_a_process_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    environment = clean_environment() | FaultPlan().kill(LINKED).environment(tmp_path / "plan", [tmp_path / "store"])
    line = [sys.executable, "-c", PUT, "prefect", str(tmp_path / "store")]
    assert subprocess.run(line, env=environment, cwd=ROOT, timeout=240).returncode == 0
    assert read_fired(tmp_path / "plan") == []


def test_the_points_are_the_operations_of_a_trace_each_kind_once(tmp_path: Path) -> None:
    put(FaultPlan().traced(), tmp_path)
    trace = read_trace(tmp_path / "plan")
    assert [entry["place"] for entry in trace if entry["operation"] == "link"] == [
        f"runs/RUN/object-{number}" for number in range(3)
    ]
    points = find_points(trace)
    assert len({point.signature for point in points}) == len(points) == len(trace)
    operations = [point.moment.operation for point in points if point.subject == "runs/RUN/object-1"]
    assert operations == ["open", "write", "fsync", "link", "fsync", "unlink"]


def test_what_a_killed_command_was_putting_is_no_point(tmp_path: Path) -> None:
    put(FaultPlan().traced().kill(Moment(operation="fsync", place=".tmp/", nth=2)), tmp_path)
    trace = read_trace(tmp_path / "plan")
    subjects = {point.subject for point in find_points(trace)}
    assert subjects == {"runs/RUN/object-0", ""}  # of the second, a file was written that had no name yet
    assert {point.subject for point in find_points(trace, was_killed=True)} == {"runs/RUN/object-0"}


def test_a_fault_that_did_not_take_place_is_as_bad_as_one_that_ended_badly() -> None:
    good = Result("a", 2, 2, "equal", 1.0)
    results = [
        good,
        Result("b", 2, 1, "equal", 1.0),
        Result("c", 1, 1, "bad", 1.0, "a|b\nc"),
        Result("d", 0, 0, "equal", 1),
    ]
    assert [result.is_bad for result in results] == [False, True, True, True]
    assert "bad=3 seconds=7" in sum_up(results, 7.4) and "| a/b c |" in render_table(results)
