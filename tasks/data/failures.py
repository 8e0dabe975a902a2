"""Running out of memory or disk while data are prepared, and a source that changes, as errors with what to do.

Invariant: before anything else is blamed it is asked whether the files are as they were listed: what a change leads to
may look like anything.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import duckdb

from storage.errors import ConfigurationError, ContractError, StoreError
from tasks.configuration.run import DataConfig
from tasks.data.database import first_line
from tasks.data.identity.fingerprints import ensure_unchanged
from tasks.data.sources.source_file import SourceFile, cannot_read
from tasks.run_paths import scratch_error


@contextlib.contextmanager
def blamed_on_changes(files: list[SourceFile]) -> Iterator[None]:
    """A block whose failure is, where the source changed meanwhile, a `ContractError` with that reason."""
    try:
        yield
    except Exception as error:
        try:
            ensure_unchanged(files)
        except ContractError as changed:
            raise changed from error
        raise


@contextlib.contextmanager
def explained_failures(config: DataConfig, scratch: Path) -> Iterator[None]:
    """Turn running out of memory or disk into errors with what to do."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ConfigurationError(
            f"Preparing the data takes more memory than data.memory_limit = {config.memory_limit!r}, or more disk than "
            f"{scratch} has: {first_line(error)} Raise data.memory_limit, or free some disk."
        ) from error
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        raise StoreError(
            f"Cannot read {config.source} or write working files in {scratch}: {first_line(error)} "
            "Check that the files are still there and that the disk has space left, then run again."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        if error.filename is not None and not Path(error.filename).is_relative_to(scratch):
            raise cannot_read(str(error.filename), error) from error
        raise scratch_error(scratch, error) from error
