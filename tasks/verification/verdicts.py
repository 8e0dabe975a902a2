"""Verdicts on checkpoints that could not be read as they were written: damaged, or unreadable.

    damaged      its bytes differ from their hash in two reads, `retry.reread_seconds` apart, not from memory
    unreadable   missing, or its disk cannot read it (EIO, ESTALE), for `retry.store_seconds`, while another object of
                 the same store can be read
    unavailable  all else: no verdict, but the `StoreUnavailableError` with which the flow run ends; the next one looks

Invariant: only what this process saw itself counts. What a rank reports, one bad second and a misread manifest take no
checkpoint out of use.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from storage.checkpoints.checkpoints import load_checkpoint
from storage.errors import (
    CheckpointUnusableError,
    CorruptObjectError,
    HoldfastError,
    ObjectUnreadableError,
    StoreUnavailableError,
)
from tasks.configuration.run import RetryConfig
from tasks.console.announce import warn
from tasks.retrying import Retry
from tasks.run_paths import RunPaths

_Result = TypeVar("_Result")


class _AwayError(Exception):
    """The store did not answer: nothing that one of its objects is looked at again for."""

    def __init__(self, error: StoreUnavailableError) -> None:
        super().__init__(str(error))
        self.error = error


class VerdictMaker:
    """Looks at checkpoints for as long as a verdict takes, unless `is_asked_to_stop` returns true."""

    def __init__(self, retry: RetryConfig, is_asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        self._retry = Retry(retry, is_asked_to_stop)
        self._reread_seconds = retry.reread_seconds
        self._store_seconds = retry.store_seconds
        self._differed_at: dict[str, float] = {}
        self._unread_since: dict[str, float] = {}  # while another one could be read

    def check(self, run_paths: RunPaths, path: str, read: Callable[[], _Result]) -> _Result:
        """What `read` makes of the checkpoint in the folder `path`; it looks at every byte as the device has it.

        Raises `CheckpointUnusableError` with the verdict, `StoreUnavailableError` where there is none.
        """
        while True:
            try:
                return self._retry.call(f"Reading {path}", partial(self._look_at_it_alone, path, read))
            except _AwayError as away:
                raise away.error from away
            except CorruptObjectError as error:
                self._wait_for_second_look(path, error)
            except ObjectUnreadableError as error:
                if not error.was_waited_for or not _can_read_another(run_paths, path):
                    raise
                raise CheckpointUnusableError(str(error), "unreadable") from error

    def look(self, path: str, read: Callable[[], _Result]) -> _Result:
        """As `check`, but one look that waits for nothing: what it raises is a verdict only if that is its type."""
        is_second = self.is_due(path)
        try:
            result = read()
        except CorruptObjectError as error:
            if is_second:
                raise CheckpointUnusableError(str(error), "damaged") from error
            self._differed_at.setdefault(path, time.monotonic())
            raise
        if self._differed_at.pop(path, None) is not None:
            warn(f"{path} was read wrong once, and is as it was written: check this machine's memory and disk.")
        return result

    def weigh(self, path: str, error: CorruptObjectError | ObjectUnreadableError) -> None:
        """What one look at the checkpoint in `path` gave, while another one could be read: a verdict in the end.

        Raises `CheckpointUnusableError` if it is one, as enough time has gone by since the first such look.
        """
        if isinstance(error, CorruptObjectError):
            if self.is_due(path):
                raise CheckpointUnusableError(str(error), "damaged") from error
            self._differed_at.setdefault(path, time.monotonic())
            return
        since = self._unread_since.setdefault(path, time.monotonic())
        if time.monotonic() - since >= self._store_seconds:
            raise CheckpointUnusableError(str(error), "unreadable") from error

    def _look_at_it_alone(self, path: str, read: Callable[[], _Result]) -> _Result:
        try:
            return self.look(path, read)
        except ObjectUnreadableError:
            raise
        except StoreUnavailableError as error:
            # `read` may promote, too: what became of that is for the caller to find out, from the manifest.
            raise _AwayError(error) from error

    def is_due(self, path: str) -> bool:
        """Whether a checkpoint differed so long ago that another look counts as the second one."""
        differed_at = self._differed_at.get(path)
        return differed_at is not None and time.monotonic() - differed_at >= self._reread_seconds

    def _wait_for_second_look(self, path: str, error: CorruptObjectError) -> None:
        left = self._differed_at[path] + self._reread_seconds - time.monotonic()
        if left > 0:
            warn(f"{error} It is read again in {left:.0f} s, before anything is done about it.")
        self._retry.pause(left)
        if not self.is_due(path):
            raise StoreUnavailableError(
                f"{error} It was to be read a second time, but a stop was requested before. Nothing was changed; the "
                "next start looks again."
            ) from error


def _can_read_another(run_paths: RunPaths, path: str) -> bool:
    """Whether the store can be read: another checkpoint of the run, or where it has none the head of its manifest."""
    try:
        others = [record for record in run_paths.manifest.load_head().state.kept if record.path != path]
        return not others or any(_is_readable(run_paths, record.path) for record in others)
    except (HoldfastError, OSError):
        return False


def _is_readable(run_paths: RunPaths, path: str) -> bool:
    try:
        load_checkpoint(run_paths.store, path)
    except CorruptObjectError:
        return True  # what it is does not matter here
    except (HoldfastError, OSError):
        return False
    return True
