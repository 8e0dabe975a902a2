"""A node's part in deciding, with other nodes, which ranks train together (`training/agents/README.md`, views).

What its agent wants is committed in the run's store, and so is that a node does not answer any more; what was committed
there comes into the folder in which its ranks look. Invariant: nothing is asked of the store while nobody is missing
and nobody says that there is something to look for. A store that does not answer is asked again; what was not decided
meanwhile is decided then, or the ranks end. A node that others went on without, or whose number another process has,
commits nothing more.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Literal

from storage.errors import StoreError
from storage.objects.store import Store
from storage.runs.segments import find_outcome
from tasks.cluster.leaving import Leaving, Way
from tasks.cluster.orders import NodeEnd, NodeStatuses, write_node_end, write_node_statuses
from tasks.cluster.roll_call import WHERE_FEW_ANSWER, RollCall
from tasks.cluster.roster import NodePlace, Roster, claim_of
from tasks.configuration.cluster import ClusterConfig
from training.agents.ends import read_ends
from training.meeting import Address
from training.spec import SegmentSpec
from training.views.decisions import Decisions
from training.views.ear import Answer, Asks, Ear, Question, ask
from training.views.folder import ViewFolder
from training.views.stored import MirroredViews, StoredViews
from training.views.view import Going, LostMember, Member, View, Wanted, first_view

# For so long after it was told to look for a view, a node looks again and again: who commits it may need a moment.
LOOKING_SECONDS = 10.0
SECONDS_BETWEEN_LOOKS = 0.25
# While a rank is missing: whoever takes one in tells all nodes, and a word may be lost.
MISSING_SECONDS = 3.0
# Of a node that is to be missed by nobody: then the segment ends.
SILENT_SECONDS = 2.0
# A store that does not answer is asked again; and how often a node asks whether the next one answers.
RETRY_SECONDS = WATCH_SECONDS = 1.0
NUM_TELLERS = 8


def name_segment(spec: SegmentSpec) -> str:
    """By which nodes know that they work for one segment."""
    return f"{spec.run}-{spec.fence}"


class NodeViews:
    """The views of a segment on one of its nodes. Until it is to `begin` there is one view, and nobody looks."""

    def __init__(self, store: Store, spec: SegmentSpec, job: str, cluster: ClusterConfig) -> None:
        self._store, self._spec, self._job, self._cluster = store, spec, job, cluster
        self._folder = ViewFolder(spec.scratch_folder)
        self._stored = StoredViews(store, spec.run, spec.fence)
        self._roster = Roster(store, spec.run, spec.fence, spec.train.ranks)
        self._me = NodePlace(node="", ear=Address(host="", port=0), index=0)
        self._roll_call = RollCall(name_segment(spec), [], SILENT_SECONDS)
        self._is_hopeless = False
        self._decisions = Decisions(MirroredViews(self._stored, self._folder), first_view(0, 0.0))
        self._is_told, self._is_over = threading.Event(), threading.Event()
        self._look_for, self._look_until = 0, 0.0
        self._trouble_since: float | None = None
        self._known_going: set[int] = set()  # views of which the store knows that training went on in them
        self._known_out: set[int] = set()  # ranks of which it knows that they stay out
        self._look_for_end_at = 0.0
        self._threads: list[threading.Thread] = []
        self.is_left_out = False  # the others go on without this node
        self.is_left_alone = False  # the segment is over, and the others have left
        self.is_replaced = False  # another process has its number
        self._has_come = False  # the others were told that this node came later
        self.has_joined = False  # the others have had a view with ranks of this node, which came later
        self._is_joining_known = False  # the store was told so
        self._leaving = Leaving(self._may_go_on_with)
        self._ear = Ear(name_segment(spec), self._answer)

    @property
    def must_stop(self) -> bool:
        """Whether the ranks of this node are to stop, and so all are to save and leave, since it was asked to."""
        is_together = not (self._threads and self._is_member) or self._way_to_leave() is Way.TOGETHER
        return self._leaving.is_asked and is_together

    @property
    def has_left(self) -> bool:
        """Whether this node was asked to leave, and the others go on without it."""
        is_alone = self._threads and self._is_member and self._way_to_leave() is Way.ALONE
        return bool(is_alone) and not self._has_members

    @property
    def claim(self) -> int:
        """With which this node came to the segment; 0: it met the others as it began."""
        return self._me.claim

    @property
    def port(self) -> int:
        """At which this node is asked."""
        return self._ear.port

    def begin(self, spec: SegmentSpec, roster: Roster, me: NodePlace) -> None:
        """Take part from here on, in this place among the nodes, with the folder of this specification.

        Raises `OSError`.
        """
        self._spec, self._roster, self._me = spec, roster, me
        self._folder = ViewFolder(spec.scratch_folder)
        silent_seconds = self._cluster.silent_seconds or SILENT_SECONDS
        self._roll_call = RollCall(name_segment(spec), roster.ears, silent_seconds)
        first = first_view(roster.num_met * spec.train.ranks, _now())
        self._decisions = Decisions(MirroredViews(self._stored, self._folder), first)
        self._folder.create()
        if me.claim:
            self._folder.say_going(0, Going(step=0, seconds=0.0))  # or its agent would replace nobody
            self._is_told.set()
        self._threads = [
            threading.Thread(target=target, name="views", daemon=True) for target in (self._follow, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Have this node leave, alone or together with the others; however often it is asked to, it leaves once."""
        if self._leaving.is_asked:
            return
        self._leaving.ask()
        if self._threads:
            self._tell_others("leaving")
            self._is_told.set()

    def close(self) -> None:
        """Commit what the agent wanted last. Whoever asks afterwards finds that this node's ranks have ended."""
        self._is_over.set()
        self._is_told.set()
        for thread in self._threads:
            thread.join()
        if any(end.exit_code == 0 for end in read_ends(self._spec.scratch_folder).ends):
            self._tell_others("left")  # or they would go on without this node, and say that it was lost
        self._ear.close()

    def _answer(self, question: Question) -> Answer:
        """In a thread of the ear's."""
        if question.asks == "look":
            self._have_look_for(question.view)
        elif question.asks in ("leaving", "left") and self._has_place(question.node, question.claim):
            (self._leaving.note if question.asks == "leaving" else self._roll_call.note_left)(question.node)
        port = self._folder.find_port(question.view) if question.asks == "meeting" else None
        return Answer(port=port, is_deciding=self._is_deciding(), is_hopeless=self._is_hopeless)

    def _have_look_for(self, number: int) -> None:
        self._look_for = max(self._look_for, number)
        longest = WHERE_FEW_ANSWER * (self._cluster.silent_seconds or 0)
        self._look_until = time.monotonic() + LOOKING_SECONDS + longest
        self._is_told.set()

    def _is_deciding(self) -> bool:
        """Whether there may be another view yet: the store is away, or a node is silent and not lost yet."""
        since = self._trouble_since
        is_away = since is not None and time.monotonic() < since + self._spec.store_seconds
        return is_away or self._roll_call.is_undecided(self._nodes_of(self._decisions.newest))

    def _follow(self) -> None:
        is_last = False
        while not is_last:
            self._is_told.wait(self._seconds_to_next_look())
            self._is_told.clear()
            is_last = self._is_over.is_set()
            try:
                self._look()
                self._trouble_since = None
            except (StoreError, OSError) as error:
                if self._trouble_since is None:
                    print(f"The store does not say which ranks go on; it is asked again: {error}", flush=True)
                    self._trouble_since = time.monotonic()

    def _watch(self) -> None:
        """Ask the next node, each one another, whether it answers: where a network is cut, nothing else tells."""
        while not self._is_over.wait(WATCH_SECONDS):
            nodes = sorted(self._nodes_of(self._decisions.newest))
            is_alone = self._me.index not in nodes or len(nodes) == 1
            if self._cluster.silent_seconds is None or self._folder.find_going(0) is None or is_alone:
                continue
            following = nodes[(nodes.index(self._me.index) + 1) % len(nodes)]
            if following >= len(self._roster.ears):
                continue  # its claim is read with the view that it is in
            self._roll_call.ask([following])
            if not self._roll_call.answers(following):
                self._have_look_for(self._decisions.newest.number + 1)

    def _seconds_to_next_look(self) -> float | None:
        """None: until somebody tells."""
        if self._trouble_since is not None:
            return RETRY_SECONDS
        if self._is_looking or (self._leaving.is_asked and self._has_members):
            return SECONDS_BETWEEN_LOOKS
        return None if self._is_settled else MISSING_SECONDS

    @property
    def _is_looking(self) -> bool:
        """For a view that is not there."""
        return self._decisions.newest.number < self._look_for and time.monotonic() < self._look_until

    @property
    def _is_settled(self) -> bool:
        """Whether nobody is missing, and all train."""
        newest = self._decisions.newest
        is_known = newest.number == 0 or not self._is_ours(newest.members[0]) or newest.number in self._known_going
        return is_known and len(newest.members) == len(self._roster.places) * self._spec.train.ranks

    def _look(self) -> None:
        """Have what is wanted committed, and read what others have."""
        self._read_claims()
        if self.is_left_out:
            return
        if self._me.claim and not self._has_come:
            self._come()
        self._settle(self._folder.find_wanted())
        self._look_for_lost()
        if self._way_to_leave() is Way.ALONE and self._has_members:
            self._leave_alone()
        # Not by the claim alone: ranks of this node may train with others, who are to have a view without them first.
        self.is_left_out = self.is_left_out or (self.is_replaced and not self._has_members)
        self._note_joined()
        self._note_going()
        self._note_out()
        self._look_for_the_end()

    def _read_claims(self) -> None:
        """Which nodes came since the last look; one of them may be another process of this node."""
        for place in self._roster.read():
            self._roll_call.forget(place.index)
            self._leaving.forget(place.index)
            if place.index == self._me.index and place.claim > self._me.claim:
                print(f"Node {place.node} has the number of this one by a newer claim: this one leaves.", flush=True)
                self.is_replaced = True

    def _come(self) -> None:
        """Have all others look, who know nothing of this node yet; one that is over may not know that."""
        for view in self._decisions.read():
            going = self._stored.find_going(view.number)
            if going is not None:  # for the account of the segment, if a rank of this node writes it
                self._folder.say_going(view.number, going)
        self._have_look_for(self._decisions.newest.number + 1)
        ears = [ear for ear in self._roster.all_ears() if ear != self._me.ear]
        self._tell(ears, "look", self._decisions.newest.number + 1)
        self._has_come = True

    def _look_for_lost(self) -> None:
        """Have those left out whose nodes are lost, or have another process by now."""
        newest = self._decisions.newest
        replaced = {member for member in newest.members if self._roster.is_replaced(member)}
        if not (replaced or self._is_looking):
            return
        nodes = self._nodes_of(newest)
        self._roll_call.ask(nodes - {self._me.index})
        # Who is in no view yet judges nobody.
        lost = self._roll_call.find_lost(nodes) - {self._me.index} if self._is_member else set()
        gone = replaced | {member for member in newest.members if self._roster.index_of(member) in lost}
        left = {self._roster.index_of(member) for member in newest.members if member not in gone}
        self._is_hopeless = bool(gone) and not self._may_go_on_with(len(left))
        if gone and not self._is_hopeless:
            self._leave_out(gone)

    @property
    def _is_member(self) -> bool:
        return not self._me.claim or self.has_joined

    def _settle(self, wanted: Wanted) -> None:
        if not self._is_member:
            wanted = wanted.model_copy(update={"node": self._me.node})
        if self._leaving.is_asked:  # who joined now would be taken out again, or keep this node
            wanted = wanted.model_copy(update={"joining": []})
        new, ours = self._decisions.settle(wanted, self._ear_of)
        lost = [one for view in new for one in view.lost]
        self.is_left_out = self.is_left_out or any(one.is_silent and self._is_ours(one.member) for one in lost)
        if self.is_left_out or not all(self._roster.is_known(member) for member in self._decisions.newest.members):
            self._read_claims()
        if ours:
            self._tell_others("look", ours[-1].number)
        if not self._is_member and any(self._is_ours(member) for view in new for member in view.members):
            self.has_joined = True

    def _may_go_on_with(self, num_nodes: int) -> bool:
        """Whether so many nodes are enough, once ranks have begun to train."""
        is_wanted = self._cluster.silent_seconds is not None and self._folder.find_going(0) is not None
        return is_wanted and num_nodes >= (self._cluster.min_nodes or self._cluster.nodes)

    def _leave_out(self, gone: set[Member]) -> None:
        """Have the others go on without these; but not where a rank has said how the segment ended."""
        if find_outcome(self._store, self._spec.run, self._spec.fence) is not None:
            return
        members = sorted(gone, key=lambda member: member.slot)
        places = [self._roster.place_of(member) for member in members]
        lost = [
            LostMember(member=member, pid=0, signal=0, is_silent=True, node=place.node)
            for member, place in zip(members, places, strict=True)
        ]
        self._settle(Wanted(lost=lost, since=_now()))
        for place in {(place.node, place.claim): place for place in places}.values():  # for who supervises the job
            self._write_end("lost", place)
            no_ranks = NodeStatuses(ranks=[])
            write_node_statuses(self._store, self._spec.run, self._spec.fence, place.node, no_ranks)

    def _write_end(self, how: Literal["lost", "joined"], place: NodePlace) -> None:
        end = NodeEnd(job=self._job, node=place.node, claim=place.claim, how=how)
        write_node_end(self._store, self._spec.run, self._spec.fence, end)

    def _way_to_leave(self) -> Way:
        return self._leaving.decide(self._me.index, self._nodes_of(self._decisions.newest))

    @property
    def _has_members(self) -> bool:
        """Whether ranks of this node are in the newest view."""
        return any(self._is_ours(member) for member in self._decisions.newest.members)

    def _leave_alone(self) -> None:
        """Have the others go on without the ranks of this node, which leave at the next boundary."""
        own = [member for member in self._decisions.newest.members if self._is_ours(member)]
        lost = [LostMember(member=member, pid=0, signal=0, is_leaving=True, node=self._me.node) for member in own]
        self._settle(Wanted(lost=lost, since=_now()))
        if not self._has_members:
            print("Asked to stop: the others train on without this node.", flush=True)

    def _nodes_of(self, view: View) -> set[int]:
        return {self._roster.index_of(member) for member in view.members}

    def _ear_of(self, member: Member) -> Address:
        return self._roster.place_of(member).ear

    def _is_ours(self, member: Member) -> bool:
        """Whether this process has begun it, and no earlier one of the node."""
        return self._roster.index_of(member) == self._me.index and claim_of(member) == self._me.claim

    def _has_place(self, node: int, claim: int) -> bool:
        return node < len(self._roster.places) and self._roster.places[node].claim == claim

    def _tell_others(self, asks: Asks, view: int = 0) -> None:
        self._tell([ear for index, ear in enumerate(self._roster.ears) if index != self._me.index], asks, view)

    def _tell(self, ears: Sequence[Address], asks: Asks, view: int) -> None:
        """In threads: one that does not answer delays no other one."""
        question = Question(
            segment=name_segment(self._spec), asks=asks, view=view, node=self._me.index, claim=self._me.claim
        )
        tellers = ThreadPoolExecutor(NUM_TELLERS, "tell")
        for ear in ears:
            tellers.submit(partial(_tell, ear, question))
        tellers.shutdown(wait=asks == "left")

    def _note_joined(self) -> None:
        """For who supervises the job, and may have read that an earlier process of this node is lost."""
        if self.has_joined and not self._is_joining_known:
            self._write_end("joined", self._me)
            self._is_joining_known = True

    def _note_going(self) -> None:
        """That training goes on in a view the store learns from the node of its first member."""
        for number in range(1, self._decisions.newest.number + 1):
            view = self._folder.find(number) if number not in self._known_going else None
            going = self._folder.find_going(number)
            if view is not None and going is not None and self._is_ours(view.members[0]):
                self._stored.say_going(number, going)
                self._known_going.add(number)

    def _note_out(self) -> None:
        """Which ranks are not begun again each node knows of its own."""
        for slot in set(self._folder.find_out()) - self._known_out:
            self._stored.say_out(slot)
            self._known_out.add(slot)

    def _look_for_the_end(self) -> None:
        """Whose ranks were to join others, or look for them, learns here alone that those have left."""
        if (self._is_settled and not self._is_looking) or time.monotonic() < self._look_for_end_at:
            return
        self._look_for_end_at = time.monotonic() + MISSING_SECONDS
        self.is_left_alone = find_outcome(self._store, self._spec.run, self._spec.fence) is not None


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _tell(ear: Address, question: Question) -> None:
    with suppress(OSError):  # it is gone, or it looks by itself
        ask(ear, question)
