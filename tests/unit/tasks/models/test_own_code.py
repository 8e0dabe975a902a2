"""A user's own code in a configuration: where it is, what a run keeps of it, who may say where it is."""

from pathlib import Path
from typing import Any

import pytest

from flows.resume import load_run_configuration
from storage.errors import ConfigurationError, IncompatibleRunError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.cluster.node import Node
from tasks.cluster.node_identity import NodeIdentity
from tasks.cluster.orders import JobOrder
from tasks.cluster.requests import Requests
from tasks.config.changes import as_begun, require_compatible
from tasks.config.load import configure
from tasks.config.paths import absolute_paths
from tasks.config.template import render_configuration
from tasks.configuration.cluster import ClusterConfig
from tasks.configuration.run import RunConfig
from tasks.models.brought import pin_brought, require_same_brought
from tasks.models.own_code import require_factory, stored_values
from tests.helpers.own_modules import write_module, write_optimizer
from training.model_configuration import ModuleConfig
from training.spec import SegmentSpec

SETTINGS: dict[str, Any] = {
    "run": "small",
    "data": {"source": "/data", "text": "text", "label": "topic", "kind": "multiclass"},
}


def config_of(folder: Path, **changes: dict[str, Any]) -> RunConfig:
    model = {"kind": "module", "factory": f"{folder}/my_models.py:build", **changes.get("model", {})}
    factory = f"{folder}/my_optim.py:build"
    train = {"steps": 4, "optimizer": "factory", "optimizer_factory": factory, **changes.get("train", {})}
    return configure(RunConfig, {**SETTINGS, **changes, "model": model, "train": train}, "test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path / "code")
    return write_optimizer(tmp_path / "code").parent


@pytest.fixture
def state(folder: Path) -> RunState:
    """Of a run that was begun with the code in the folder, and has a checkpoint."""
    values = pin_brought(config_of(folder)).model_dump(mode="json")
    record = CheckpointRecord(
        step=2, path="p", digest="d", weights_sha256="w", num_bytes=1, fence=1, promoted_at=1.0,
    )  # fmt: skip
    return RunState(
        run="small", created_at=1.0, config=values, dataset_digest="d", dataset_sha256="s", steps_total=4,
        promoted=record, kept=[record],
    )  # fmt: skip


def test_a_begun_run_goes_on_with_its_code_wherever_it_is_now(folder: Path, state: RunState, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "moved")
    config = as_begun(config_of(moved), state)
    require_compatible(state, config)
    require_same_brought(config)
    (moved / "my_optim.py").write_text("")
    with pytest.raises(IncompatibleRunError, match=r"my_optim\.py was changed"):
        require_same_brought(config)
    (moved / "my_models.py").write_text("")
    with pytest.raises(IncompatibleRunError, match=r"model\.factory names, .*my_models\.py was changed.*restore it"):
        require_same_brought(config)


def test_code_that_made_no_step_may_be_mended(folder: Path, state: RunState) -> None:
    """As after a module was refused when it was tried out: the run is begun by then."""
    untrained = state.model_copy(update={"promoted": None, "kept": []})
    (folder / "my_models.py").write_text("# mended")
    (folder / "layers.py").write_text("")
    config = as_begun(config_of(folder), untrained)
    require_compatible(untrained, config)
    require_same_brought(config)
    assert isinstance(config.model, ModuleConfig)
    changed = (
        r"model\.pinned\.files\.my_models\.py: the file my_models\.py was changed, its SHA-256 was \w{16}\.\.\., is"
    )
    with pytest.raises(IncompatibleRunError, match=changed + r" \w{16}\.\.\. now\nRestore"):
        require_compatible(state, config)
    with pytest.raises(IncompatibleRunError, match=r"my_models\.py was changed"):
        require_same_brought(as_begun(config_of(folder), state))


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("model", {"options": {"width": 8}}, r"model\.options\.width: was not set, is 8 now"),
        ("train", {"optimizer_options": {"alpha": 0.5}}, r"train\.optimizer_options\.alpha: was not set, is 0\.5 now"),
        ("train", {"optimizer": "sgd", "optimizer_factory": None}, "train.optimizer: was 'factory', is 'sgd' now"),
    ],
)
def test_options_of_a_begun_run_stay(
    section: str, changes: dict[str, Any], message: str, folder: Path, state: RunState
) -> None:
    values = config_of(folder).model_dump(mode="json")
    values[section] = {name: v for name, v in (values[section] | changes).items() if v is not None}
    if "optimizer" in changes:
        values["train"].pop("optimizer_options")
    with pytest.raises(IncompatibleRunError, match=message):
        require_compatible(state, as_begun(configure(RunConfig, values, "test"), state))


def test_another_function_of_the_same_file_is_another_model(folder: Path, state: RunState) -> None:
    config = as_begun(config_of(folder, model={"factory": f"{folder}/my_models.py:Net"}), state)
    with pytest.raises(IncompatibleRunError, match="names the function 'Net', and the run was begun with 'build'"):
        require_same_brought(config)


def test_a_relative_file_is_taken_from_the_configurations_folder_and_a_package_is_left(tmp_path: Path) -> None:
    texts = {"./m.py:build": f"{tmp_path}/m.py:build", "m.py:build": f"{tmp_path}/m.py:build"}
    texts |= {text: text for text in ("/a/m.py:build", "package.models:build")}
    for text, expected in texts.items():
        values = absolute_paths({"model": {"factory": text}, "train": {"optimizer_factory": text}}, tmp_path)
        assert (values["model"]["factory"], values["train"]["optimizer_factory"]) == (expected, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"width": 3}}, r"model\.width: there is no such key"),
        ({"train": {"compile": True}}, "train.compile does not go with model.kind = 'module'"),
        ({"train": {"start_from": "/x"}}, "train.start_from does not go with model.kind = 'module'"),
        ({"cluster": {"kind": "slurm"}}, "needs cluster.kind = 'local', found 'slurm'"),
        ({"data": SETTINGS["data"] | {"text": ["a", "b"]}}, "data.text names two columns"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(changes: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config_of(folder, **changes)


def test_the_file_that_a_run_is_written_to_names_the_function_and_nothing_that_was_pinned(folder: Path) -> None:
    text = render_configuration(pin_brought(config_of(folder, model={"options": {"width": 8}})), full=True)
    assert f'factory = "{folder}/my_models.py:build"' in text and 'options = { "width" = 8 }' in text
    assert "sha256" not in text.lower() and "pinned" not in text


def test_of_a_stored_configuration_the_place_is_not_taken(state: RunState) -> None:
    values = stored_values(state)
    assert "factory" not in values["model"] and values["model"]["pinned"]["function"] == "build"
    with pytest.raises(ConfigurationError, match=r"no code is imported that a store names\. Say where it is"):
        require_factory(values, "small")
    require_factory(values | {"model": values["model"] | {"factory": "m.py:build"}}, "small")


def test_the_deployment_that_takes_a_runs_configuration_from_its_store_refuses_it(
    state: RunState, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    Manifest(store, "small").create(state)
    with pytest.raises(ConfigurationError, match=r"no code is imported that a store names\. Go on with its config"):
        load_run_configuration(store.address, "small", {})


def test_a_node_refuses_an_order_with_code(folder: Path, tmp_path: Path) -> None:
    config = pin_brought(config_of(folder))
    assert isinstance(config.model, ModuleConfig)
    scratch = tmp_path / "runs" / "small" / "00000001"
    spec = SegmentSpec(
        work="train", run="small", store=str(tmp_path), scratch=str(scratch), fence=1, dataset_digest="d",
        dataset_sha256="s", resume=None, model=config.model, train=config.train, validation=config.validation,
        checkpoint=config.checkpoint,
    )  # fmt: skip
    order = JobOrder(segment=spec, cluster=ClusterConfig(), grace_seconds=1)
    identity = NodeIdentity(job="j", incarnation="i", node="n", num_nodes=1)
    with pytest.raises(ValueError, match="none is imported that a store names"):
        Node(LocalStore(tmp_path / "store"), order, identity, Requests())
