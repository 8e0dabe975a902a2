"""Running out of memory or disk while data are prepared, as errors that say what to do."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import duckdb

from storage.errors import ConfigurationError, StoreError
from tasks.configuration import DataConfig
from tasks.data.database import first_line
from tasks.places import scratch_error


@contextlib.contextmanager
def explained_failures(config: DataConfig, scratch: Path) -> Iterator[None]:
    """Turn running out of memory or disk into errors that say what to do."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ConfigurationError(
            f"Preparing the data takes more memory than data.memory_limit = {config.memory_limit!r}, or more disk than "
            f"{scratch} has: {first_line(error)} Raise data.memory_limit, or free some disk."
        ) from error
    except duckdb.IOException as error:
        raise StoreError(
            f"Cannot read {config.source} or write working files in {scratch}: {first_line(error)} "
            "Check that the files are still there and that the disk has space left, then run again."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise scratch_error(scratch, error) from error
