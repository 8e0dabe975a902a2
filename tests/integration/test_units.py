"""A preparation in units: what is done is kept, and neither the cut nor a kill shows in what comes of it."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import duckdb
import pyarrow as pa
import pytest

from storage.datasets import DatasetManifest, find_dataset
from storage.errors import ContractError, CorruptObjectError
from storage.objects.digests import sha256_of_file
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data import pipeline
from tasks.data.pipeline import prepare_dataset
from tasks.data.rows import prepared_sql
from tasks.data.units import assigning as assigning
from tasks.data.units import checking
from tasks.data.units.workspace import Address
from tests.helpers.cut_preparations import Counted, cut_small
from tests.helpers.parquet import (
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
    write_table,
)

METADATA: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}
CHECKED = ["-extract.parquet", "-sample.parquet", ".order_keys"]  # what the unit leaves of a chunk
KINDS = ["text", "tokens", "csv", "row numbers", "hidden row numbers"]
# What is done is recorded in the same way of all kinds; that each gives the same bytes in units is tested of each.
DONE_KINDS = [kind if kind in ("text", "tokens") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
# Each kill is a process that loads all libraries.
KILLED_KINDS = [
    pytest.param(kind, kills, marks=[] if (kind, kills) == ("tokens", 1) else [pytest.mark.slow])
    for kind, kills in (("tokens", 1), *((kind, 2) for kind in KINDS))
]


@pytest.fixture(scope="module", params=KINDS)
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """A source of three files, one of them without rows, with row groups that are cut and such that are gathered."""
    folder = tmp_path_factory.mktemp("data")
    kind = request.param
    if kind == "csv":
        for part in range(3):
            write_table(folder / f"{part}.csv", text_columns(300, first=300 * part))
        return text_config(folder, **METADATA)
    if kind == "tokens":
        columns = token_columns(900)
        write_parquet(folder / "a.parquet", columns, 40)
        return token_config(folder)
    for part, (num_rows, row_group_rows) in enumerate(((300, 7), (0, 1), (600, None))):
        columns = text_columns(num_rows, first=300 * part)
        if kind == "hidden row numbers":
            columns["file_row_number"] = ["x"] * num_rows
        write_parquet(folder / f"{part}.parquet", columns, row_group_rows)
    return text_config(folder, **({"id": None} if kind == "row numbers" else {}), **METADATA)


@pytest.fixture(scope="module")
def undisturbed(config: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of the data set that is prepared in one chunk, as a small source is."""
    folder = tmp_path_factory.mktemp("store")
    store = LocalStore(folder / "store")
    prepare_dataset(config, store, folder / "scratch")
    return files_of(store)


class Prepared(NamedTuple):
    """A source that was prepared in units without being disturbed: what was done, and the files that came of it."""

    config: DataConfig
    units: list[str]
    files: dict[str, str]


@pytest.fixture(scope="module")
def in_units(config: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare_undisturbed(config, tmp_path_factory.mktemp("units"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("texts")
    return prepare_undisturbed(text_config(write_parquet(folder / "a.parquet", text_columns(600), 50)), folder)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Files that are decoded before they are read."""
    folder = tmp_path_factory.mktemp("tables")
    for part in range(2):
        write_table(folder / f"data-{part}.csv", text_columns(300, first=300 * part))
    return prepare_undisturbed(text_config(folder / "data-*.csv"), folder)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("tokens")
    config = token_config(write_parquet(folder / "a.parquet", token_columns(900), 40), categorical=["shard_id"])
    return prepare_undisturbed(config, folder)


def prepare_undisturbed(config: DataConfig, folder: Path) -> Prepared:
    engine = Counted()
    prepare_with(engine, config, folder)
    assert [path.name for path in (folder / "scratch").iterdir()] == ["fingerprints.json"]
    return Prepared(config, engine.done, files_of(LocalStore(folder / "store")))


def files_of(store: LocalStore) -> dict[str, str]:
    return {key: sha256_of_file(store.fetch(key)) for key in store.list_keys("") if not key.startswith("sources/")}


def prepare_with(engine: Counted, config: DataConfig, folder: Path) -> DatasetManifest:
    with cut_small():
        return prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch", engine=engine)


def test_many_units_leave_the_bytes_that_one_chunk_gives_and_nothing_else(
    undisturbed: dict[str, str], in_units: Prepared
) -> None:
    assert len(in_units.units) > 12
    assert in_units.files == undisturbed


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_ids_that_are_repeated_in_other_chunks_are_counted(kind: str, tmp_path: Path) -> None:
    columns = text_columns(300) if kind == "text" else token_columns(300)
    ids = list(columns["sample_id"])
    columns["sample_id"] = [*ids[:250], *ids[:1], *ids[:49]]
    write_parquet(tmp_path / "data.parquet", columns, 20)
    config = (text_config if kind == "text" else token_config)(tmp_path / "data.parquet")
    with pytest.raises(ContractError) as caught:
        prepare_with(Counted(), config, tmp_path)
    message = str(caught.value)
    assert "50 rows too many, for 49 ids" in message
    assert f"'{ids[0]}' in 3 rows" in message


def test_a_contract_that_is_broken_is_the_error_whatever_the_statistics_meet_beside_it(tmp_path: Path) -> None:
    columns = token_columns(300) | {"label": [False] * 300}
    write_parquet(tmp_path / "one class.parquet", columns, 20)
    with pytest.raises(ContractError, match="has no row of 1 of 2 classes"):
        prepare_with(Counted(), token_config(tmp_path / "one class.parquet"), tmp_path / "statistics")
    columns["sample_id"] = [*range(299), 0]
    write_parquet(tmp_path / "both.parquet", columns, 20)
    with pytest.raises(ContractError, match="duplicate ids"):
        prepare_with(Counted(), token_config(tmp_path / "both.parquet"), tmp_path / "both")


def test_an_expectation_that_is_not_met_is_the_error_before_a_shard_is_written(tmp_path: Path) -> None:
    columns = text_columns(600)
    columns["region"] = [None] * 200 + ["here"] * 400
    write_parquet(tmp_path / "a.parquet", columns, 50)
    engine = Counted()
    with pytest.raises(ContractError, match=r"missing values in column 'region'(?s:.*)200 of 600 rows \(33.3%\)"):
        prepare_with(engine, text_config(tmp_path / "a.parquet", categorical=["region"]), tmp_path)
    # It was validated beside what came next.
    assert any(unit.startswith("texts") for unit in engine.done)
    assert not any(unit.startswith("shard") for unit in engine.done)
    assert not list(LocalStore(tmp_path / "store").list_keys("datasets/"))


@pytest.mark.parametrize("config", DONE_KINDS, indirect=True)
def test_a_unit_that_is_done_is_never_done_again(
    config: DataConfig, undisturbed: dict[str, str], in_units: Prepared, tmp_path: Path
) -> None:
    third = len(in_units.units) // 3
    engines = [Counted(fail_at=third), Counted(fail_at=third), Counted()]
    for engine in engines[:-1]:
        with pytest.raises(OSError, match="the machine is gone"):
            prepare_with(engine, config, tmp_path)
        assert not any(key.endswith("dataset.json") for key in LocalStore(tmp_path / "store").list_keys("datasets/"))
    prepare_with(engines[-1], config, tmp_path)
    assert [unit for engine in engines for unit in engine.done] == in_units.units
    assert files_of(LocalStore(tmp_path / "store")) == undisturbed


@pytest.mark.parametrize(("config", "kills"), KILLED_KINDS, indirect=["config"])
def test_a_preparation_that_is_killed_anywhere_goes_on_from_its_units(
    config: DataConfig, kills: int, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator, store = random.Random(seed), LocalStore(tmp_path / "store")
    code = "import sys; from tests.helpers.cut_preparations import prepare_and_die as run; run(*sys.argv[1:])"
    arguments = [config.model_dump_json(), store.address, str(tmp_path / "scratch")]
    for _ in range(kills):
        command = [sys.executable, "-c", code, *arguments, str(generator.randint(1, 6))]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert not any(key.endswith("dataset.json") for key in store.list_keys("datasets/"))
    prepare_with(Counted(), config, tmp_path)
    assert files_of(store) == undisturbed
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["fingerprints.json"]


class Overtaken(Counted):
    """Another process prepares the same meanwhile, and is done before the n-th unit of this one."""

    def __init__(self, config: DataConfig, folder: Path, at: int) -> None:
        super().__init__()
        self.config, self.folder, self.at = config, folder, at

    def run(self, address: Address, stage: str, indices: Sequence[int], on_done: Callable[[], None]) -> None:
        for index in indices:
            if len(self.done) == self.at:
                prepare_with(Counted(), self.config, self.folder)
            super().run(address, stage, [index], on_done)


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow), 8])
def test_one_that_is_overtaken_takes_the_data_set_that_the_other_one_published(
    tmp_path: Path, texts: Prepared, at: int
) -> None:
    engine = Overtaken(texts.config, tmp_path, at)
    manifest = prepare_with(engine, texts.config, tmp_path)
    store = LocalStore(tmp_path / "store")
    assert len(engine.done) > at and find_dataset(store, manifest.digest) == manifest
    assert not list(store.list_keys("preparations/"))


def test_damage_in_a_record_makes_its_unit_be_done_again(tmp_path: Path, texts: Prepared) -> None:
    with pytest.raises(OSError, match="the machine is gone"):
        prepare_with(Counted(fail_at=8), texts.config, tmp_path)
    store = LocalStore(tmp_path / "store")
    (damaged, *_) = (key for key in store.list_keys("preparations/") if key.endswith("check-000001.json"))
    store.write(damaged, store.read(damaged).replace(b"0", b"1", 1))
    engine = Counted()
    prepare_with(engine, texts.config, tmp_path)
    assert engine.done[0] == "check 1" and engine.done.count("check 0") == 0
    assert files_of(store) == texts.files


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def give_those_of_another_chunk(path: Path) -> None:
    path.write_bytes(path.with_name("rows-000000.arrow").read_bytes())


@pytest.mark.parametrize("damage", [flip_a_bit, give_those_of_another_chunk, Path.unlink])
def test_decoded_rows_that_are_damaged_or_gone_are_decoded_again(
    tmp_path: Path, tokens: Prepared, damage: Callable[[Path], None]
) -> None:
    num_chunks = sum(unit.startswith("check") for unit in tokens.units)
    with pytest.raises(OSError, match="the machine is gone"):
        prepare_with(Counted(fail_at=num_chunks), tokens.config, tmp_path)
    left = sorted((tmp_path / "scratch").glob("brought-*/rows-*.arrow"))
    assert len(left) == num_chunks > 3
    damage(left[2])
    with mock.patch.object(assigning, "_read", wraps=assigning._read) as read:
        prepare_with(Counted(), tokens.config, tmp_path)
    assert read.call_count == 1
    assert files_of(LocalStore(tmp_path / "store")) == tokens.files
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["fingerprints.json"]


@pytest.mark.parametrize(
    "name", ["read-000000.parquet", *(f"check-000000{of}" for of in CHECKED), "texts-000000.parquet"]
)
def test_a_bit_that_flips_in_what_a_unit_left_is_an_error_until_that_unit_is_done_again(
    tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    stage = name.partition("-")[0]
    source: Prepared = request.getfixturevalue({"read": "tables", "check": "tokens", "texts": "texts"}[stage])
    last = max(i for i, unit in enumerate(source.units) if unit.startswith(stage))
    # Texts are read as soon as the last of them is there, the other files again by whoever goes on.
    with pytest.raises(OSError, match="the machine is gone"):
        prepare_with(Counted(fail_at=last if stage == "texts" else last + 1), source.config, tmp_path)
    (path,) = (tmp_path / "store").glob(f"preparations/*/{name}")
    flip_a_bit(path)
    record = f"{stage}-000000.json"
    with pytest.raises(CorruptObjectError, match=rf"{name} is not what was written there.*Delete .*{record} and run"):
        prepare_with(Counted(), source.config, tmp_path)
    path.with_name(record).unlink()
    engine = Counted()
    prepare_with(engine, source.config, tmp_path)
    assert [unit for unit in engine.done if unit.startswith(stage)] == [f"{stage} 0"]
    assert files_of(LocalStore(tmp_path / "store")) == source.files


def test_a_bit_that_flips_in_the_tokenizer_is_an_error(tmp_path: Path, texts: Prepared) -> None:
    with pytest.raises(OSError, match="the machine is gone"):
        prepare_with(Counted(fail_at=texts.units.index("assign 0")), texts.config, tmp_path)
    (path,) = (tmp_path / "store").glob("preparations/*/tokenizer.json")
    flip_a_bit(path)
    with pytest.raises(
        CorruptObjectError, match=r"tokenizer\.json is not what was written there.*Delete .*learned\.json"
    ):
        prepare_with(Counted(), texts.config, tmp_path)
    path.with_name("learned.json").unlink()
    prepare_with(Counted(), texts.config, tmp_path)
    assert files_of(LocalStore(tmp_path / "store")) == texts.files


@pytest.mark.parametrize(
    "between",
    [
        "find_repeats",
        pytest.param("require_rules_kept", marks=pytest.mark.slow),
        pytest.param("assign_samples", marks=pytest.mark.slow),
        "measure_categorical",
    ],
)
def test_one_that_is_overtaken_while_it_asks_all_rows_takes_what_the_other_published(
    tmp_path: Path, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = text_config(write_parquet(tmp_path / "a.parquet", text_columns(600), 50), **METADATA)
    ask, published = getattr(pipeline, between), list[DatasetManifest]()

    def be_overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(pipeline, between, ask)
        if not published:
            published.append(prepare_with(Counted(), config, tmp_path))
        return ask(*arguments)

    monkeypatch.setattr(pipeline, between, be_overtaken)
    assert prepare_with(Counted(), config, tmp_path) == published[0]
    assert not list(LocalStore(tmp_path / "store").list_keys("preparations/"))


def test_a_stop_does_not_wait_for_the_statistics(
    tmp_path: Path, texts: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[int] = []

    def measure_for_an_hour(connection: duckdb.DuckDBPyConnection, *_: Any) -> None:
        for number in range(10_000):
            queries.append(number)
            connection.execute("SELECT sum(hash(i)) FROM range(100_000_000) t(i)").fetchall()

    def stop_there(name: str, work: Callable[[], tuple[Any, str]]) -> Any:
        if name == "split and statistics":
            raise KeyboardInterrupt
        return work()[0]

    monkeypatch.setattr(pipeline, "assign_samples", measure_for_an_hour)
    with cut_small(), pytest.raises(KeyboardInterrupt):
        store = LocalStore(tmp_path / "store")
        pipeline.prepare_dataset(texts.config, store, tmp_path / "scratch", run_part=stop_there, engine=Counted())
    assert len(queries) < 100


def test_what_the_mask_hides_may_be_any_number(tmp_path: Path) -> None:
    columns = token_columns(900)
    shown, mask = columns["input_ids"].to_pylist(), columns["attention_mask"].to_pylist()
    hidden = [
        [token if seen else 1 << 40 for token, seen in zip(*row, strict=True)] for row in zip(shown, mask, strict=True)
    ]
    found = []
    for name, tokens in (("plain", shown), ("hidden", hidden)):
        rows = columns | {"input_ids": pa.array(tokens, pa.list_(pa.int64()))}
        config = token_config(write_parquet(tmp_path / f"{name}.parquet", rows))
        dataset = prepare_with(Counted(), config, tmp_path / name)
        found.append([shard.sha256 for split in dataset.splits.values() for shard in split.shards])
    assert found[0] == found[1]


class OnAnotherMachine(Counted):
    """Does units as a machine that is not the one which prepares and removes what is left."""

    def run(self, address: Address, stage: str, indices: Sequence[int], on_done: Callable[[], None]) -> None:
        super().run(replace(address, host="another"), stage, indices, on_done)


def test_on_another_machine_no_rows_are_left_and_the_bytes_are_the_same(tmp_path: Path, tokens: Prepared) -> None:
    with mock.patch.object(checking, "leave_rows") as leave:
        prepare_with(OnAnotherMachine(), tokens.config, tmp_path)
    assert not leave.called
    assert files_of(LocalStore(tmp_path / "store")) == tokens.files


def test_in_which_order_a_database_gives_the_rows_shows_in_no_byte(tmp_path: Path, tokens: Prepared) -> None:
    def turned_round(*arguments: Any, **named: Any) -> str:
        return f"{prepared_sql(*arguments, **named)} ORDER BY number DESC"

    with mock.patch.object(assigning, "prepared_sql", turned_round):
        prepare_with(Counted(), tokens.config, tmp_path)
    assert files_of(LocalStore(tmp_path / "store")) == tokens.files


def test_rows_too_long_are_counted_through_all_units(tmp_path: Path) -> None:
    columns = text_columns(600)
    columns["text"] = [f"{text}{' again' * (50 if i % 200 == 9 else 0)}" for i, text in enumerate(columns["text"])]
    config = text_config(write_parquet(tmp_path / "a.parquet", columns, 50), max_tokens=40)
    with pytest.raises(ContractError, match=r"3 of 600 rows are longer: id 's00009' has .* id 's00409' has"):
        prepare_with(Counted(), config, tmp_path)
    assert find_dataset(LocalStore(tmp_path / "store"), "any") is None


def test_a_source_that_changed_since_its_preparation_began_is_prepared_from_its_beginning(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", text_columns(600), 50)
    config = text_config(path)
    with pytest.raises(OSError, match="the machine is gone"):
        prepare_with(Counted(fail_at=8), config, tmp_path)
    write_parquet(path, text_columns(500), 50)
    engine = Counted()
    manifest = prepare_with(engine, config, tmp_path)
    assert engine.done[0] == "check 0"
    assert sum(split.num_rows for split in manifest.splits.values()) == 500
