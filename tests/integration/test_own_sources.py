"""A split with a source of its own has the rows of it and no others, however the preparation is cut."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.errors import ConfigurationError, ContractError
from storage.objects.digests import sha256_of_file
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.pipeline import prepare_dataset
from tests.helpers.bucket_sources import prepared
from tests.helpers.cut_preparations import cut_small
from tests.helpers.faulty_proxy import FaultyProxy
from tests.helpers.parquet import inputs_of, read_rows, text_columns, text_config, write_parquet, write_table
from tests.helpers.s3_server import upload_folder

PARTS = {"data": (400, 0), "validation": (60, 400), "test": (30, 460)}
METADATA: dict[str, Any] = {"numeric": ["length"], "categorical": ["region"]}


def write_sources(folder: Path, kind: str) -> Path:
    for part, (num_rows, first) in PARTS.items():
        write_table(folder / part / f"a.{kind}", text_columns(num_rows, first))
    return folder


def config_of(folder: Path, *splits: str, **changes: Any) -> DataConfig:
    split = {f"{name}_source": str(folder / name) for name in splits}
    return text_config(folder / "data", **({"split": split} | METADATA | changes))


def shards_of(store: LocalStore) -> dict[str, str]:
    return {key: sha256_of_file(store.fetch(key)) for key in store.list_keys("datasets/")}


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("column", ["sample_id", None])
def test_a_source_of_a_splits_own_is_that_split_in_one_piece_and_in_units(
    tmp_path: Path, kind: str, column: str | None
) -> None:
    config = config_of(write_sources(tmp_path, kind), "validation", "test", id=column)
    whole, cut = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "cut")
    manifest = prepare_dataset(config, whole, tmp_path / "scratch")
    with cut_small():
        prepare_dataset(config, cut, tmp_path / "scratch")
    assert shards_of(whole) == shards_of(cut)
    found = {id_: row["split"] for id_, row in read_rows(whole, manifest).items()}
    names = dict(zip(PARTS, ("train", "validation", "test"), strict=True))
    expected = {
        f"s{first + row:05d}" if column else f"{index}:{row}": names[part]
        for index, (part, (num_rows, first)) in enumerate(PARTS.items())
        for row in range(num_rows)
    }
    assert found == expected


def test_with_one_source_of_its_own_the_other_split_gets_its_share_of_the_rest(tmp_path: Path) -> None:
    config, store = config_of(write_sources(tmp_path, "parquet"), "validation"), LocalStore(tmp_path / "store")
    rows = read_rows(store, prepare_dataset(config, store, tmp_path / "scratch"))
    validation = {id_ for id_, row in rows.items() if row["split"] == "validation"}
    assert validation == {f"s{i:05d}" for i in range(400, 460)}
    assert 10 < sum(row["split"] == "test" for row in rows.values()) < 80


def test_a_bucket_and_a_folder_give_one_data_set(s3_proxy: FaultyProxy, tmp_path: Path) -> None:
    folder = write_sources(tmp_path / "all", "parquet")
    split = {"validation_source": upload_folder(folder / "validation"), "test_source": upload_folder(folder / "test")}
    in_bucket = text_config(upload_folder(folder / "data"), split=split, **METADATA)
    in_folder = config_of(folder, "validation", "test")
    assert prepared(in_bucket, tmp_path / "bucket") == prepared(in_folder, tmp_path / "folder")


def test_the_inputs_name_the_split_of_a_file_and_not_where_it_is(tmp_path: Path) -> None:
    inputs = inputs_of(config_of(write_sources(tmp_path, "parquet"), "validation"), tmp_path / "scratch")
    assert [(file["name"], file.get("split")) for file in inputs["files"]] == [
        ("a.parquet", None),
        ("validation_source/a.parquet", "validation"),
    ]
    assert {name: value for name, value in inputs["data"]["split"].items() if value is not None} == {
        "by": "id",
        "test_fraction": 0.1,
    }


def test_what_is_wrong_with_such_a_source_is_one_message_with_the_file(tmp_path: Path) -> None:
    def refuse(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            prepare_dataset(config, LocalStore(tmp_path / "store"), tmp_path / "scratch")

    config = config_of(write_sources(tmp_path, "parquet"), "validation")
    write_table(tmp_path / "validation" / "a.parquet", text_columns(0, 400))
    refuse(ContractError, r"no rows in 'validation_source/a\.parquet'[\s\S]*data\.split\.validation_source")
    columns = text_columns(60, 400)
    write_table(tmp_path / "validation" / "a.parquet", {name: columns[name] for name in columns if name != "domain"})
    refuse(ContractError, r"Column 'domain' is missing in validation_source/a\.parquet")
    write_table(tmp_path / "validation" / "a.parquet", columns | {"domain": ["new"] * 60})
    refuse(ContractError, r"the training split has no row of 1 of 4 classes")
    config = text_config(tmp_path / "data", split={"test_source": str(tmp_path / "data")})
    refuse(ConfigurationError, r"is in two sources: data\.source and data\.split\.test_source")


@pytest.mark.parametrize("how", [shutil.copy, os.symlink, os.link])
def test_a_file_whose_bytes_are_in_two_sources_is_refused(tmp_path: Path, how: Callable[[Path, Path], object]) -> None:
    source = write_table(tmp_path / "data" / "a.parquet", text_columns(90))
    (tmp_path / "test").mkdir()
    how(source, tmp_path / "test" / "b.parquet")
    config = text_config(tmp_path / "data", id=None, split={"test_source": str(tmp_path / "test")})
    with pytest.raises(ConfigurationError, match=r"a\.parquet, of data\.source, and .*b\.parquet, of data\.split"):
        prepare_dataset(config, LocalStore(tmp_path / "store"), tmp_path / "scratch")


def test_files_without_rows_may_be_alike_and_copies_in_one_source_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = pa.table(text_columns(90)).slice(0, 0).to_pydict()
    schema = pa.table(text_columns(90)).schema
    for name in ("data/empty.parquet", "test/empty.parquet"):
        write_parquet(tmp_path / name, {field.name: pa.array(empty[field.name], field.type) for field in schema})
    write_table(tmp_path / "data" / "a.parquet", text_columns(90))
    shutil.copy(tmp_path / "data" / "a.parquet", tmp_path / "data" / "b.parquet")
    write_table(tmp_path / "test" / "c.parquet", text_columns(30, 300))
    config = text_config(tmp_path / "data", id=None, split={"test_source": str(tmp_path / "test")})
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        prepare_dataset(config, LocalStore(tmp_path / "store"), tmp_path / "scratch")
    assert (
        "a.parquet and " in caplog.text and "b.parquet have the same bytes: their rows are in the data" in caplog.text
    )
