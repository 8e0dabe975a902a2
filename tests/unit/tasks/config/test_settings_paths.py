"""Relative paths in a configuration: the same file names the same places in whatever folder a command is started."""

from pathlib import Path

import pytest

from flows.resume import load_run_configuration
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.config.changes import require_compatible
from tasks.config.load import load_configuration
from tasks.configuration.run import RunConfig

ROOT = Path(__file__).parents[4]
CONFIGURATION = """
run = "small"
store = "store"
scratch = "../fast"

[data]
source = "data/*.parquet"
text = "prompt"
label = "class"
kind = "multiclass"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration, beside one called `elsewhere`."""
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "run.toml").write_text(CONFIGURATION)
    return folder


@pytest.mark.parametrize("started_in", [".", "elsewhere", "project"])
def test_a_relative_path_in_the_file_is_taken_from_the_files_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, started_in: str
) -> None:
    monkeypatch.chdir(folder.parent / started_in)
    for path in (
        folder / "run.toml",
        Path("../project/run.toml") if started_in == "elsewhere" else folder / "run.toml",
    ):
        config = load_configuration(path)
        assert (config.store, config.scratch) == (str(folder / "store"), str(folder.parent / "fast"))
        assert config.data.source == str(folder / "data" / "*.parquet")


def test_a_store_that_the_file_does_not_name_is_beside_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "run.toml").write_text(CONFIGURATION.replace('store = "store"\n', ""))
    monkeypatch.chdir(folder.parent / "elsewhere")
    assert load_configuration(folder / "run.toml").store == str(folder / "holdfast-store")


def test_a_relative_path_that_is_typed_is_taken_from_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder.parent / "elsewhere"
    monkeypatch.chdir(elsewhere)
    config = load_configuration(folder / "run.toml", ["store=store", "scratch=fast", "data.source=../data"])
    assert (config.store, config.scratch) == (str(elsewhere / "store"), str(elsewhere / "fast"))
    assert config.data.source == str(folder.parent / "data")


@pytest.mark.parametrize("store", ["/mnt/store", "~/store", "s3://bucket/prefix"])
def test_what_is_not_a_relative_path_stays_as_it_is(folder: Path, store: str) -> None:
    (folder / "run.toml").write_text(CONFIGURATION.replace('"store"', f'"{store}"'))
    assert load_configuration(folder / "run.toml").store == store
    assert load_configuration(folder / "run.toml", [f"store={store}"]).store == store


def test_the_folder_above_a_symbolic_link_is_the_one_that_the_system_means(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(folder)
    config = load_configuration(link / "run.toml")
    assert (config.store, config.scratch) == (str(link / "store"), str(tmp_path / "fast"))


def test_a_run_whose_manifest_has_relative_paths_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    now = load_configuration(folder / "run.toml")
    old = now.model_copy(update={"store": "store", "data": now.data.model_copy(update={"source": "data/*.parquet"})})
    state = begin_run(LocalStore(folder / "store"), old)
    require_compatible(state, now)
    resumed = load_run_configuration("store", "small", {"train.ranks": 2})
    assert (resumed.store, resumed.data.source) == (str(folder / "store"), "data/*.parquet")


@pytest.mark.parametrize("name", ["demo", "policy", "quality", "intents", "intents-finance"])
def test_the_examples_name_the_same_places_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = ROOT / "deployments" / "configs" / f"{name}.toml"
    places = []
    for working_directory in (ROOT, tmp_path, path.parent):
        monkeypatch.chdir(working_directory)
        config = load_configuration(path)
        places.append((config.store, config.data.source))
    assert len(set(places)) == 1 and Path(places[0][0]).is_absolute()


def test_the_demonstration_is_in_the_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_configuration(ROOT / "deployments" / "configs" / "demo.toml")
    assert (config.store, config.data.source) == (str(ROOT / "demo" / "store"), str(ROOT / "demo" / "corpus"))


def begin_run(store: LocalStore, config: RunConfig) -> RunState:
    state = RunState(
        run=config.run,
        created_at=1.0,
        config=config.model_dump(mode="json"),
        dataset_digest="d" * 64,
        dataset_sha256="s" * 64,
        steps_total=10,
    )
    return Manifest(store, config.run).create(state).state
