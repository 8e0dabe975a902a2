"""`import holdfast` in a user's process: results, errors, Ctrl-C, and the names of the user's own folders."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import holdfast
from holdfast import results
from holdfast.child import write_value
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.transitions import promote
from storage.segment_notes import find_stop
from tasks.config.load import change_values
from tests.helpers.commands import ROOT, call_here, wait_until
from tests.helpers.runs import lease_run, make_checkpoint, make_run, record_of
from tests.helpers.wheels import NAMES, write_own_packages

HEAVY = {"torch", "prefect", "pydantic", "duckdb", "pyarrow", "rich", "typer", "numpy"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_held_run(tmp_path_factory.mktemp("interface"))


def make_held_run(folder: Path) -> str:
    """The address of a run with one checkpoint, whose lease this process holds: it counts as in training."""
    store = LocalStore(folder / "store")
    manifest = make_run(store)
    fence = lease_run(manifest)
    record = record_of(make_checkpoint(store, folder / "files", 10, fence))
    manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
    return f"{store.address}/runs/run"


def in_a_process(code: str, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """A user's program, with the folder first on its path, and this project somewhere behind it."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_importing_it_loads_nothing_heavy_and_takes_none_of_the_names(tmp_path: Path) -> None:
    code = f"import holdfast, sys; holdfast.run; print(sorted({HEAVY | set(NAMES)!r} & set(sys.modules)))"
    said, errors = in_a_process(code, tmp_path).communicate()
    assert said == "[]\n", errors


def test_it_works_beside_folders_of_our_names_that_were_imported_before(tmp_path: Path, address: str) -> None:
    own = tmp_path / "own"
    write_own_packages(own)
    code = """
        import sys
        import flows, tasks, training, storage
        import holdfast
        listed = holdfast.runs(sys.argv[1].rpartition("/runs/")[0])
        print(holdfast.status(sys.argv[1])["step"], listed["runs"][0]["run"])
        print(*{module.OWNER for module in (flows, tasks, training, storage)})
    """
    said, errors = in_a_process(code, own, address).communicate()
    assert said == "10 run\nsomebody else\n", errors


def test_a_result_is_what_the_command_prints_and_has_the_fields_that_its_type_names(address: str) -> None:
    store = address.removesuffix("/runs/run")
    for name, target in (("status", address), ("runs", store), ("verify", address)):
        found: dict[str, Any] = getattr(holdfast, name)(target)
        printed = json.loads(call_here([name, target, "--json"]).stdout)
        assert found.keys() == printed.keys()
        assert found.keys() == type_of(name).__annotations__.keys()
    status = holdfast.status(address)
    assert status["promoted"] is not None and status["promoted"].keys() == {*results.Checkpoint.__annotations__}
    assert {*holdfast.runs(store)["runs"][0]} == {*holdfast.Run.__annotations__}
    assert {*holdfast.verify(address)["checkpoints"][0]} == {*results.VerifiedCheckpoint.__annotations__}


def type_of(name: str) -> Any:
    return {"status": holdfast.Status, "runs": holdfast.RunList, "verify": holdfast.Verification}[name]


def test_an_error_has_the_message_of_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(holdfast.HoldfastError) as raised:
        holdfast.run(tmp_path / "none.toml", {"train.steps": 5})
    assert (raised.value.kind, raised.value.exit_code) == ("ConfigurationError", 2)
    assert str(raised.value).startswith(f"Cannot read the configuration {tmp_path / 'none.toml'}")
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("Reading the configuration ") and f"Error: {raised.value}\n" in said.err
    with pytest.raises(
        holdfast.HoldfastError, match="`holdfast predict` ended with exit code 2 without a result"
    ) as raised:
        holdfast.predict("model", "data", "result", threads=0)
    assert raised.value.kind == ""


WAITING = """
    import holdfast, sys
    try:
        holdfast.stop(sys.argv[1])
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", psutil.Process]]:
    """A user's program that waits in `holdfast.stop`, which this process does not answer; and its child."""
    program = in_a_process(WAITING, tmp_path, make_held_run(tmp_path))
    store = LocalStore(tmp_path / "store")
    fence = Manifest(store, "run").load_head().state.lease.fence  # type: ignore[union-attr]
    try:
        assert wait_until(lambda: find_stop(store, "run", fence) is not None, program)
        (child,) = psutil.Process(program.pid).children()
        yield program, child
    finally:
        program.kill()
        program.communicate()


def test_ctrl_c_ends_the_command_and_is_raised_when_it_has_ended(
    waiting: tuple["subprocess.Popen[str]", psutil.Process],
) -> None:
    program, child = waiting
    program.send_signal(signal.SIGINT)
    said, errors = program.communicate(timeout=120)
    assert said == "interrupted\n", errors
    assert not child.is_running()


def test_a_command_does_not_outlive_a_program_that_is_killed(
    waiting: tuple["subprocess.Popen[str]", psutil.Process],
) -> None:
    program, child = waiting
    program.kill()
    assert psutil.wait_procs([child], timeout=120)[1] == []


@pytest.mark.parametrize(
    "value", [True, 3, 0.5, "text", "a b", [1, 2], ["x", "y"], {"a": 1, "b c": "d"}, [[1], {"a": [True]}]], ids=repr
)
def test_a_value_of_python_arrives_as_it_is(value: object) -> None:
    assert change_values({}, [f"field={write_value(value)}"]) == {"field": value}


CONFIGURATION = """
run = "ours"
store = "store"
[data]
source = "corpus"
id = "sample_id"
text = "prompt_text"
label = "violation_class"
kind = "multiclass"
[train]
steps = 6
batch_size = 32
microbatches = 4
[model]
width = 32
layers = 1
"""


@pytest.mark.slow
def test_a_model_is_trained_evaluated_exported_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert call_here(["corpus", "corpus", "--job", "policy", "--rows", "800"]).returncode == 0
    Path("run.toml").write_text(CONFIGURATION)
    prepared = holdfast.prepare("run.toml")
    assert prepared.keys() == holdfast.PreparedData.__annotations__.keys()
    finished = holdfast.run("run.toml", {"train.steps": 8})
    assert (finished["state"], finished["step"]) == ("completed", 8)
    assert finished["dataset_digest"] == prepared["digest"]
    assert finished.keys() == {**holdfast.Status.__annotations__, **holdfast.RunResult.__annotations__}.keys()
    assert Path(holdfast.report("run.toml", "page.html")["report"]).is_file() and Path(finished["report"]).is_file()
    evaluated = holdfast.evaluate("run.toml", settings={"train.device": "cpu"})  # the best model, on the test split
    assert evaluated["metrics"] == finished["metrics"]
    assert holdfast.Evaluation.__annotations__.keys() <= evaluated.keys()
    exported = holdfast.export("run.toml", "model", onnx=False)
    assert exported.keys() == holdfast.Export.__annotations__.keys()
    predicted = holdfast.predict("model", "corpus", "predicted.parquet", threads=1)
    assert (predicted["rows"], predicted["left_out"]) == (800, 0)
    assert predicted.keys() == holdfast.Prediction.__annotations__.keys()
    audited = holdfast.audit("run.toml")
    assert audited["ok"] and audited.keys() == holdfast.Audit.__annotations__.keys()
    assert holdfast.verify("run.toml")["valid"]
