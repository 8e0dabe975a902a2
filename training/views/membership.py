"""This rank's place among the ranks of its segment: in which view it is, and how it comes into the next one.

Invariant: a rank goes over to the newest view alone, once all its members have come to meet; while it waits for them a
newer view, or a request to stop, ends the wait. A view is left for good. Nobody is counted as dead here: that is what
the agent sees, and says by a view.
"""

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from storage.errors import HoldfastError
from training.rank_status import Collective
from training.stopping import StopFlag, StopReason
from training.views.account import describe_change
from training.views.folder import Going, Member, View, ViewFolder
from training.views.group import Connections, form_group, open_meeting
from training.world import World

# The agent hears of an end at once. If it says nothing for so long, no rank has ended, or nobody goes on after it.
NEXT_VIEW_SECONDS = 10.0
# A request to stop ends no meeting to which all may still come: they save together after it.
MEETING_SECONDS = 10.0
POLL_SECONDS = 0.002
SECONDS_BETWEEN_LOOKS = 0.5


# What the members of a meeting decide.
FORM, PASS = "form", "pass"
Found = TypeVar("Found")


class CannotGoOnError(HoldfastError):
    """The ranks that are left cannot go on from where they are: the segment ends, as it does without views."""


class Membership:
    """The membership of one rank. Without a folder there is one view, and who loses a rank raises.

    `has_state` is whether this rank has a state of training, all of it.
    """

    def __init__(self, world: World, flag: StopFlag, folder: ViewFolder | None, life: int = 0) -> None:
        self.number = 0
        self.has_state = life == 0
        self._world, self._flag, self._folder = world, flag, folder
        self._me = Member(slot=world.slot, life=life)
        self._connections: list[Connections] = []
        self._kept: list[Any] = []  # groups that were left
        self._given_up: Connections | None = None  # of a group that did not come about
        self._look_at = 0.0
        self._seen = 0

    @property
    def is_joining(self) -> bool:
        """Whether this rank was begun in place of one that died, and is in no view yet."""
        return self.number == 0 and self._me.life > 0

    @property
    def can_change(self) -> bool:
        """Whether there can be another view."""
        return self._folder is not None

    def keep(self, connections: Connections) -> None:
        """These are of the group that was formed at the beginning."""
        self._connections.append(connections)

    def begin(self, step: int) -> None:
        """From here on the others can go on without one of them. Called by all ranks when training begins."""
        if self._folder is not None and self._world.is_first:
            self._folder.say_going(0, Going(step=step, seconds=0.0))

    def newest(self) -> int:
        """The number of the newest view, as it was half a second ago at most."""
        now = time.monotonic()
        if self._folder is not None and now >= self._look_at:
            self._look_at = now + SECONDS_BETWEEN_LOOKS
            while self._folder.has(self._seen + 1):
                self._seen += 1
        return self._seen

    def leave(self) -> None:
        """Have nobody wait for this rank in the views that it was in."""
        for connections in self._connections:
            connections.shut_down()
        self._connections = []

    def settle(self) -> None:
        """All members of the present view have one state: nobody waits for anything in an earlier one."""
        for connections in self._connections[:-1]:
            connections.shut_down()
        del self._connections[:-1]

    def say_ready(self) -> None:
        """Ask for a place in the next view."""
        assert self._folder is not None
        self._folder.say_ready(self._me)

    def enter_next(self, longest_seconds: float | None = NEXT_VIEW_SECONDS) -> View | None:
        """Meet the members of the next view, or of a newer one that comes meanwhile, and be one of them.

        None if there is none for this rank within so many seconds, or all are to stop.
        """
        with self._world.rank_status.waiting_for_ranks(Collective.VIEW):
            while (view := self._wait_for_newer(longest_seconds)) is not None:
                self.number = view.number
                if self._me not in view.members:
                    return None
                if self._meet(view):
                    return view
        return None

    def note_going(self, step: int) -> str | None:
        """Training goes on in this view. The first rank says so; what it says to people, where a rank died."""
        view = self._folder.find(self.number) if self._folder is not None and self._world.is_first else None
        if view is None or self._folder is None:
            return None
        seconds = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - view.committed_at)
        self._folder.say_going(view.number, Going(step=step, seconds=round(seconds, 3)))
        return describe_change(view, step, seconds, self._folder.find_out())

    def _wait_for_newer(self, longest_seconds: float | None) -> View | None:
        if self._folder is None:
            return None
        folder, is_joining = self._folder, self.is_joining

        def find() -> View | None:
            view = folder.find_newest(self.number)
            # There are views without a rank that is to join, before it is taken into one.
            return None if view is None or (is_joining and self._me not in view.members) else view

        found = self._poll(find, longest_seconds)
        self._seen = max(self._seen, self.number if found is None else found.number)
        return found

    def _meet(self, view: View) -> bool:
        """Whether all members came and the group is formed. One alone meets nobody."""
        rank, size = view.members.index(self._me), len(view.members)
        store = self._await_all(view, rank, size) if size > 1 else None
        if store is None and size > 1:
            return False
        connections, group = Connections(), None
        if size > 1:
            group = form_group(store, view.number, rank, size, lambda: self._has_lost_one(view))
            connections.find()
        self._kept.append((store, group))
        if group is None and size > 1:
            self._given_up = connections
            return False
        self._given_up = None
        self._connections.append(connections)
        self._world.enter(rank, size, group)
        return True

    def _await_all(self, view: View, rank: int, size: int) -> Any:
        """The store in which all members have come to meet; None if they go on to a newer view.

        The first one to see that all have come, or that there is a newer view, decides for all: none is left behind.
        """
        assert self._folder is not None
        folder, store = self._folder, open_meeting(self._folder.meeting_file(view.number), size)
        store.set(f"here-{rank}", "")
        everybody = [f"here-{other}" for other in range(size)]

        def decide() -> bool | None:
            self._shut_down_given_up()
            if store.check(everybody):
                return _settle(store, FORM)
            return _settle(store, PASS) if folder.has(view.number + 1) else None

        return store if self._poll(decide, None, MEETING_SECONDS) else None

    def _has_lost_one(self, view: View) -> bool:
        """Whether a member of this view is in no newer one."""
        newest = self._folder.find_newest(view.number) if self._folder is not None else None
        return newest is not None and not set(view.members) <= set(newest.members)

    def _shut_down_given_up(self) -> None:
        """Whoever formed the group that this rank gave up waits for it there, also through what came about later."""
        if self._given_up is not None:
            self._given_up.find()
            self._given_up.shut_down()

    def _poll(
        self, find: Callable[[], Found | None], longest_seconds: float | None, seconds_after_notice: float = 0.0
    ) -> Found | None:
        """What is found at last; None when the time is over, or so long after a request to stop was seen."""
        ends = math.inf if longest_seconds is None else time.monotonic() + longest_seconds
        is_noticed = False
        while (found := find()) is None:
            if not is_noticed and self._flag.reason() > StopReason.BUDGET:
                is_noticed, ends = True, min(ends, time.monotonic() + seconds_after_notice)
            if time.monotonic() >= ends:
                return None
            time.sleep(POLL_SECONDS)  # the agent, or another rank, writes a file
        return found


def _settle(store: Any, wanted: str) -> bool:
    """Whether the members of a meeting form their group: as the first one said that came to a decision."""
    decided: bool = store.compare_set("decision", "", wanted) == FORM.encode()
    return decided
