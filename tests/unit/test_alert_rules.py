"""The alert rules and the dashboard name figures, labels and states that are really exported, and rows that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from storage.objects.local_store import LocalStore
from tasks.monitoring.all_runs_figures import STATES, AllRunsFigures
from tasks.monitoring.figures import SegmentFigures
from tasks.reporting.all_runs import describe_runs, read_stores
from tests.helpers.commands import ROOT
from tests.helpers.finished_runs import segments_of, state_of
from tests.helpers.many_runs import KINDS, write_run
from training.metrics.reporter import Report

MONITORING = ROOT / "deployments/monitoring"
RULES_FILE = MONITORING / "alerts.rules.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
FIGURE = re.compile(r"\b(holdfast_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(on|by)\s*\(([^)]*)\)")
# All that is used of the language besides figures, labels, numbers and operators.
WORDS = {"and", "on", "by", "sum", "increase", "absent"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every figure, by its name as Prometheus stores it."""
    store = LocalStore(tmp_path_factory.mktemp("store"))
    for kind in set(KINDS):
        write_run(store, kind, kind)
    of_all = AllRunsFigures()
    of_all.show(describe_runs(read_stores(store)))
    state = state_of("run", 100, segments_of([("lost", "killed", 90, 3)]))
    of_a_segment = SegmentFigures(store.address, state, 100)
    of_a_segment.heard(Report(phase="train", step=95, loss=0.5))
    families = [*of_all.collect(), *of_a_segment.collect()]
    found = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    # Of a segment that has not measured its speed yet.
    return found | {family.name: {"run", "store"} for family in families if not family.samples}


def wrong_in(expression: str, exported: dict[str, set[str]]) -> list[str]:
    """What an expression names and is not there: a figure, a label, a state, a word of the language."""
    wrong = [name for name, _ in FIGURE.findall(expression) if name not in exported]
    labels = [exported.get(name, set()) for name, _ in FIGURE.findall(expression)]
    for name, selector in FIGURE.findall(expression):
        for label, value in MATCHER.findall(selector):
            wrong += [f"{name}: {label}"] if label not in exported.get(name, set()) else []
            states = value.split("|") if label == "state" else []
            wrong += [state for state in states if state not in STATES]
    for _, names in GROUPING.findall(expression):
        wrong += [name.strip() for name in names.split(",") if not all(name.strip() in one for one in labels)]
    rest = re.sub(r"\[\d+[smhd]\]", "", GROUPING.sub(r"\1", FIGURE.sub("", expression)))
    return wrong + [word for word in re.findall(r"[A-Za-z_]\w*", rest) if word not in WORDS]


def labels_of(expression: str, exported: dict[str, set[str]]) -> set[str]:
    """Those of the result: of a sum what it is by, of `absent` none, else those of the first figure."""
    if expression.startswith(("absent", "sum(")):
        return set()
    grouped = re.match(r"sum by \(([^)]*)\)", expression)
    if grouped:
        return {name.strip() for name in grouped[1].split(",")}
    (name, _), *_ = FIGURE.findall(expression)
    return exported.get(name, set())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_what_is_exported_and_says_what_to_do(
    rule: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    assert FIGURE.search(rule["expr"]) and wrong_in(rule["expr"], exported) == []
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"].keys() == {"summary", "action", "runbook"} and all(rule["annotations"].values())
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert named <= labels_of(rule["expr"], exported)
    path, _, heading = rule["annotations"]["runbook"].partition("#")
    sections = (ROOT / path).read_text(encoding="utf-8").split("\n## ")
    (section,) = [one for one in sections if one.partition("\n")[0].lower().replace(" ", "-") == heading]
    assert re.search(rf"^\| `{rule['alert']}` \|[^|]+\|[^|]+\|$", section, re.MULTILINE)


def test_the_runbook_has_no_row_for_an_alert_that_is_not_there() -> None:
    rows = re.findall(r"^\| `(Holdfast\w+)`", (ROOT / "deployments/runbook.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(rule["alert"] for rule in RULES)


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else None)
def test_a_panel_shows_what_is_exported(panel: str, target: dict[str, Any], exported: dict[str, set[str]]) -> None:
    expression = target["expr"]
    assert FIGURE.search(expression) and wrong_in(expression, exported) == []
    assert all('store=~"$store"' in selector for _, selector in FIGURE.findall(expression)), panel
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels_of(expression, exported)


def test_the_dashboard_has_its_variables_and_no_panel_covers_another(exported: dict[str, set[str]]) -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    figure, label = re.findall(r"label_values\((\w+), (\w+)\)", variables["store"]["query"]["query"])[0]
    assert label in exported[figure] and variables["datasource"]["query"] == "prometheus"
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) and DASHBOARD["schemaVersion"] and DASHBOARD["title"]
    places = [[panel["gridPos"][name] for name in "xywh"] for panel in panels]
    taken = [(column, row) for x, y, w, h in places for column in range(x, x + w) for row in range(y, y + h)]
    assert len(taken) == len(set(taken)) and max(column for column, _ in taken) < 24
    (table,) = [panel for panel in panels if panel["type"] == "table"]
    renamed = table["transformations"][1]["options"]["renameByName"]
    assert {f"Value #{target['refId']}" for target in table["targets"]} <= set(renamed)


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("holdfast_run_steps == 1", ["holdfast_run_steps"]),
        ('holdfast_run_state{state="asleep"}', ["asleep"]),
        ('holdfast_run_step{phase="train"}', ["holdfast_run_step: phase"]),
        ("holdfast_run_step and on (run, store) holdfast_store_readable", ["run"]),
        ("summ(holdfast_run_step)", ["summ"]),
        ("increase(holdfast_failed_saves[1h])", ["holdfast_failed_saves"]),
    ],
)
def test_what_is_not_there_would_be_noticed(expression: str, wrong: list[str], exported: dict[str, set[str]]) -> None:
    assert wrong_in(expression, exported) == wrong


# By figure what Prometheus reads for a while, and the alert that it has to raise, if any.
CASES: list[tuple[dict[str, str], str | None]] = [
    ({"holdfast_run_needs_person": "1"}, "HoldfastRunNeedsPerson"),
    ({"holdfast_run_needs_person": "0"}, None),
    ({"holdfast_run_sign_of_life_age_seconds": "400", "holdfast_run_state:silent": "1"}, "HoldfastNoSignOfLife"),
    ({"holdfast_run_sign_of_life_age_seconds": "400", "holdfast_run_state:completed": "1"}, None),
    ({"holdfast_run_promotion_age_seconds": "1300", "holdfast_run_save_interval_seconds": "600",
      "holdfast_run_in_training": "1"}, "HoldfastPromotionOverdue"),
    ({"holdfast_run_promotion_age_seconds": "1100", "holdfast_run_save_interval_seconds": "600",
      "holdfast_run_in_training": "1"}, None),
    ({"holdfast_run_promotion_age_seconds": "1300", "holdfast_run_save_interval_seconds": "600",
      "holdfast_run_in_training": "0"}, None),
    ({"holdfast_store_readable": "0"}, "HoldfastStoreUnreadable"),
    ({"holdfast_run_readable": "0"}, "HoldfastRunUnreadable"),
    ({"holdfast_run_goodput_ratio": "0.85", "holdfast_run_in_training": "1"}, "HoldfastGoodputLow"),
    ({"holdfast_run_goodput_ratio": "0.95", "holdfast_run_in_training": "1"}, None),
    ({"holdfast_runs_read_age_seconds": "400"}, "HoldfastFiguresOld"),
]  # fmt: skip


def test_prometheus_raises_each_alert_where_it_has_to_and_not_elsewhere(tmp_path: Path) -> None:
    """By Prometheus' own tool for tests of rules, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the PATH: install Debian's prometheus")
    names = [rule["alert"] for rule in RULES]
    tests = [_case(values, expected, names) for values, expected in CASES]
    failed = {"series": 'holdfast_failed_saves_total{run="r",store="s"}', "values": "0x60 1x60"}
    tests.append(_test([failed], "HoldfastSaveFailed", names, alive=True))
    tests.append(_test([], "HoldfastFiguresAbsent", names, alive=False))
    raised = {expected for _, expected in CASES} | {"HoldfastSaveFailed", "HoldfastFiguresAbsent"}
    assert raised - {None} == set(names)
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES_FILE)], "evaluation_interval": "1m", "tests": tests}))
    for command in (["check", "rules", RULES_FILE], ["test", "rules", file]):
        result = subprocess.run([promtool, *map(str, command)], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stdout + result.stderr


def _case(values: dict[str, str], expected: str | None, names: list[str]) -> dict[str, Any]:
    series = []
    for name, value in values.items():
        figure, _, state = name.partition(":")
        labels = "" if figure == "holdfast_runs_read_age_seconds" else 'run="r",store="s"'
        labels += f',state="{state}"' if state else ""
        series.append({"series": f"{figure}{{{labels}}}", "values": f"{value}x120"})
    return _test(series, expected, names, alive="holdfast_runs_read_age_seconds" not in values)


def _test(series: list[dict[str, str]], expected: str | None, names: list[str], alive: bool) -> dict[str, Any]:
    """After 100 minutes of these series, one alert is raised or none; `alive`: with figures that are just read."""
    if alive:
        series = [*series, {"series": "holdfast_runs_read_age_seconds", "values": "3x120"}]
    count = [
        {"expr": f'count(ALERTS{{alertstate="firing",alertname="{name}"}}) or vector(0)', "eval_time": "100m",
         "exp_samples": [{"labels": "{}", "value": float(name == expected)}]}
        for name in names
    ]  # fmt: skip
    return {"interval": "1m", "input_series": series, "promql_expr_test": count}
