"""A block that the store's own disk cannot read any more: damage of one object, and no failure of the store.

Invariant: only what fails twice is called damage, since a network file system says the same (EIO) of what can be read
a moment later. Of what is in a bucket there are only copies on this machine, which are never the damage.
"""

import errno
from collections.abc import Callable
from typing import TypeVar

from storage.errors import CorruptObjectError, StoreError
from storage.objects.local_store import LocalStore
from storage.objects.store import Store

Value = TypeVar("Value")


def read_or_damaged(store: Store, key: str, read: Callable[[], Value]) -> Value:
    """What `read` makes of the object `key`. Raises `CorruptObjectError` where its disk cannot read it, twice."""
    try:
        return read()
    except (OSError, StoreError) as error:
        if not _is_bad_block(store, error):
            raise
    try:
        return read()
    except (OSError, StoreError) as error:
        if not _is_bad_block(store, error):
            raise
        raise CorruptObjectError(f"{key} cannot be read from its disk any more.") from error


def _is_bad_block(store: Store, error: OSError | StoreError) -> bool:
    """Whether that is what the file system said, to us or to the store."""
    said = error if isinstance(error, OSError) else error.__cause__
    return isinstance(store, LocalStore) and isinstance(said, OSError) and said.errno == errno.EIO
