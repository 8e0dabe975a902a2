"""Where all ranks are, as far as they were heard of, and what that says about ranks that do not get on.

Invariant: a rank's silence is measured by this process's clock, from one look to the next; and whoever waits for the
others is not to blame.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tasks.text import count_of, listed
from training.rank_status import Place, RankPulse

AT_PLACE = {
    Place.STARTING: "it has been starting",
    Place.RESTORING: "it has been restoring the checkpoint",
    Place.COMPUTING: "it has been computing",
    Place.INPUT: "it has waited for samples",
    Place.SHARED: "it has waited for samples that another process of its machine decodes",
    Place.OTHERS: "it has waited for the other ranks",
    Place.VALIDATING: "it has been validating",
    Place.EVALUATING: "it has been evaluating",
    Place.SAVING: "it has been saving",
}


@dataclass(frozen=True)
class Finding:
    """Why ranks do not get on, for people. `is_for_good` is where waiting longer will not help."""

    words: str
    is_for_good: bool


@dataclass(frozen=True)
class _Heard:
    """The newest word of a rank, and when it came."""

    pulse: RankPulse
    at: float


class Whereabouts:
    """Of the ranks of one segment."""

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}

    def look(self, pulses: Iterable[RankPulse]) -> bool:
        """Take in what ranks say of themselves; whether one of them has got on by a step since the last look."""
        now, got_on = time.monotonic(), False
        for pulse in pulses:
            before = self._heard.get(pulse.rank)
            if before is None or pulse.beat != before.pulse.beat:
                self._heard[pulse.rank] = _Heard(pulse, now)
                got_on |= before is not None and pulse.step > before.pulse.step
        return got_on

    def forget_silence(self) -> None:
        """Nobody could be heard for a while: all begin anew."""
        now = time.monotonic()
        self._heard = {rank: _Heard(heard.pulse, now) for rank, heard in self._heard.items()}

    def explain(self, silent_seconds: float, stuck_seconds: float) -> Finding | None:
        """Why no step is made; None if too little is known.

        Ranks count as silent, and as waiting for too long, after so many seconds.
        """
        now = time.monotonic()
        silent = [heard for heard in self._heard.values() if now - heard.at >= silent_seconds]
        living = [heard.pulse for heard in self._heard.values() if now - heard.at < silent_seconds]
        stopped_hosts = {heard.pulse.host for heard in silent}
        waiting = [pulse for pulse in living if _waits_for_others(pulse, stopped_hosts)]
        busy = [pulse for pulse in living if pulse not in waiting]
        if silent and waiting:
            return Finding(_describe_silence(silent, waiting, living), is_for_good=not busy)
        if busy:
            return Finding(_describe_busy(busy, waiting), is_for_good=False)
        if len(waiting) > 1 and all(pulse.seconds >= stuck_seconds for pulse in waiting):
            return Finding(_describe_broken(waiting), is_for_good=True)
        return None


def _waits_for_others(pulse: RankPulse, stopped_hosts: Collection[str]) -> bool:
    """Or for samples, of a rank of its machine that is not heard of."""
    return pulse.place is Place.OTHERS or (pulse.place is Place.SHARED and pulse.host in stopped_hosts)


def _describe_silence(silent: Sequence[_Heard], waiting: Sequence[RankPulse], living: Sequence[RankPulse]) -> str:
    lost = [heard.pulse for heard in silent]
    seconds = time.monotonic() - max(heard.at for heard in silent)
    is_whole_machine = not {pulse.host for pulse in lost} & {pulse.host for pulse in living}
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


def _describe_busy(busy: Sequence[RankPulse], waiting: Sequence[RankPulse]) -> str:
    slowest = max(busy, key=lambda pulse: pulse.seconds)
    doing = f"{AT_PLACE[slowest.place]} for {slowest.seconds:.0f} s at step {slowest.step:,}"
    if not waiting:
        return f"{_name([slowest])}: {doing}."
    others = f"{count_of(len(waiting), 'other rank')} {'waits' if len(waiting) == 1 else 'wait'}"
    return f"{_name(busy)} did not come to where {others}{_name_collectives(waiting)}: {doing}."


def _describe_broken(waiting: Sequence[RankPulse]) -> str:
    hosts = sorted({pulse.host for pulse in waiting})
    seconds = min(pulse.seconds for pulse in waiting)
    where = f" The network between {listed(hosts)} is broken." if len(hosts) > 1 else ""
    return (
        f"All ranks run, and have waited for each other for {seconds:.0f} s at step {waiting[0].step:,}"
        f"{_name_collectives(waiting)}: what they send does not arrive.{where}"
    )


def _name_collectives(waiting: Sequence[RankPulse]) -> str:
    awaited: list[str] = sorted({pulse.collective for pulse in waiting if pulse.collective is not None})
    if any(pulse.place is Place.SHARED for pulse in waiting):
        awaited.append("samples that another process of its machine decodes")
    return f" for {listed(awaited)}" if awaited else ""


def _name(pulses: Sequence[RankPulse]) -> str:
    words = listed(f"rank {pulse.rank} on {pulse.host}" for pulse in sorted(pulses, key=lambda one: one.rank))
    return words[0].upper() + words[1:]
