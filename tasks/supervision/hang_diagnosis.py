"""Where all ranks are, by their last reports, and what follows for ranks that make no progress.

Invariant: a rank's silence is measured by this process's clock, from one look to the next; and a process that waits for
the others is not to blame.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tasks.text import count_of, listed
from training.rank_status import Phase, RankStatus

AT_PHASE = {
    Phase.STARTING: "it has been starting",
    Phase.RESTORING: "it has been restoring the checkpoint",
    Phase.COMPUTING: "it has been computing",
    Phase.INPUT: "it has waited for samples",
    Phase.SHARED: "it has waited for samples that another process of its machine decodes",
    Phase.OTHERS: "it has waited for the other ranks",
    Phase.VALIDATING: "it has been validating",
    Phase.EVALUATING: "it has been evaluating",
    Phase.SAVING: "it has been saving",
}


@dataclass(frozen=True)
class Finding:
    """Why ranks do not get on, for people. `is_for_good` is where waiting longer will not help."""

    words: str
    is_for_good: bool


@dataclass(frozen=True)
class _Heard:
    """The newest word of a rank, and when it came."""

    rank_status: RankStatus
    at: float


class HangDiagnosis:
    """The diagnosis of the ranks of one segment."""

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}

    def look(self, rank_statuses: Iterable[RankStatus]) -> bool:
        """Take in the statuses of all ranks that there are; whether one has got on by a step since the last look.

        A rank that has none any more has died, and the others train without it.
        """
        now, got_on, all_before = time.monotonic(), False, self._heard
        self._heard = {}
        for rank_status in rank_statuses:
            before = all_before.get(rank_status.rank)
            if before is not None and _sign_of(rank_status) == _sign_of(before.rank_status):
                self._heard[rank_status.rank] = before
                continue
            self._heard[rank_status.rank] = _Heard(rank_status, now)
            got_on |= before is not None and rank_status.step > before.rank_status.step
        return got_on

    def forget_silence(self) -> None:
        """No report could come for a while: all begin anew."""
        now = time.monotonic()
        self._heard = {rank: _Heard(heard.rank_status, now) for rank, heard in self._heard.items()}

    def explain(self, silent_seconds: float, stuck_seconds: float) -> Finding | None:
        """Why no step is made; None if too little is known.

        Ranks count as silent, and as waiting for too long, after so many seconds.
        """
        now = time.monotonic()
        silent = [heard for heard in self._heard.values() if now - heard.at >= silent_seconds]
        living = [heard.rank_status for heard in self._heard.values() if now - heard.at < silent_seconds]
        stopped_hosts = {heard.rank_status.host for heard in silent}
        waiting = [rank_status for rank_status in living if _waits_for_others(rank_status, stopped_hosts)]
        busy = [rank_status for rank_status in living if rank_status not in waiting]
        if silent and waiting:
            return Finding(_describe_silence(silent, waiting, living), is_for_good=not busy)
        if busy:
            return Finding(_describe_busy(busy, waiting), is_for_good=False)
        if len(waiting) > 1 and all(rank_status.seconds >= stuck_seconds for rank_status in waiting):
            return Finding(_describe_broken(waiting), is_for_good=True)
        return None


def _sign_of(rank_status: RankStatus) -> tuple[int | None, int]:
    """What is another one whenever the rank, or one in its place, gave a sign of life."""
    return rank_status.pid, rank_status.beat


def _waits_for_others(rank_status: RankStatus, stopped_hosts: Collection[str]) -> bool:
    """Or for samples, of a rank of its machine that is not heard of."""
    return rank_status.phase is Phase.OTHERS or (
        rank_status.phase is Phase.SHARED and rank_status.host in stopped_hosts
    )


def _describe_silence(silent: Sequence[_Heard], waiting: Sequence[RankStatus], living: Sequence[RankStatus]) -> str:
    lost = [heard.rank_status for heard in silent]
    seconds = time.monotonic() - max(heard.at for heard in silent)
    is_whole_machine = not {rank_status.host for rank_status in lost} & {rank_status.host for rank_status in living}
    why = (
        "the machine vanished or stands still, its network is cut, or it cannot reach the store"
        if is_whole_machine
        else "the process stands still, while others of its machine do not"
    )
    return (
        f"{_name(lost)} {'has' if len(lost) == 1 else 'have'} not been heard of for {seconds:.0f} s, and "
        f"{count_of(len(waiting), 'other rank')} {'waits' if len(waiting) == 1 else 'wait'} at step "
        f"{waiting[0].step:,}{_name_collectives(waiting)}: {why}."
    )


def _describe_busy(busy: Sequence[RankStatus], waiting: Sequence[RankStatus]) -> str:
    slowest = max(busy, key=lambda rank_status: rank_status.seconds)
    doing = f"{AT_PHASE[slowest.phase]} for {slowest.seconds:.0f} s at step {slowest.step:,}"
    if not waiting:
        return f"{_name([slowest])}: {doing}."
    others = f"{count_of(len(waiting), 'other rank')} {'waits' if len(waiting) == 1 else 'wait'}"
    return f"{_name(busy)} did not come to where {others}{_name_collectives(waiting)}: {doing}."


def _describe_broken(waiting: Sequence[RankStatus]) -> str:
    hosts = sorted({rank_status.host for rank_status in waiting})
    seconds = min(rank_status.seconds for rank_status in waiting)
    where = f" The network between {listed(hosts)} is broken." if len(hosts) > 1 else ""
    return (
        f"All ranks run, and have waited for each other for {seconds:.0f} s at step {waiting[0].step:,}"
        f"{_name_collectives(waiting)}: what they send does not arrive.{where}"
    )


def _name_collectives(waiting: Sequence[RankStatus]) -> str:
    awaited: list[str] = sorted(
        {rank_status.collective for rank_status in waiting if rank_status.collective is not None}
    )
    if any(rank_status.phase is Phase.SHARED for rank_status in waiting):
        awaited.append("samples that another process of its machine decodes")
    return f" for {listed(awaited)}" if awaited else ""


def _name(rank_statuses: Sequence[RankStatus]) -> str:
    words = listed(
        f"rank {rank_status.rank} on {rank_status.host}"
        for rank_status in sorted(rank_statuses, key=lambda one: one.rank)
    )
    return words[0].upper() + words[1:]
