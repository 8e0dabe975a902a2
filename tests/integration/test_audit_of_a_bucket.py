"""What an audit fetches of a data set in a bucket."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage.datasets import DatasetManifest, dataset_key
from storage.objects import download_cache
from storage.objects.download_cache import DownloadCache
from storage.objects.s3.address import parse_s3_address
from storage.objects.s3.connection import S3Connection
from storage.objects.s3.store import S3Store
from tasks.audits.shard_columns import END_BYTES
from tasks.audits.verdict import audit_run
from tests.helpers.bucket_sources import fetched_bytes
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.faulty_proxy import Failure, FaultyProxy
from tests.helpers.forged_ledgers import repeat_a_sample
from tests.helpers.ledgers import LedgerRun
from tests.helpers.s3_server import open_s3_store, use_s3

NUM_ROWS = 300


@pytest.fixture(scope="module")
def run(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> LedgerRun:
    """One over more than three epochs, in the bucket."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        use_s3(patch, s3_endpoint)
        store = open_s3_store(folder)
        return LedgerRun(store, folder, publish_small_dataset(store, folder / "rows", NUM_ROWS)).write()


def _open_again(run: LedgerRun, folder: Path) -> S3Store:
    """The store as another process opens it, which has fetched nothing."""
    return S3Store(S3Connection(parse_s3_address(run.store.address)), DownloadCache(folder))


def _needed_bytes(run: LedgerRun, dataset: DatasetManifest) -> list[int]:
    """Of each shard the end, the footer, and of each row group the two columns."""
    sizes = []
    for shard in dataset.splits["train"].shards:
        path = run.store.fetch(dataset_key(dataset.digest, shard.name))
        footer = pq.read_metadata(path)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
        sizes += [chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in ("id", "length")]
        sizes += [END_BYTES, END_BYTES + int.from_bytes(path.read_bytes()[-END_BYTES:-4], "little")]
    return sizes


def test_ids_lengths_and_footers_are_fetched_once_and_nothing_else_of_the_shards(
    run: LedgerRun, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    result = audit_run(_open_again(run, tmp_path / "audit"), run.name)
    assert result["ok"] and len(result["epochs"]) == 4
    fetched = sorted(fetched_bytes(s3_proxy, "/train-"))
    assert fetched == sorted(_needed_bytes(run, run.dataset))
    assert not list((tmp_path / "audit").rglob("*train-*"))


@pytest.mark.parametrize("failure", [Failure.SLOW_DOWN, Failure.RESET, Failure.CUT])
def test_requests_that_fail_are_made_again(
    run: LedgerRun, s3_proxy: FaultyProxy, tmp_path: Path, failure: Failure
) -> None:
    fault = s3_proxy.fail(failure, "GET", "/train-", times=3)
    assert audit_run(_open_again(run, tmp_path / "audit"), run.name)["ok"]
    assert fault.fired == 3


def test_a_forged_ledger_in_a_bucket_is_found_as_in_a_folder(
    run: LedgerRun, s3_proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_cache, "IN_USE_SECONDS", 0)
    forged = LedgerRun(run.store, tmp_path, run.dataset, name="forged")
    ((kind, steps, _),) = repeat_a_sample(forged)
    forged.write()
    (violation,) = audit_run(_open_again(run, tmp_path / "audit"), "forged")["violations"]
    assert (violation["kind"], set(violation["steps"])) == (kind, steps)
