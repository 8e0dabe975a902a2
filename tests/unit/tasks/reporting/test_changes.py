"""What weakens the promise of one model stands in the manifest, and is told wherever the promise would be."""

from pathlib import Path
from typing import Any, Literal

from flows.commands.status import render_status
from storage.objects.local_store import LocalStore
from storage.runs.code_version import CodeVersion, own_version
from storage.runs.manifest import Manifest
from storage.runs.rollbacks.quarantine import quarantine
from storage.runs.run_records import ChangeRecord
from storage.runs.run_state import RunState
from storage.runs.transitions import reconfigure
from tasks.configuration.run import DataConfig, RunConfig
from tasks.promotion.promotion import promote_checkpoint
from tasks.recovery.settle import settle_segment
from tasks.reporting.changes import MAX_CHANGES_LISTED, describe_other_holdfast, list_changes
from tasks.reporting.run_page import run_verdict
from tasks.reporting.status import read_status
from tasks.reporting.tables import segments_table
from tasks.run_paths import RunPaths
from tasks.text import NOTHING
from tests.helpers.finished_runs import segments_of, state_of
from tests.helpers.runs import BATCH_SIZE, find_complete_checkpoints, lease_run, make_checkpoint, make_run
from tests.helpers.terminals import shown
from training.configuration import TrainConfig

STEPS = 40
PROMISE = "The model is the one that an uninterrupted run makes"
TORCH = {"torch": "2.13.0", "device": "cpu AVX2"}


class ChangedRun:
    """A run of 40 steps that goes on, segment for segment, with whatever is given."""

    def __init__(self, folder: Path, sum: Literal["exact", "fast"] = "exact") -> None:
        self.store = LocalStore(folder / "store")
        self.folder = folder
        self.sum = sum
        self.manifest: Manifest = make_run(self.store, steps=STEPS)
        self.run_paths = RunPaths(self.store, self.manifest, folder / "scratch", folder / "data")

    @property
    def state(self) -> RunState:
        return self.manifest.load_head().state

    @property
    def changes(self) -> list[tuple[int, str, str, str]]:
        return [(record.step, record.what, record.before, record.now) for record in self.state.changes]

    def config(self) -> RunConfig:
        train = TrainConfig(batch_size=BATCH_SIZE, steps=self.state.steps_total, sum=self.sum)
        return RunConfig(run="run", data=DataConfig(text="t", label="l", kind="multiclass"), train=train)

    def train(
        self,
        *steps: int,
        ranks: int = 1,
        versions: dict[str, str] | None = None,
        holdfast: CodeVersion | None = None,
    ) -> None:
        """A segment that has these checkpoints promoted and is then lost."""
        fence = lease_run(self.manifest, ranks)
        for step in steps:
            found = make_checkpoint(
                self.store, self.folder / "files", step, fence, versions=versions or TORCH, holdfast=holdfast
            )
            promote_checkpoint(self.config(), self.run_paths, found.path)
        lease = self.state.lease
        assert lease is not None
        settle_segment(self.config(), self.run_paths, lease)

    def plan(self, steps: int) -> None:
        self.manifest.commit("configuration changed", reconfigure({}, steps))

    def lose_newest(self) -> None:
        point = self.state.promoted
        assert point is not None
        self.manifest.commit("quarantined", quarantine(point.step, point.path, "a flipped bit", None))


def test_a_run_that_goes_on_as_it_was_begun_has_no_changes(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path, "fast")
    run.train(10)
    run.train(20, 30)
    assert run.changes == []


def test_other_steps_of_the_whole_run_are_recorded_where_they_came_into_force(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.plan(50)  # nothing was trained yet: this is how the run begins
    run.train(10, 20)
    run.plan(60)
    assert run.changes == []  # no checkpoint was made with it
    run.train(30, 40)
    assert run.changes == [(20, "train.steps", "50", "60")]


def test_steps_that_were_changed_and_changed_back_leave_no_trace(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10)
    run.plan(60)
    run.train()
    run.plan(STEPS)
    run.train(20)
    assert run.changes == []


def test_the_number_of_ranks_is_a_change_with_fast_sums_alone(tmp_path: Path) -> None:
    for sum_, changes in (("exact", []), ("fast", [(10, "train.ranks", "1", "2"), (20, "train.ranks", "2", "1")])):
        run = ChangedRun(tmp_path / sum_, sum_)  # type: ignore[arg-type]
        run.train(10)
        run.train(20, ranks=2)
        run.train(30)
        assert run.changes == changes


def test_a_device_or_a_library_is_a_change_where_both_checkpoints_name_it(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10, versions={**TORCH, "dropped": "1"})
    run.train(20, versions={"torch": "2.14.0", "device": "NVIDIA H200", "new": "1"})
    assert run.changes == [(10, "device", "cpu AVX2", "NVIDIA H200"), (10, "torch", "2.13.0", "2.14.0")]


def test_what_a_lost_segment_left_is_compared_by_whoever_settles_it(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10)
    fence = lease_run(run.manifest)
    make_checkpoint(run.store, tmp_path / "files", 20, fence, versions={**TORCH, "torch": "2.14.0"})
    assert len(find_complete_checkpoints(run.store, "run", fence)) == 1
    lease = run.state.lease
    assert lease is not None
    settle_segment(run.config(), run.run_paths, lease)
    assert run.changes == [(10, "torch", "2.13.0", "2.14.0")]


def test_a_change_that_the_run_goes_back_before_is_no_change_any_more(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10)
    run.plan(60)
    run.train(20)
    assert len(run.changes) == 1
    run.lose_newest()
    assert run.changes == []
    run.lose_newest()
    run.train(10)  # from step 0 on, with the new number of steps: this is the model of 60 steps
    assert run.changes == []


def test_a_change_stays_while_the_resume_point_is_behind_it(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10)
    run.plan(60)
    run.train(20, 30)
    run.lose_newest()
    run.train(30)
    assert run.changes == [(10, "train.steps", "40", "60")]


OLDER = CodeVersion(version="0.0.9", commit="a" * 40, code_sha256="1" * 64)
NEWER = CodeVersion(version="0.1.0", commit=None, code_sha256="2" * 64)


def test_another_holdfast_is_a_change_where_both_checkpoints_have_it(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10)  # as one that was made before it was recorded
    run.train(20, holdfast=OLDER)
    run.train(30, holdfast=NEWER)
    run.train(40, holdfast=NEWER.model_copy(update={"commit": "b" * 40}))  # the same code, committed
    assert run.changes == [(20, "Holdfast", OLDER.describe(), NEWER.describe())]
    told = read_status(run.store, "run")["changes"][0]["description"]
    assert told.startswith(
        "Holdfast was 0.0.9 (commit aaaaaaaaaaaa, code 111111111111) up to step 20 and 0.1.0 (code 222222222222) from "
        "there on. "
    )


def test_lease_and_segment_say_which_holdfast_trains_and_status_and_page_that_it_is_another(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10)
    assert describe_other_holdfast(run.state) is None
    (ended,) = run.state.segments
    assert ended.holdfast == own_version()
    fence = lease_run(run.manifest)
    assert run.state.lease is not None and run.state.lease.holdfast == own_version()
    assert describe_other_holdfast(run.state) is None
    older = run.state.model_copy(update={"segments": [ended.model_copy(update={"holdfast": OLDER})]})
    words = (
        f"Segment {fence} is trained by Holdfast {own_version().describe()}, segment {ended.fence} before it was by "
        f"{OLDER.describe()}."
    )
    run.manifest.commit("as it was", lambda _state, _number: older)
    status = read_status(run.store, "run")
    assert status["holder"]["holdfast"] == own_version().model_dump(mode="json")
    assert status["segments"][0]["holdfast"] == OLDER.model_dump(mode="json")
    assert words in shown(render_status(status)) and words in run_verdict(run.state).remarks


def test_the_table_has_the_holdfast_of_each_segment_where_it_is_not_the_same_for_all() -> None:
    one, two, three = segments_of([("preempted", "", 100, 0), ("preempted", "", 200, 0), ("completed", "", 300, 0)])
    assert "Holdfast" not in [name for name, _ in segments_table([one, two, three]).columns]
    by_two = [one, two.model_copy(update={"holdfast": OLDER}), three.model_copy(update={"holdfast": NEWER})]
    table = segments_table(by_two)
    assert table.columns[-1][0] == "Holdfast"
    assert [row[-1].text for row in table.rows] == [NOTHING, OLDER.describe(), NEWER.describe()]


def changed_state(*changes: ChangeRecord) -> RunState:
    segments = segments_of([("preempted", "", 500, 0), ("completed", "", 1200, 0)])
    return state_of("r", 1200, segments, changes=list(changes))


def test_the_report_promises_nothing_that_a_change_has_weakened() -> None:
    steps = ChangeRecord(step=500, what="train.steps", before="1000", now="1200")
    ranks = ChangeRecord(step=500, what="train.ranks", before="2", now="3")
    torch = ChangeRecord(step=500, what="torch", before="2.12.0", now="2.13.0")
    assert PROMISE in " ".join(run_verdict(changed_state()).remarks)
    for change, words in (
        (steps, "train.steps was 1000 up to step 500 and 1200 from there on. The learning rate follows the number"),
        (ranks, "train.ranks was 2 up to step 500 and 3 from there on. With train.sum = 'fast'"),
        (torch, "torch was 2.12.0 up to step 500 and 2.13.0 from there on. The last bits of the weights may not be"),
    ):
        remarks = " ".join(run_verdict(changed_state(change)).remarks)
        assert PROMISE not in remarks and words in remarks


def test_of_many_changes_the_first_are_told_and_the_others_counted() -> None:
    changes = [ChangeRecord(step=step, what="train.ranks", before="1", now="2") for step in range(1, 9)]
    told = list_changes(changes)
    assert len(told) == MAX_CHANGES_LISTED + 1 and told[-1].startswith("And 3 more: “holdfast status --json”")


def test_the_status_names_the_changes_for_a_person_and_for_a_program(tmp_path: Path) -> None:
    run = ChangedRun(tmp_path)
    run.train(10)
    run.plan(60)
    run.train(20)
    status: dict[str, Any] = read_status(run.store, "run")
    (change,) = status["changes"]
    assert (change["step"], change["what"], change["before"], change["now"]) == (10, "train.steps", "40", "60")
    assert change["description"] in shown(render_status(status))
