"""A source in a bucket that cannot be found, listed or read, or that changes under way: each is one clear error."""

import errno
import os
import uuid
from pathlib import Path

import pytest

from storage.errors import ConfigurationError, ContractError, StoreError
from storage.objects.local_store import LocalStore
from storage.objects.s3.reader import open_object, open_stream
from tasks.data.pipeline import prepare_dataset
from tasks.data.sources.files import find_files
from tests.helpers.bucket_sources import open_bucket, prepared, write_parts
from tests.helpers.faulty_proxy import FaultyProxy
from tests.helpers.parquet import text_columns, text_config, write_parquet, write_table
from tests.helpers.s3_server import BUCKET, CREDENTIALS, put_object, upload_folder


def broken_source(source: str, error: type[Exception] = ConfigurationError) -> str:
    with pytest.raises(error) as caught:
        find_files(source)
    return str(caught.value)


def test_an_address_that_names_nothing_is_an_error_that_says_what_is_there(s3_proxy: FaultyProxy) -> None:
    prefix = uuid.uuid4().hex
    put_object(f"{prefix}/intents/notes.txt", b"")
    place = f"s3://{BUCKET}/{prefix}"
    assert f"{place}/intents/ has no *.parquet files, nor others" in broken_source(f"{place}/intents/")
    assert f"there is nothing at {place}/intent. There is {place}/intents. Set" in broken_source(f"{place}/intent")
    assert f"no object matches {place}/*/*.parquet. Correct the pattern" in broken_source(f"{place}/*/*.parquet")
    assert f"there is nothing at s3://{BUCKET}/{prefix}x/." in broken_source(f"{place}x/")
    put_object(f"{prefix}/mixed/a.csv", b"")
    put_object(f"{prefix}/mixed/a.jsonl", b"")
    assert "has 1 CSV (a.csv), 1 JSON Lines (a.jsonl)" in broken_source(f"{place}/mixed")


@pytest.mark.parametrize("source", ["s3://", "s3:///x", "s3://b", "s3://key:secret@bucket/x", "s3://bucket:9000/x"])
def test_an_address_of_another_form_is_an_error_without_the_secret_in_it(s3_proxy: FaultyProxy, source: str) -> None:
    message = broken_source(source)
    assert "is not an address of the form s3://bucket/prefix/. Endpoint, region and credentials do not" in message
    assert "secret" not in message and s3_proxy.requests == []


def test_a_bucket_that_cannot_be_listed_is_one_clear_error(
    s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = broken_source("s3://no-such-bucket/data", StoreError)
    assert message.startswith(f"Cannot use the source s3://no-such-bucket at {s3_proxy.endpoint}: 404 NoSuchBucket")
    assert "check `data.source` and AWS_ENDPOINT_URL_S3" in message
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "data.source = 's3://bucket': boto3 cannot be set up" in broken_source("s3://bucket/data")
    monkeypatch.delenv("AWS_PROFILE")
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    message = broken_source("s3://bucket/data", StoreError)
    assert message.startswith("No credentials for the source s3://bucket") and "AWS_PROFILE" in message


def test_a_server_that_is_not_there_is_one_clear_error(s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    message = broken_source("s3://bucket/data", StoreError)
    assert message.startswith("Cannot reach the source s3://bucket at http://127.0.0.1:1")


MISTAKES: dict[str, tuple[str, bytes, str]] = {
    "an empty file": ("b.parquet", b"", "b.parquet is empty"),
    "a file that was cut off": ("b.parquet", b"PAR1" + bytes(500), "cannot be read"),
    "a file that is not Parquet": ("b.parquet", b"sample_id,text\n1,hello\n", "something that is not Parquet"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_that_cannot_be_read_is_named_by_its_address(
    s3_proxy: FaultyProxy, tmp_path: Path, mistake: str
) -> None:
    name, content, expected = MISTAKES[mistake]
    address = upload_folder(write_parquet(tmp_path / "data" / "a.parquet", text_columns(20)).parent)
    put_object(f"{address.removeprefix(f's3://{BUCKET}/')}{name}", content)
    with pytest.raises(ContractError) as caught:
        prepared(text_config(address), tmp_path)
    assert f"{address}{name}" in str(caught.value) and expected in str(caught.value)


def test_damage_in_the_middle_of_a_file_is_told_with_its_address_alone(s3_proxy: FaultyProxy, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", text_columns(200))
    content = bytearray(path.read_bytes())
    content[4:600] = bytes(596)
    path.write_bytes(content)
    address = upload_folder(path.parent)
    with pytest.raises(ContractError) as caught:
        prepared(text_config(address), tmp_path)
    assert f"The file {address}a.parquet cannot be read to its end" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_broken_line_is_told_with_address_and_number(s3_proxy: FaultyProxy, tmp_path: Path) -> None:
    path = write_table(tmp_path / "data" / "a.csv", text_columns(200))
    path.write_bytes(path.read_bytes() + b"a,b\n")
    address = upload_folder(path.parent)
    with pytest.raises(ContractError, match=rf"The file {address}a\.csv is broken in line 202"):
        prepared(text_config(address), tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "csv", "feather"])
def test_an_object_that_is_replaced_under_way_is_one_clear_error(
    s3_proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = write_parts(tmp_path / "data", kind)
    address = upload_folder(folder)
    changed = f"{address}z.{kind}"

    def replace(phase: str, share: float) -> None:
        if phase == "fingerprint" and share == 1.0:
            put_object(changed.removeprefix(f"s3://{BUCKET}/"), (folder / f"z.{kind}").read_bytes() + b"\n")

    with pytest.raises(StoreError) as caught:
        prepare_dataset(text_config(address), LocalStore(tmp_path / "store"), tmp_path / "scratch", replace)
    assert (
        str(caught.value) == f"{changed} was replaced while it was read. Run again when no other program writes to it."
    )
    assert not (tmp_path / "store").exists()


def test_an_object_that_is_cut_off_or_deleted_under_way_is_one_clear_error(s3_proxy: FaultyProxy) -> None:
    bucket, found = open_bucket(), put_object("gone.bin", b"x" * 300_000)
    put_object("gone.bin", b"x")
    with open_object(bucket, "gone.bin", found) as file, pytest.raises(StoreError, match=r"gone\.bin was replaced"):
        file.seek(200_000)
        file.read(10)
    bucket.client.delete_object(Bucket=BUCKET, Key="gone.bin")
    with open_stream(bucket, "gone.bin", found) as file, pytest.raises(StoreError, match=r"gone\.bin was deleted"):
        file.read(10)


def test_a_disk_that_is_full_is_told_with_the_folder(
    s3_proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    address = upload_folder(write_parts(tmp_path / "data", "parquet"))
    with pytest.raises(StoreError, match=r"Cannot write working files in .*/scratch: No space left on device"):
        prepared(text_config(address), tmp_path)
    assert not list((tmp_path / "scratch").glob("prepare-*"))
