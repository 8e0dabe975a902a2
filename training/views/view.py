"""What a view is, what is wanted of the next one, and how the next one follows from both. Loads no torch.

Invariant: the next view is a function of the newest one and of what is wanted. Who was in a view once, and is in a
newer one no more, never comes back: another process, with another life, comes in its place.
"""

from collections.abc import Callable, Collection

from pydantic import BaseModel, ConfigDict, Field

from training.meeting import Address


class Member(BaseModel):
    """A rank's process: the number that it was begun with, and which process of this number it is, from 0 on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slot: int
    life: int


class LostMember(BaseModel):
    """A member that a view does without: a signal ended it, or it leaves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    member: Member
    pid: int
    signal: int
    is_worn: bool = Field(False, description="Its agent ended it, to have another one in its place.")
    is_silent: bool = Field(False, description="Nobody saw it end: its whole node is lost, or cut off.")
    is_leaving: bool = Field(False, description="It lives: its node was asked to leave, and the others need it not.")
    node: str = Field("", description="The name of the node that is lost, or leaves.")


class View(BaseModel):
    """The ranks that train together; a rank's number among them is its place in `members`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    members: list[Member] = Field(description="By their slots.")
    lost: list[LostMember] = Field([], description="Since the view before.")
    joined: list[Member] = Field([], description="Since the view before.")
    node: str = Field("", description="The name of the node that came with those that joined.")
    committed_at: float = Field(
        description="In seconds since boot of the machine that reads it: of a view that lost members, when that was "
        "seen."
    )
    meeting: Address | None = Field(None, description="Of the first member's node, which knows where members meet.")


class Going(BaseModel):
    """That training goes on in a view: at which step, and so many seconds after the change began that led to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    seconds: float


class Wanted(BaseModel):
    """What an agent wants of the next view. Members that are not in the newest one are lost, or withdrawn, already."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lost: list[LostMember] = []
    joining: list[Member] = []
    withdrawn: list[Member] = []
    node: str = Field("", description="The name of the node that comes with those that join.")
    since: float = Field(0.0, description="When the first of it came up, in seconds since boot.")


def first_view(num_ranks: int, began_at: float) -> View:
    """The one in which all ranks begin."""
    return View(number=0, members=[Member(slot=slot, life=0) for slot in range(num_ranks)], committed_at=began_at)


def next_view(
    newest: View, were: Collection[Member], wanted: Wanted, meeting_of: Callable[[Member], Address | None]
) -> View | None:
    """The view after the newest one; None if nothing of what is wanted is missing there, or nobody would be left.

    `were` are all that have been in a view so far.
    """
    lost = [one for one in wanted.lost if one.member in newest.members]
    leaving = {*wanted.withdrawn, *(one.member for one in wanted.lost)}
    left = [member for member in newest.members if member not in leaving]
    joined = [member for member in wanted.joining if member not in were and member not in leaving]
    if not left or (left == newest.members and not joined):
        return None
    members = sorted([*left, *joined], key=lambda member: member.slot)
    return View(
        number=newest.number + 1,
        members=members,
        lost=lost,
        joined=joined,
        node=wanted.node if joined else "",
        committed_at=wanted.since,
        meeting=meeting_of(members[0]),
    )
