"""`holdfast logs`: what the ranks of a run print, on stdout; of which segment it is, on stderr.

Invariant: reads only, and only the store: it works on any machine, and beside a run in training.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import Assignments, RunArgument, find_run
from flows.commands.results import require_reader
from storage.errors import ConfigurationError, StoreUnavailableError
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import storage.runs.manifest as manifests
    import storage.runs.run_state as run_state
    import tasks.supervision.log_reading as rank_logs
    import tasks.text as words

if TYPE_CHECKING:
    from storage.objects.store import Store
    from storage.runs.run_state import RunState


LOOK_SECONDS = 2.0
# Between two segments, and before the evaluation, the lease is free for a moment. After that nothing is printed: the
# log is read once more when the next segment begins, and not all the time, since it may be long.
IDLE_SECONDS = 10.0


def logs(
    run: RunArgument,
    assignments: Assignments = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Only the lines of this rank. What the agent, and libraries from C code, print names no rank and is "
            "left out then.",
        ),
    ] = None,
    segment: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Of the segment with this number, as `holdfast status` lists them. Default: the newest.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Go on with what comes, and with the next segment, until the run is complete or Ctrl-C; with "
            "--segment until that one has ended.",
        ),
    ] = False,
) -> None:
    """Print what the ranks of the newest segment have printed.

    From the store alone, so from any machine. While ranks work it is up to a few seconds old, and of each machine the
    newest 1 MiB.
    """
    show = follow_logs if follow else print_logs
    show(*find_run(run, assignments or []), segment, rank)


def print_logs(store: Store, run: str, fence: int | None, rank: int | None) -> None:
    """The log as it is now. Raises `RunMissingError`, and `ConfigurationError` if there is no such segment or rank."""
    state = manifests.Manifest(store, run).load_head().state
    printer = _Printer(store, _require_rank(_require_segment(state, fence), rank), run, rank)
    printer.print_new(is_last=True)
    if printer.is_silent:
        _print("Nothing that its ranks printed is in the store.")


def follow_logs(store: Store, run: str, fence: int | None, rank: int | None) -> None:
    """The log as it grows, until the run is complete, or the segment with this fence has ended. Raises as above."""
    state = manifests.Manifest(store, run).load_head().state
    if fence is not None:
        _require_segment(state, fence)
    _Following(store, run, fence, rank).follow(state)


class _Following:
    """Of one run, from segment to segment unless a `fence` is given."""

    def __init__(self, store: Store, run: str, fence: int | None, rank: int | None) -> None:
        self._store, self._run, self._fence, self._rank = store, run, fence, rank
        self._printer: _Printer | None = None
        self._printed = ""
        self._worked_at = time.monotonic()

    def follow(self, state: RunState) -> None:
        while True:
            try:
                self._print_new(state)
                if self._is_over(state):
                    return
                time.sleep(LOOK_SECONDS)  # the store does not signal changes
                state = manifests.Manifest(self._store, self._run).load_head().state
            except StoreUnavailableError as error:
                self._print_once(f"The store cannot be read just now; it is asked again: {error}")
                time.sleep(LOOK_SECONDS)  # as above

    def _print_new(self, state: RunState) -> None:
        """What was printed until `state` was read is in the store by now."""
        segment = _find_segment(state, self._fence)
        if segment is None:
            self._print_once(f"Run {self._run!r} has no segment yet; waiting for its first.")
            return
        if self._printer is None or self._printer.fence < segment.fence:  # after an evaluation the newest is older
            if self._printer is not None:
                self._printer.print_new(is_last=True)
            self._printer = _Printer(self._store, _require_rank(segment, self._rank), self._run, self._rank)
        if state.lease is not None:
            self._worked_at = time.monotonic()
        if self._is_over(state) or time.monotonic() - self._worked_at < IDLE_SECONDS:
            self._printer.print_new(is_last=self._is_over(state))
        else:
            self._print_once(f"Run {self._run!r} is not in training; waiting for its next segment.")

    def _is_over(self, state: RunState) -> bool:
        if self._fence is not None:
            return state.lease is None or state.lease.fence != self._fence
        return state.is_complete and state.lease is None

    def _print_once(self, message: str) -> None:
        if message != self._printed:
            _print(message)
        self._printed = message


class _Printer:
    """The log of one segment; of a job with several nodes a line names the node whose lines follow."""

    def __init__(
        self, store: Store, segment: run_state.Lease | run_state.SegmentRecord, run: str, rank: int | None
    ) -> None:
        self.fence = segment.fence
        self.is_silent = True
        self._reader = rank_logs.LogReader(store, run, segment.fence, rank)
        self._node: str | None = None
        what = "Evaluation" if isinstance(segment, run_state.Lease) and segment.work == "evaluate" else "Segment"
        _print(f"{what} {segment.fence} of run {run!r}, from step {segment.first_step:,}:")

    def print_new(self, is_last: bool) -> None:
        for new in self._reader.read(is_last):
            if new.node is not None and new.node != self._node:
                print(f"==> node {new.node} <==")
            self._node = new.node
            self.is_silent = False
            print(new.text, end="" if new.text.endswith("\n") else "\n")
            require_reader()


def _find_segment(state: RunState, fence: int | None) -> run_state.Lease | run_state.SegmentRecord | None:
    """The one with this fence, or the newest: an evaluation too while it works."""
    if fence is not None:
        return state.find_segment(fence)
    return state.lease or (state.segments[-1] if state.segments else None)


def _require_segment(state: RunState, fence: int | None) -> run_state.Lease | run_state.SegmentRecord:
    found = _find_segment(state, fence)
    if found is not None:
        return found
    fences = [str(record.fence) for record in state.segments]
    fences += [str(state.lease.fence)] if state.lease is not None else []
    if not fences:
        raise ConfigurationError(f"Run {state.run!r} has no segment yet: no ranks were launched for it.")
    raise ConfigurationError(
        f"Run {state.run!r} has no segment {fence}. Its segments, the newest first: "
        f"{words.listed(reversed(fences))}. Give one of them, or no --segment for the newest."
    )


def _require_rank(
    segment: run_state.Lease | run_state.SegmentRecord, rank: int | None
) -> run_state.Lease | run_state.SegmentRecord:
    if rank is None or rank < segment.world_size:
        return segment
    raise ConfigurationError(
        f"Segment {segment.fence} has no rank {rank}: it has {words.count_of(segment.world_size, 'rank')}, and they "
        "are counted from 0. Give one of them, or no --rank for the lines of all."
    )


def _print(message: str) -> None:
    console.print(message, style="cyan", soft_wrap=True)
