"""A new run that begins with the weights of another one, or of an exported model."""

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from storage.checkpoints.checkpoints import load_checkpoint
from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError, CorruptObjectError, HoldfastError, IncompatibleRunError, RunMissingError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.configuration.run import RunConfig
from tasks.models.start_from import bring_first_weights
from tasks.recover import recover
from tasks.run_paths import open_run_paths
from tasks.verification.scrubbing import scrub_store
from tests.helpers.exported_runs import Exported, export_policy
from tests.helpers.small_models import make_encoder
from tests.helpers.trained_runs import train_run
from training.models.first_weights import take_first_weights
from training.spec import StartPoint


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_policy(tmp_path_factory.mktemp("origin"), "--no-onnx")


def config_of(origin: Exported, **changes: dict[str, Any]) -> RunConfig:
    """A new run in the same store, with the same data; by default with its newest weights."""
    values = Manifest(origin.store, origin.run).load_head().state.config | {"run": "next"}
    train = {"start_from": origin.address, "start_checkpoint": "newest"} | changes.pop("train", {})
    changed = {name: {**values[name], **change} for name, change in (changes | {"train": train}).items()}  # type: ignore[dict-item]
    return RunConfig.model_validate(values | changed)


def begun(config: RunConfig, dataset: DatasetManifest) -> RunState:
    state, _ = inspect.unwrap(recover)(config, dataset)
    return RunState.model_validate(state)


def first_weights(config: RunConfig, dataset: DatasetManifest, state: RunState) -> dict[str, torch.Tensor]:
    model = make_encoder(config.model, dataset)
    assert state.start is not None
    store = open_run_paths(config).store
    take_first_weights(model, store, StartPoint(path=state.start.path, digest=state.start.digest))
    return model.state_dict()


def weights_of(origin: Exported) -> dict[str, torch.Tensor]:
    promoted = Manifest(origin.store, origin.run).load_head().state.promoted
    assert promoted is not None
    found = load_checkpoint(origin.store, promoted.path, promoted.digest)
    tensors: dict[str, torch.Tensor] = {}
    for name in found.index.model_files:
        tensors |= load_file(origin.store.fetch(f"{found.path}/{name}"))
    return tensors


@pytest.fixture
def forget() -> Callable[[Exported], None]:
    """Takes the new run out of the store again."""
    return lambda origin: shutil.rmtree(Path(origin.store.address) / "runs/next", ignore_errors=True)


@pytest.mark.parametrize("kind", ["run", "folder"])
def test_the_first_weights_are_those_of_the_run_or_the_exported_folder(
    kind: str, origin: Exported, forget: Callable[[Exported], None]
) -> None:
    named = {"start_from": origin.address if kind == "run" else str(origin.folder)}
    config = config_of(origin, train=named)
    state = begun(config, origin.dataset)
    expected = weights_of(origin)
    found = first_weights(config, origin.dataset, state)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    promoted = Manifest(origin.store, origin.run).load_head().state.promoted
    assert promoted is not None and state.start is not None
    assert (state.start.origin, state.start.step) == (named["start_from"], promoted.step)
    assert state.start.weights_sha256 == promoted.weights_sha256
    forget(origin)


def test_a_run_trains_on_from_there_when_its_origin_is_gone(origin: Exported, tmp_path: Path) -> None:
    shutil.copytree(origin.folder, tmp_path / "model")
    config = config_of(origin, train={"start_from": str(tmp_path / "model"), "learning_rate": 1e-6, "steps": 2})
    config = config.model_copy(update={"store": str(tmp_path / "store")})
    store, dataset = train_run(config)
    shutil.rmtree(tmp_path / "model")
    state = Manifest(store, "next").load_head().state
    assert state.is_complete and state.promoted is not None
    found = load_checkpoint(store, state.promoted.path, state.promoted.digest)
    expected, trained = weights_of(origin), dict[str, torch.Tensor]()
    for name in found.index.model_files:
        trained |= load_file(store.fetch(f"{found.path}/{name}"))
    for name, tensor in expected.items():  # two tiny steps away
        assert torch.allclose(trained[name], tensor, atol=1e-4), name
    assert first_weights(config, dataset, state).keys() == expected.keys()


def test_no_flipped_bit_of_the_first_weights_is_trained_on(
    origin: Exported, forget: Callable[[Exported], None]
) -> None:
    config = config_of(origin, retry={"reread_seconds": 0})
    state = begun(config, origin.dataset)
    assert state.start is not None
    for path in (Path(origin.store.address) / state.start.path).iterdir():
        whole = path.read_bytes()
        path.unlink()  # the file may be a second name of the origin's
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CorruptObjectError, match="changed after it was written"):
            first_weights(config, origin.dataset, state)
        (rot,) = scrub_store(origin.store, "next")["damaged"]
        assert (rot["kind"], path.name in rot["message"]) == ("start", True)
        path.write_bytes(whole)
    first_weights(config, origin.dataset, state)
    assert scrub_store(origin.store, "next")["ok"]
    forget(origin)


def test_another_origin_is_refused_once_the_run_has_begun(origin: Exported, forget: Callable[[Exported], None]) -> None:
    begun(config_of(origin), origin.dataset)
    with pytest.raises(IncompatibleRunError, match=r"train\.start_from: was "):
        begun(config_of(origin, train={"start_from": str(origin.folder)}), origin.dataset)
    forget(origin)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"train": {"start_from": "/nowhere"}}, ConfigurationError, "expected the address of a run"),
        ({"train": {"start_from": "/nowhere/runs/none"}}, RunMissingError, "There is no run 'none'"),
        ({"train": {"start_checkpoint": "3"}}, ConfigurationError, "keeps no checkpoint of step 3"),
        ({"model": {"width": 32}}, ConfigurationError, r"model\.width is 32, expected 16"),
    ],
)
def test_a_wrong_origin_is_one_clear_error_and_no_run_is_begun(
    changes: dict[str, Any], error: type[HoldfastError], words: str, origin: Exported
) -> None:
    with pytest.raises(error, match=words):
        begun(config_of(origin, **changes), origin.dataset)
    assert not Manifest(origin.store, "next").exists()


def test_an_exported_folder_that_was_changed_is_refused(origin: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(origin.folder, folder)
    (folder / "labels.json").write_text("{}")
    config = config_of(origin, train={"start_from": str(folder)})
    with pytest.raises(CorruptObjectError, match=r"train\.start_from names is damaged\. .*labels\.json was changed"):
        bring_first_weights(config, origin.dataset, open_run_paths(config))
    assert isinstance(origin.store, LocalStore)
