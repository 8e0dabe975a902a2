"""Who comes after a rank that died: its agent sees ends, wants views without them, and begins others in their place.

Invariant: only who was seen to end is left out of a view; and who is taken in has said that it is ready, and learns the
state from the others. Of ranks that are all this machine's the agent commits the view itself; of several nodes it notes
what it wants, and tells its node's process, which has the views committed in the store
(`tasks/cluster/node_views.py`). Before training has begun there is one view: the ranks leave.
"""

import time
from collections.abc import Collection
from contextlib import suppress

from training.agents.order import AgentOrder
from training.rank_status import rank_status_file
from training.views.decisions import Decisions
from training.views.ear import tell
from training.views.folder import ViewFolder
from training.views.view import LostMember, Member, View, Wanted, first_view

# Who dies as often as the order allows in so short a time would do so again.
DEATHS_SECONDS = 600.0
# What a group leaves behind in each of its members: some threads, and some descriptors.
MOST_VIEWS = 64


class Succession:
    """The ranks of this agent's order among all of the segment, and those that are begun to be in the next view."""

    def __init__(self, order: AgentOrder) -> None:
        self._order = order
        self._views = _find_folder(order)
        first = first_view(order.world_size, order.launched_at)
        self._decisions = None if self._views is None else Decisions(self._views, first)
        self._slots = range(order.first_rank, order.first_rank + order.local_size)
        self._num_views = dict.fromkeys(first.members, 1)
        self._starting: set[Member] = set()
        self._lost: dict[Member, LostMember] = {}
        self._withdrawn: set[Member] = set()
        self._wanted = Wanted()
        self._lives = dict.fromkeys(self._slots, order.first_life)
        self._deaths: dict[int, list[float]] = {slot: [] for slot in self._slots}
        self._to_begin = [Member(slot=slot, life=order.first_life) for slot in self._slots]
        self._retired: set[Member] = set()
        self._has_failed = False

    @property
    def is_under_way(self) -> bool:
        """Whether a rank that was begun is not ready yet, or a view is not there that is wanted."""
        newest = self._decisions.newest.members if self._decisions is not None else []
        return bool(self._starting) or any(member in newest for member in self._lost)

    @property
    def is_over(self) -> bool:
        """Whether nobody can go on though there are views: none is left, or what is wanted cannot be said."""
        if self._decisions is None:
            return False
        return self._has_failed or all(member in self._lost for member in self._decisions.newest.members)

    def has_been_in(self, member: Member) -> bool:
        """Whether it was in a view, and did not only begin to join one."""
        return member.life == 0 or (self._decisions is not None and self._decisions.has_been_in(member))

    def can_do_without(self, member: Member, signal: int | None) -> bool:
        """Whether the others may go on when this one ended so: by a signal, and in training, or before it was one."""
        if self._views is None or self._views.find_going(0) is None:
            return False
        return signal is not None or member in self._starting

    def go_on_without(self, lost: Collection[LostMember]) -> None:
        """Have those left out that died, and another one begun for each."""
        for one in lost:
            self._lost[one.member] = one.model_copy(update={"is_worn": one.member in self._retired})
            self._succeed(one.member)
        self.settle()

    def take_to_begin(self) -> list[Member]:
        """Those that are to be begun now."""
        begun, self._to_begin = self._to_begin, []
        self._starting |= {member for member in begun if member.life > 0}
        return begun

    def settle(self) -> None:
        """Want a view with those that are ready and without those that are gone."""
        if self._decisions is None or self._views is None:
            return
        try:
            self._note(self._decisions.read())
            wanted = self._want(self._decisions)
            if self._order.is_alone:
                self._note(self._decisions.settle(wanted)[0])
            elif wanted != self._wanted:
                self._views.want(wanted)
                tell(self._order.meeting, "look")
            self._wanted = wanted
        except OSError as error:
            print(f"What is to become of the ranks could not be written: {error}", flush=True)
            self._has_failed = True

    def withdraw(self) -> set[Member]:
        """Have nobody taken in any more, since the ranks leave; those that were begun for it, and do not train yet.

        Who waits for one of them in the newest view goes on in another one without it.
        """
        dismissed, self._starting, self._to_begin = set(self._starting), set(), []
        if self._decisions is not None and self._views is not None:
            newest = self._decisions.newest
            if newest.number > 0 and self._views.find_going(newest.number) is None:
                dismissed |= {member for member in newest.joined if member.slot in self._slots}
        if dismissed:
            self._withdrawn |= dismissed
            self.settle()
        return dismissed

    def find_worn(self) -> Member | None:
        """A member of ours to be replaced, which has been in too many views; one at a time, when nobody is missing."""
        if self._decisions is None or self._starting or self._to_begin:
            return None
        members = self._decisions.newest.members
        if len(members) < self._order.world_size or self._lost.keys() & set(members):
            return None
        # The first one of all nodes: the agents of two would replace all that are left.
        worn = next((member for member in members if self._num_views[member] > MOST_VIEWS), None)
        if worn is None or worn.slot not in self._slots:
            return None
        self._retired.add(worn)
        return worn

    def is_worn(self, member: Member) -> bool:
        """Whether it is to be replaced, and for no other reason was ended."""
        return member in self._retired

    def _want(self, decisions: Decisions) -> Wanted:
        assert self._views is not None
        newest = decisions.newest.members
        self._lost = {
            member: lost for member, lost in self._lost.items() if member in newest or not decisions.has_been_in(member)
        }
        ready = [member for member in self._starting if self._views.is_ready(member)]
        wanted = Wanted(
            lost=list(self._lost.values()),
            joining=sorted(ready, key=lambda member: member.slot),
            withdrawn=sorted(self._withdrawn, key=lambda member: member.slot),
            since=self._wanted.since,
        )
        is_waiting = any(lost.member in newest for lost in self._wanted.lost)
        if wanted == self._wanted or is_waiting:
            return wanted
        return wanted.model_copy(update={"since": time.clock_gettime(time.CLOCK_BOOTTIME)})

    def _note(self, views: Collection[View]) -> None:
        for view in views:
            self._starting -= set(view.members)
            for member in view.members:
                self._num_views[member] = self._num_views.get(member, 0) + 1

    def _succeed(self, member: Member) -> None:
        """Have another process begun in its place, unless it would hardly live longer."""
        slot, now = member.slot, time.monotonic()
        self._starting.discard(member)
        with suppress(OSError):  # or it would look as if a rank stood still
            rank_status_file(self._order.folder, slot).unlink(missing_ok=True)
        if member not in self._retired:
            self._deaths[slot] = [*(at for at in self._deaths[slot] if now - at < DEATHS_SECONDS), now]
        if len(self._deaths[slot]) >= self._order.most_deaths:
            self._leave_out(slot)
            return
        self._lives[slot] += 1
        self._to_begin.append(Member(slot=slot, life=self._lives[slot]))

    def _leave_out(self, slot: int) -> None:
        if self._views is not None:
            self._views.say_out(slot)
        print(
            f"Rank {slot} died {len(self._deaths[slot])} times within {DEATHS_SECONDS / 60:.0f} minutes, and is not "
            "begun again in this segment. The others go on.",
            flush=True,
        )


def _find_folder(order: AgentOrder) -> ViewFolder | None:
    """Where views are found; None where there is one view alone. Of several nodes this one's process made it."""
    views = ViewFolder(order.folder)
    if not order.is_alone:
        return views if views.is_there else None
    if order.world_size == 1:
        return None
    try:
        views.create()
    except OSError as error:
        print(f"A rank that dies ends the segment, since there is no folder for views: {error}", flush=True)
        return None
    return views
