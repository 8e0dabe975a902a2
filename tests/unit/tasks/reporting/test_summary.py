"""What stands on a flow run's page in Prefect: figures, segments, checkpoints with the reason why they stay."""

from tasks.configuration.run import RunConfig
from tasks.reporting.run_summary import MOST_SEGMENTS, summarise
from tests.helpers.finished_runs import measured_run, segments_of

CONFIG = RunConfig.model_validate(
    {"run": "first", "data": {"source": "x", "text": "t", "label": "l", "kind": "multiclass"}, "train": {"steps": 10}}
)


def test_figures_segments_and_reasons_are_told() -> None:
    state = measured_run()
    text = summarise(
        state, CONFIG, "store/runs/first/report.html", {"validation": [{"step": 7, "metrics": {"auc": 0.5}}]}
    )
    assert f"| segments | {len(state.segments)}, {state.steps_lost:,} steps lost |" in text
    assert "| goodput | " in text
    assert "| validation ROC AUC, step 7 | 0.5000 |" in text
    assert f"## Segments: {len(state.segments)}" in text
    assert "the resume point" in text
    assert "Full report: `store/runs/first/report.html`" in text


def test_of_many_segments_the_newest_are_listed_and_all_are_counted() -> None:
    segments = segments_of([("preempted", "", 10 * number, 0) for number in range(1, 101)])
    text = summarise(measured_run().model_copy(update={"segments": segments}), CONFIG, "report")
    assert "## Segments: 100" in text
    assert text.count("| preempted |") == MOST_SEGMENTS
    assert f"| {segments[-1].fence} | preempted |" in text


def test_text_from_outside_stays_in_its_cell() -> None:
    segments = segments_of([("failed", "a | b <script> [x](y) `c`\nd", 10, 0)])
    text = summarise(measured_run().model_copy(update={"segments": segments}), CONFIG, "report")
    assert r"a \| b \<script\> \[x\](y) \`c\` d" in text
