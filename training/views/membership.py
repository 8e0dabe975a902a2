"""This rank's place among the ranks of its segment: in which view it is, and how it comes into the next one.

Invariant: a rank goes over to the newest view alone, once all its members have come to meet; while it waits for them a
newer view, or a request to stop, ends the wait. A view is left for good. Nobody is counted as dead here: that is what
the agent sees, and says by a view.
"""

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from storage.errors import HoldfastError
from training.meeting import Address
from training.rank_status import Collective
from training.stopping import StopFlag, StopReason
from training.views.account import describe_change, seconds_since_change
from training.views.ear import Answer, tell
from training.views.folder import ViewFolder
from training.views.group import Connections, form_group
from training.views.meetings import open_meeting
from training.views.view import Going, LostMember, Member, View, first_view
from training.world import World

# The agent hears of an end at once. If it says nothing for so long, no rank has ended, or nobody goes on after it; but
# of several nodes this one's process may say that it is not decided yet.
NEXT_VIEW_SECONDS = 10.0
# A request to stop ends no meeting to which all may still come: they save together after it. Nor the wait for a view
# after a death just before: with the others that are left, this rank saves.
MEETING_SECONDS = 10.0
NOTICED_SECONDS = 2.0
POLL_SECONDS = 0.002
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_QUESTIONS = 1.0


# What the members of a meeting decide.
FORM, PASS = "form", "pass"
Found = TypeVar("Found")


class CannotGoOnError(HoldfastError):
    """The ranks that are left cannot go on from where they are: the segment ends, as it does without views."""


class Membership:
    """The membership of one rank. Without a folder there is one view, and who loses a rank raises.

    `has_state` is whether this rank has a state of training, all of it. `is_leaving`: it was left out of the newest
    view because its node was asked to leave.
    """

    def __init__(self, world: World, flag: StopFlag, folder: ViewFolder | None, life: int = 0) -> None:
        self.number = 0
        self.has_state = life == 0
        self.is_leaving = False
        self._world, self._flag, self._folder = world, flag, folder
        self._me = Member(slot=world.slot, life=life)
        self._connections: list[tuple[int, Connections]] = []  # of the views that this rank was in
        self._meeting: tuple[int, Connections] | None = None  # with whoever keeps the store of the present meeting
        self._kept: list[Any] = []  # groups that were left
        self._given_up: Connections | None = None  # of a group that did not come about
        self._meetings: set[Address] = set()
        self._asked_at = 0.0
        self._look_at = 0.0
        self._seen = 0
        self._went_on_in = 0 if life == 0 else None

    @property
    def is_joining(self) -> bool:
        """Whether it was begun in place of one that died, or on a node that came later, and is in no view yet."""
        return self.number == 0 and self._me.life > 0

    @property
    def can_change(self) -> bool:
        """Whether there can be another view."""
        return self._folder is not None

    def keep(self, connections: Connections) -> None:
        """These are of the group that was formed at the beginning."""
        self._connections.append((0, connections))

    def watch(self) -> None:
        """Where ranks are on several machines, wait for no member from here on that a newer view does without."""
        if self._folder is not None and self._world.meeting is not None and self._world.meeting.ear is not None:
            threading.Thread(target=self._watch, name="views", daemon=True).start()

    def begin(self, step: int) -> None:
        """From here on the others can go on without one of them. Called by all ranks when training begins."""
        if self._folder is not None and self._world.local_rank == 0:  # the first one of each machine tells its agent
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
        self._shut_down(self.number)
        self._connections = []

    def settle(self) -> None:
        """All members of the present view have one state: nobody waits for anything in an earlier one."""
        self._shut_down(self.number - 1)
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
                before, self.number = self.number, view.number
                if self._me not in view.members:
                    self._world.leave()  # how the segment ends is for the others to say
                    lost = self._find_lost_since(before)
                    self.is_leaving = any(one.member == self._me and one.is_leaving for one in lost)
                    return None
                if self._meet(view):
                    return view
        return None

    def note_going(self, step: int) -> str | None:
        """Training goes on in this view, which is noted on each machine; of the first rank what it says to people."""
        if self._folder is None:
            return None
        first = self.number if self._went_on_in is None else self._went_on_in + 1
        found = [self._folder.find(number) for number in range(first, self.number + 1)]
        passed = [view for view in found if view is not None]
        self._went_on_in = self.number
        if not passed or self._world.local_rank != 0:
            return None
        seconds = seconds_since_change(passed, time.clock_gettime(time.CLOCK_BOOTTIME))
        self._folder.say_going(self.number, Going(step=step, seconds=seconds))
        return describe_change(passed, step, seconds, self._folder.find_out()) if self._world.is_first else None

    def _wait_for_newer(self, longest_seconds: float | None) -> View | None:
        if self._folder is None:
            return None
        folder, is_joining = self._folder, self.is_joining

        def find() -> View | None:
            view = folder.find_newest(self.number)
            # There are views without a rank that is to join, before it is taken into one.
            return None if view is None or (is_joining and self._me not in view.members) else view

        self._ask()  # this node's process may not know that a rank is gone, or that there is a newer view
        found = self._poll(find, longest_seconds, NOTICED_SECONDS)
        self._seen = max(self._seen, self.number if found is None else found.number)
        return found

    def _ask(self) -> Answer:
        """What this node's process, which looks for a newer view from now on, says of it; nothing on one machine."""
        meeting = self._world.meeting
        self._asked_at = time.monotonic()
        return (tell(meeting, "look", self.number + 1) if meeting is not None else None) or Answer()

    def _is_hopeless(self) -> bool:
        """Whether there will be none, as it was a second ago at most."""
        return time.monotonic() >= self._asked_at + SECONDS_BETWEEN_QUESTIONS and self._ask().is_hopeless

    def _meet(self, view: View) -> bool:
        """Whether all members came and the group is formed. One alone meets nobody."""
        if len(view.members) == 1:
            self._enter(view, None, Connections())
            return True
        store = self._await_all(view)
        if store is None:
            return False
        connections, rank = Connections(self._meetings), view.members.index(self._me)
        group = form_group(store, view.number, rank, len(view.members), lambda: self._has_lost_one(view))
        connections.find()
        self._kept.append(group)
        if group is None:
            self._given_up = connections
            return False
        self._enter(view, group, connections)
        return True

    def _enter(self, view: View, group: Any, connections: Connections) -> None:
        self._given_up = None
        self._connections.append((view.number, connections))
        self._world.enter([member.slot for member in view.members], group, view.number)

    def _await_all(self, view: View) -> Any:
        """The store in which all members have come to meet; None if they go on to a newer view.

        The first one to see that all have come, or that there is a newer view, decides for all: none is left behind.
        Where their meeting is on the machine of a member that is gone, they find that there will be a newer view.
        """
        assert self._folder is not None and self._world.meeting is not None
        folder, rank, size = self._folder, view.members.index(self._me), len(view.members)
        everybody = [f"here-{other}" for other in range(size)]

        def decide() -> bool | None:
            self._shut_down_given_up()
            if store.check(everybody):
                return _settle(store, FORM)
            return _settle(store, PASS) if folder.has(view.number + 1) else None

        to_store = Connections()
        try:
            wait_for = partial(self._poll, longest_seconds=None, seconds_after_notice=MEETING_SECONDS)
            store = open_meeting(view, rank, folder, self._world.meeting, self._meetings, wait_for)
            if store is None:
                return None
            self._kept.append(store)
            to_store.find()
            self._meeting = view.number, to_store
            store.set(f"here-{rank}", "")
            return store if self._poll(decide, None, MEETING_SECONDS) else None
        except RuntimeError as error:
            print(f"The meeting of view {view.number} came to nothing: {error}", flush=True)
            return None

    def _has_lost_one(self, view: View) -> bool:
        """Whether a member of this view is in no newer one."""
        newest = self._folder.find_newest(view.number) if self._folder is not None else None
        return newest is not None and not set(view.members) <= set(newest.members)

    def _watch(self) -> None:
        """In a thread: a network that is cut does not tell the one that waits in training that somebody is gone."""
        assert self._folder is not None
        while True:
            time.sleep(SECONDS_BETWEEN_LOOKS)  # another process puts files
            number = self.number
            lost = self._find_lost_since(number)
            members = (self._folder.find(number) or first_view(self._world.full_size, 0.0)).members if lost else []
            # Who leaves with its node takes part to the next boundary.
            if any(one.member in members and not one.is_leaving for one in lost):
                self._shut_down(number)

    def _find_lost_since(self, number: int) -> list[LostMember]:
        """Those that views after this one do without."""
        assert self._folder is not None
        lost: list[LostMember] = []
        while (view := self._folder.find(number + 1)) is not None:
            lost, number = [*lost, *view.lost], view.number
        return lost

    def _shut_down(self, last: int) -> None:
        """The connections of views up to this one, in whichever thread. A newer view's are in use."""
        for number, connections in [*self._connections, *([self._meeting] if self._meeting is not None else [])]:
            if number <= last:
                connections.shut_down()

    def _shut_down_given_up(self) -> None:
        """Whoever formed the group that this rank gave up waits for it there, also through what came about later."""
        if self._given_up is not None:
            self._given_up.find()
            self._given_up.shut_down()

    def _poll(
        self, find: Callable[[], Found | None], longest_seconds: float | None, seconds_after_notice: float
    ) -> Found | None:
        """What is found at last; None when the time is over, or so long after a request to stop was seen.

        Or when too many nodes are gone: nobody would come.
        """
        ends = math.inf if longest_seconds is None else time.monotonic() + longest_seconds
        is_noticed = False
        while (found := find()) is None:
            if not is_noticed and self._flag.reason() > StopReason.BUDGET:
                is_noticed, ends = True, min(ends, time.monotonic() + seconds_after_notice)
            if self._is_hopeless():
                return None
            if time.monotonic() >= ends:
                if is_noticed or longest_seconds is None or not self._ask().is_deciding:
                    return None
                ends = time.monotonic() + longest_seconds
            time.sleep(POLL_SECONDS)  # the agent, or another rank, writes a file
        return found


def _settle(store: Any, wanted: str) -> bool:
    """Whether the members of a meeting form their group: as the first one said that came to a decision."""
    decided: bool = store.compare_set("decision", "", wanted) == FORM.encode()
    return decided
