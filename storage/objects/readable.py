"""What it means that an object that must be there cannot be read.

Invariant: never that it is damaged. A network file system, a failed path to a disk or a proxy reports for a second of
what is sound that it is missing or cannot be read (ENOENT, EIO, ESTALE, 404): that is `ObjectUnreadableError`, for who
waits and looks again. Of what is in a bucket there are only copies on this machine: what is wrong with these is its
disk's matter, not the object's.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from storage.errors import ObjectMissingError, ObjectUnreadableError, StoreError, StoreUnavailableError
from storage.objects.local_store import TRANSIENT_ERRNOS, LocalStore
from storage.objects.store import Store

# Errors of one file, and not of the path to all of them.
OF_ONE_FILE = {errno.EIO, errno.ESTALE, errno.ENOENT, errno.ENOTDIR}


@contextmanager
def reading(store: Store, key: str) -> Iterator[None]:
    """Read the object `key` in this block; the caller vouches that it is there.

    Raises `ObjectUnreadableError` where it is missing or its disk cannot read it, `StoreUnavailableError` where the
    store is away.
    """
    try:
        yield
    except ObjectMissingError as error:
        raise ObjectUnreadableError(f"{key} is missing.") from error
    except (OSError, StoreError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in TRANSIENT_ERRNOS | OF_ONE_FILE:
            raise
        raise _explain(store, key, cause) from error


def drop_from_cache(store: Store, key: str) -> None:
    """Have the next read of the object come from its device, and not from memory. Of a bucket each read is a request.

    What was changed and is not on the device yet stays, as does what another process has mapped.
    """
    if not isinstance(store, LocalStore):
        return
    with suppress(OSError):  # the next read raises it
        descriptor = os.open(store.path_of(key), os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _explain(store: Store, key: str, cause: OSError) -> StoreUnavailableError:
    words = cause.strerror or str(cause)
    if not isinstance(store, LocalStore):
        return StoreUnavailableError(
            f"The copy of {key} on this machine cannot be read: {words}. Check this machine's disk (the folder that "
            "TMPDIR, or scratch in the configuration, names)."
        )
    if cause.errno in OF_ONE_FILE:
        is_missing = cause.errno in (errno.ENOENT, errno.ENOTDIR)
        return ObjectUnreadableError(f"{key} is missing." if is_missing else f"{key} cannot be read: {words}.")
    return StoreUnavailableError(f"{store.address}/{key} cannot be read: {words}.")
