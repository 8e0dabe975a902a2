"""Who the ranks of an order are, and who comes after one that died: its agent decides, and says it by views.

Invariant: only who was seen to end is left out of a view; and who is taken in has said that it is ready, and learns the
state from the others. With ranks of other nodes, and before training has begun, there is one view: the ranks leave.
"""

import time
from collections.abc import Collection
from contextlib import suppress

from training.agents.order import AgentOrder
from training.rank_status import rank_status_file
from training.views.folder import LostMember, Member, View, ViewFolder

# Who dies as often as the order allows in so short a time would do so again.
DEATHS_SECONDS = 600.0
# What a group leaves behind in each of its members: some threads, and some descriptors.
MOST_VIEWS = 64


class Succession:
    """The members of the newest view, and those that are begun to be in the next one."""

    def __init__(self, order: AgentOrder) -> None:
        self._order = order
        self._views = _make_folder(order)
        self._number = 0
        self._members = [Member(slot=order.first_rank + number, life=0) for number in range(order.local_size)]
        self._num_views = dict.fromkeys(self._members, 1)
        self._starting: set[Member] = set()
        self._lives = {member.slot: 0 for member in self._members}
        self._deaths: dict[int, list[float]] = {member.slot: [] for member in self._members}
        self._to_begin: list[Member] = []
        self._retired: set[Member] = set()

    @property
    def is_under_way(self) -> bool:
        """Whether a rank that was begun is not ready yet."""
        return bool(self._starting)

    def can_do_without(self, member: Member, signal: int | None) -> bool:
        """Whether the others may go on when this one ended so: by a signal, and in training, or before it was one."""
        if self._views is None or self._views.find_going(0) is None:
            return False
        return signal is not None or member in self._starting

    def go_on_without(self, lost: Collection[LostMember]) -> int | None:
        """The number of the view of those that are left; None if nobody is. Whoever died is to be begun anew."""
        gone = {one.member for one in lost}
        left = [member for member in self._members if member not in gone]
        if not left or self._views is None:
            return None
        for member in gone:
            self._succeed(member)
        if len(left) == len(self._members):  # who died was in no view yet
            return self._number
        in_view = [
            one.model_copy(update={"is_worn": one.member in self._retired})
            for one in lost
            if one.member in self._members
        ]
        return self._number if self._commit(left, lost=in_view) else None

    def take_to_begin(self) -> list[Member]:
        """Those that are to be begun now."""
        begun, self._to_begin = self._to_begin, []
        self._starting |= set(begun)
        return begun

    def take_in(self) -> None:
        """Commit a view with those that are ready, if there are such."""
        ready = [member for member in self._starting if self._views is not None and self._views.is_ready(member)]
        if ready and self._commit([*self._members, *ready], joined=ready):
            self._starting -= set(ready)

    def withdraw(self) -> set[Member]:
        """Take nobody in any more, since the ranks leave; those that were begun for it, and do not train yet.

        Who waits for one of them in the newest view goes on in another one without it.
        """
        view = self._views.find(self._number) if self._views is not None and self._number > 0 else None
        dismissed, self._starting, self._to_begin = set(self._starting), set(), []
        if self._views is not None and view is not None and view.joined and self._views.find_going(view.number) is None:
            dismissed |= set(view.joined)
            self._commit([member for member in self._members if member not in dismissed])
        return dismissed

    def find_worn(self) -> Member | None:
        """A member to be replaced, which has been in too many views; one at a time, when nobody else is missing."""
        if self._starting or self._to_begin or len(self._members) < self._order.local_size:
            return None
        worn = next((member for member in self._members if self._num_views[member] > MOST_VIEWS), None)
        if worn is not None:
            self._retired.add(worn)
        return worn

    def is_worn(self, member: Member) -> bool:
        """Whether it is to be replaced, and for no other reason was ended."""
        return member in self._retired

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

    def _commit(
        self, members: Collection[Member], lost: Collection[LostMember] = (), joined: Collection[Member] = ()
    ) -> bool:
        assert self._views is not None
        view = View(
            number=self._number + 1,
            members=sorted(members, key=lambda member: member.slot),
            lost=list(lost),
            joined=list(joined),
            committed_at=time.clock_gettime(time.CLOCK_BOOTTIME),
        )
        try:
            if not self._views.commit(view):
                return False
        except OSError as error:
            print(f"View {view.number} could not be committed: {error}", flush=True)
            return False
        self._number, self._members = view.number, view.members
        for member in view.members:
            self._num_views[member] = self._num_views.get(member, 0) + 1
        return True


def _make_folder(order: AgentOrder) -> ViewFolder | None:
    """None where there is one view alone."""
    if not order.is_alone or order.world_size == 1:
        return None
    views = ViewFolder(order.folder)
    try:
        views.create()
    except OSError as error:
        print(f"A rank that dies ends the segment, since there is no folder for views: {error}", flush=True)
        return None
    return views
