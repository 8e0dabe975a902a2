"""The report says what the records say, can be opened anywhere, and nothing in the records can break it."""

import base64
import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from storage.runs.run_records import QuarantineRecord, ViewTotals
from storage.runs.run_state import Divergence, Holder, Lease, NotFiniteMetrics, RejectedRecord, ValidationFigures
from tasks.reporting.charts import draw_roc
from tasks.reporting.curves import draw_validation
from tasks.reporting.run_page import render_report, run_verdict
from tasks.text import duration, shortened, size
from tests.helpers.finished_runs import (
    BEGAN_AT,
    INTENTS,
    Records,
    checkpoint_at,
    dataset_of,
    evaluation_of,
    history_of,
    interrupted_run,
    segments_of,
    state_of,
)
from tests.helpers.pictures import svg_text
from tests.helpers.rollbacks import rollback_to

HOSTILE = (
    "<script>alert(1)</script>",
    "$\\frac{x$",
    "a\"b'c & <b>",
    "日本語の分類",
    "bell\x00\x07\x1b[31m",
    "{{ 7 * 7 }}{% raw %}",
    "w" * 300,
)
PROMISE = "The model is the one that an uninterrupted run makes"


class Page(HTMLParser):
    """What a browser finds in the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def images(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "img"]

    def svg(self, index: int) -> str:
        return base64.b64decode((self.images[index]["src"] or "").partition(",")[2]).decode()


def render(records: Records) -> str:
    return render_report(records.state, records.history, records.evaluation, records.dataset, records.calibration)


@pytest.fixture(scope="module")
def multiclass() -> str:
    return render(interrupted_run())


@pytest.fixture(scope="module")
def binary() -> str:
    return render(interrupted_run("binary"))


def test_a_complete_run_says_what_its_interruptions_cost_and_what_the_model_is(multiclass: str) -> None:
    text = Page(multiclass).text
    assert (
        "Complete: 1,200 of 1,200 steps in 4 segments; 3 interruptions cost at least 37 steps of work that was done "
        "again." in text
    )
    assert PROMISE in text
    assert "1 preempted, 1 lost, 1 time budget" in text
    assert "lost recorded no outcome: the process or the machine was killed" in text
    assert "310 → 637" in text


def test_key_figures_and_full_hashes_are_on_the_page(multiclass: str) -> None:
    records, text = interrupted_run(), Page(multiclass).text
    assert records.evaluation is not None and records.state.promoted is not None
    assert f"{records.evaluation['metrics']['macro_f1']:.4f}" in text
    assert records.state.promoted.weights_sha256 in text
    assert records.dataset.digest in text
    for checkpoint in records.state.kept:
        assert checkpoint.digest in text and checkpoint.path in text


def test_the_promise_is_made_only_where_the_segments_prove_it() -> None:
    def remarks(*ends: tuple[str, str, int, int]) -> str:
        return " ".join(run_verdict(state_of("r", 1200, segments_of(ends))).remarks)

    done = ("completed", "", 1200, 0)
    assert PROMISE in remarks(("preempted", "", 500, 0), done)
    assert PROMISE not in remarks(("diverged", "", 500, 80), done)
    assert PROMISE not in remarks(done)
    late = [segment.model_copy(update={"first_step": 1}) for segment in segments_of([("lost", "", 500, 0), done])]
    assert PROMISE not in " ".join(run_verdict(state_of("r", 1200, late)).remarks)
    gap = segments_of([("lost", "", 500, 0), done])
    gap[1] = gap[1].model_copy(update={"first_step": 501})
    assert PROMISE not in " ".join(run_verdict(state_of("r", 1200, gap)).remarks)


def test_rollbacks_are_told_in_the_verdict_and_one_by_one(multiclass: str) -> None:
    records = replace(interrupted_run(), history={}, evaluation=None)
    rollbacks = [
        rollback_to(100, 160, batch_size=10, factor=0.5),
        rollback_to(90, 170, batch_size=10).model_copy(update={"cause": HOSTILE[0]}),
    ]
    page = Page(render(replace(records, state=records.state.model_copy(update={"rollbacks": rollbacks}))))
    assert (
        "Training diverged, and the run was rolled back 2 times; 800 samples of the order were left out." in page.text
    )
    told = (
        "step 160 The loss became nan at step 160. step 100 600 samples",
        "\N{MULTIPLICATION SIGN} 0.5 replaced by a later one",
        HOSTILE[0],
    )
    assert all(text in page.text for text in told)
    assert "Rollbacks" not in Page(multiclass).text


def test_a_run_that_nothing_interrupted_says_so() -> None:
    verdict = run_verdict(state_of("r", 1200, segments_of([("completed", "", 1200, 0)])))
    assert verdict.headline == "Complete: 1,200 of 1,200 steps in 1 segment; nothing interrupted it."


def test_where_ranks_died_and_the_others_trained_on_nothing_else_is_claimed() -> None:
    (segment,) = segments_of([("completed", "", 1200, 0)])
    totals = ViewTotals(num_views=4, num_lost=3, num_joined=1, longest_seconds=0.2)
    verdict = run_verdict(state_of("r", 1200, [segment.model_copy(update={"view_totals": totals})]))
    assert verdict.headline == "Complete: 1,200 of 1,200 steps in 1 segment."
    assert verdict.remarks[0].startswith("3 ranks died, and the others trained on from the same step")
    assert PROMISE in " ".join(verdict.remarks)


def test_a_stopped_run_names_what_is_safe_and_how_its_last_segment_ended() -> None:
    verdict = run_verdict(state_of("r", 1200, segments_of([("failed", "CUDA out of memory", 440, 40)])))
    assert verdict.standing == "stopped"
    assert verdict.headline == "Not complete: 400 of 1,200 steps (33.3 %) are saved in a promoted checkpoint."
    assert "The last segment ended with an error at step 440 (CUDA out of memory)." in verdict.remarks
    assert "So far 1 interruption cost 40 steps of work." in verdict.remarks


def test_a_run_that_nothing_carries_on_names_the_way_out() -> None:
    stopped = segments_of([("diverged", "The loss became nan at step 440.", 440, 40)])
    evidence = Divergence(kind="loss", step=440)
    diverged = [stopped[0].model_copy(update={"divergence": evidence})]
    assert "if none is left, it says what can be changed" in run_verdict(state_of("r", 1200, diverged)).remarks[-1]
    trained = segments_of([("completed", "", 1200, 0)])
    figures = ValidationFigures(metric="auc", value=0.5, step=1200, best_value=0.5, best_step=1200)
    last = checkpoint_at("r", 1200).model_copy(update={"fence": trained[-1].fence})
    rejected = RejectedRecord(checkpoint=last, validation=figures, reason="too low", rejected_at=BEGAN_AT)
    verdict = run_verdict(state_of("r", 1200, trained, promoted=checkpoint_at("r", 1000), rejected=[rejected]))
    assert "change checkpoint.gate and start “holdfast run” again" in verdict.remarks[-1]


def test_a_run_whose_lease_is_held_is_reported_as_training() -> None:
    holder = Holder(host="h", pid_scope="here", pid=1, start_ticks=1)
    lease = Lease(fence=9, holder=holder, world_size=2, planned_steps=1000, first_step=400, taken_at=BEGAN_AT)
    verdict = run_verdict(state_of("r", 1200, segments_of([("lost", "", 440, 40)]), lease=lease))
    assert verdict.standing == "running"
    assert "A segment has been training from step 400 on since 2026-11-20 08:00 UTC." in verdict.remarks


def test_a_run_that_has_only_begun_has_a_report() -> None:
    page = Page(render_report(state_of("fresh", 1000, []), {}, None, dataset_of(INTENTS, "multiclass", "domain")))
    assert "0 of 1,000 steps" in page.text
    assert "No loss has been recorded yet" in page.text
    assert "Not evaluated yet" in page.text
    assert len(page.images) == 1  # the classes of the data set


def test_damaged_checkpoints_are_listed_with_their_reason() -> None:
    records = interrupted_run()
    damaged = QuarantineRecord(
        step=800, path="runs/x/800", reason="model.safetensors has another SHA-256", quarantined_at=BEGAN_AT
    )
    state = records.state.model_copy(update={"quarantined": [damaged]})
    page = Page(render_report(state, {}, None, records.dataset))
    assert "1 checkpoint quarantined or passed over" in page.text
    assert "model.safetensors has another SHA-256" in page.text


def test_a_calibration_is_told_drawn_and_for_a_binary_target_listed_by_threshold(multiclass: str, binary: str) -> None:
    page = Page(multiclass)
    assert "Temperature 1.6180, fitted on 1,190 samples of the validation split: loss there 0.3127 before" in page.text
    assert "Threshold" not in page.text
    page = Page(binary)
    assert "Threshold with the best F1 on validation: 0.5270" in page.text
    assert "is at least that counts as “True”" in page.text
    assert "0.527" in page.text and "the same on test" in page.text
    alts = [image["alt"] or "" for image in page.images]
    assert any("Expected calibration error: before 0.1241, after 0.0187." in alt for alt in alts)
    assert any("F1 is highest at 0.527" in alt for alt in alts)


def test_where_there_is_no_calibration_the_page_says_why_or_nothing() -> None:
    records = replace(interrupted_run("binary"), history={})
    assert records.calibration is not None
    about = {name: records.calibration[name] for name in ("format", "step", "weights_sha256", "kind", "classes")}
    without = about | {"temperature": None, "reason": "the validation split has no rows"}
    page = Page(render(replace(records, calibration=without)))
    assert "Not calibrated: the validation split has no rows." in page.text
    assert not any("Reliability" in (image["alt"] or "") for image in page.images)
    assert "Calibration" not in Page(render(replace(records, calibration=None))).text


def test_a_temperature_at_its_bound_and_a_split_that_was_looked_at_in_part_are_told() -> None:
    records = replace(interrupted_run(), history={})
    assert records.calibration is not None
    fitted_on = {"split": "validation", "num_samples": 100_000, "num_rows": 420_000}
    page = Page(
        render(replace(records, calibration=records.calibration | {"is_bounded": True, "fitted_on": fitted_on}))
    )
    assert "fitted on 100,000 samples of the validation split, the first of 420,000:" in page.text
    assert "do not rely on these probabilities" in page.text


def test_test_figures_of_other_weights_are_marked_as_such(multiclass: str) -> None:
    records = interrupted_run()
    moved = records.state.model_copy(update={"promoted": checkpoint_at("intents", 1100)})
    warning = "The test figures belong to the weights of step 1,200; the resume point is step 1,100."
    assert warning in render(replace(records, state=moved, history={}))
    assert warning not in multiclass


def test_the_same_records_give_the_same_bytes(multiclass: str) -> None:
    assert render(interrupted_run()) == multiclass
    svg = Page(multiclass).svg(0)
    assert "dc:date" not in svg and "Matplotlib v" not in svg


def test_the_page_loads_nothing_and_runs_nothing(multiclass: str) -> None:
    page = Page(multiclass)
    assert not {"script", "link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    assert all((image["src"] or "").startswith("data:image/svg+xml;base64,") for image in page.images)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "href"]
    assert not re.findall(r"(?:https?:)?//\w", multiclass) and "url(" not in multiclass and "@import" not in multiclass
    for index in range(len(page.images)):
        references = re.findall(r'(?:href="|url\()([^")]*)', page.svg(index))
        assert all(reference.startswith("#") for reference in references)


def test_every_picture_has_its_content_in_words(multiclass: str) -> None:
    alts = [image["alt"] or "" for image in Page(multiclass).images]
    assert len(alts) == 8 and all(len(alt) > 40 for alt in alts)
    assert "3 interruptions: preempted at step 310, lost at step 637, time budget at step 905." in alts[0]


def test_hostile_names_and_causes_stay_text_in_page_and_pictures() -> None:
    records = Records(
        state_of("evil", 300, segments_of([("failed", "".join(HOSTILE[:6]), 100, 10), ("completed", "", 300, 0)])),
        history_of(300),
        evaluation_of(HOSTILE, "multiclass", 300),
        dataset_of(HOSTILE, "multiclass", "<i>label</i>"),
    )
    html = render(records)
    page = Page(html)
    assert {"script", "b", "i", "text"}.isdisjoint(tag for tag, _ in page.tags)
    for name in HOSTILE[:4]:
        assert name in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", html)
    drawn = [svg_text(page.svg(index)) for index in range(len(page.images))]  # each is well-formed XML
    assert "$\\frac{x$" in drawn[1] and "<script>" in drawn[1]
    assert not any("<script" in page.svg(index) for index in range(len(page.images)))


def test_interruptions_are_labelled_in_the_loss_chart(multiclass: str) -> None:
    text = svg_text(Page(multiclass).svg(0))
    assert "preempted · SIGTERM" in text and "lost · no sign of life for 30 s" in text and "budget of 20 s" in text


def test_values_that_are_not_finite_are_told_and_left_out_of_the_pictures() -> None:
    records = interrupted_run("binary")
    last = records.history["validation"][-1]
    last["metrics"] = dict.fromkeys(last["metrics"], "nan")
    assert records.state.promoted is not None and records.evaluation is not None
    found = NotFiniteMetrics(step=last["step"], metrics={"loss": "nan", "auc": "nan"})
    tested = dict.fromkeys(records.evaluation["metrics"], "nan")
    state = records.state.model_copy(
        update={"promoted": records.state.promoted.model_copy(update={"not_finite": found}), "metrics": tested}
    )
    evaluation = records.evaluation | {"metrics": tested, "confusion": [], "per_class": [], "roc": None}
    page = render_report(state, records.history, evaluation, records.dataset)
    assert f"The last validation, at step {last['step']:,}, gave values that are not finite numbers: loss = nan" in page
    assert "The test gave values that are not finite numbers: loss = nan" in page
    assert "predicts no class there" in page and "Not evaluated yet" not in page
    chart = draw_validation(records.history)
    assert chart is not None and "ROC AUC nan, best 0." in chart.alt


def test_a_run_whose_validations_gave_no_finite_value_has_a_report() -> None:
    records = interrupted_run()
    for entry in records.history["validation"]:
        entry["metrics"] = dict.fromkeys(entry["metrics"], "nan")
    page = render_report(records.state, records.history | {"loss": []}, None, records.dataset)
    assert "No validation gave a finite value yet." in page and "No validation yet." not in page


def test_a_binary_run_shows_its_roc_curve_and_a_run_without_one_does_without(binary: str) -> None:
    records, page = interrupted_run("binary"), Page(binary)
    assert "ROC AUC 0.9812" in svg_text(page.svg(1)) and "Test ROC AUC 0.9812" in page.text
    assert records.evaluation is not None
    without: Mapping[str, Any] = records.evaluation | {"roc": None}
    assert draw_roc(without) is None
    plain = Page(render(replace(records, history={}, evaluation=dict(without), calibration=None)))
    assert len(plain.images) == 5 and "2 classes" in (plain.images[0]["alt"] or "")


def test_the_configuration_is_listed_in_the_form_that_set_takes(multiclass: str) -> None:
    assert "train.learning_rate = 0.001" in multiclass
    assert "data.tokens = (not set)" in multiclass


def test_the_template_is_part_of_the_package() -> None:
    assert importlib.resources.files("tasks.reporting").joinpath("run_page.html.jinja").is_file()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.44, "0.4 s"), (37, "37 s"), (252, "4 min 12 s"), (3600, "1 h"), (7500, "2 h 5 min"), (273_700, "3 d 4 h")],
)
def test_durations_have_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("num_bytes", "words"), [(0, "0 bytes"), (999, "999 bytes"), (12_300_000, "12.3 MB"), (999_900, "1.0 MB")]
)
def test_sizes_are_decimal(num_bytes: int, words: str) -> None:
    assert size(num_bytes) == words


def test_long_names_are_cut_and_control_characters_are_made_visible() -> None:
    assert shortened("w" * 50, 10) == "w" * 9 + "…"
    assert shortened("a\x00\ud800\nb", 10) == "a\ufffd\ufffd b"


def test_a_long_cause_stands_below_its_segment_over_the_whole_width() -> None:
    causes = ["", "Rank 1 was ended by SIGSEGV, " + "and so on" * 20]
    segments = segments_of([("budget", causes[0], 600, 0), ("failed", causes[1], 800, 0)])
    page = render(replace(interrupted_run(), state=state_of("r", 1200, segments), history={}, evaluation=None))
    table = page.partition('aria-label="Segments"')[2].partition("</table>")[0]
    assert ">Cause<" not in table
    (below,) = re.findall(r'<td class="below" colspan="(\d+)">(.*?)</td>', table)
    assert below == (str(table.count("<th ") - 1), causes[1])
