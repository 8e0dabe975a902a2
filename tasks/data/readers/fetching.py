"""The columns of Parquet files that are not on this machine, brought into a working folder.

Invariant: a file there has the bytes of the columns that the configuration names in the places that they have in the
user's file, so what reads it finds the same rows in the same row groups, with the same numbers.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.configuration import DataConfig
from tasks.data.progress import OnProgress
from tasks.data.sources.columns import named_columns
from tasks.data.sources.source_file import SourceFile

NUM_FILES_AT_A_TIME = 4


def fetch_columns(
    files: list[SourceFile], config: DataConfig, folder: Path, on_progress: OnProgress | None = None
) -> list[SourceFile]:
    """The files, each with its rows on this machine. Raises `StoreError` if one cannot be read or was replaced."""
    folder.mkdir()
    num_bytes_total, num_bytes_done = sum(file.num_bytes for file in files), 0
    fetched = []
    for file in _fetch_each(files, {column for column, _ in named_columns(config)}, folder):
        fetched.append(file)
        num_bytes_done += file.num_bytes
        if on_progress is not None:
            on_progress("read", num_bytes_done / num_bytes_total)
    return fetched


def _fetch_each(files: list[SourceFile], columns: set[str], folder: Path) -> Iterator[SourceFile]:
    """The files in their order, several at a time; the first failure ends it."""
    with ThreadPoolExecutor(NUM_FILES_AT_A_TIME, thread_name_prefix="fetch") as pool:
        futures = [pool.submit(file.bring, columns, folder / f"{index}.parquet") for index, file in enumerate(files)]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
