"""How a view is decided: whoever wants another one puts it, and the first one of a number is the one.

The place where views are put is a folder for the ranks of one machine, and the run's store for those of several.
Invariant: a view is put only after the one before it was read, so it is a change of that one and of no other; who finds
that another process was quicker reads that one's view and goes on from there.
"""

from collections.abc import Callable
from typing import Protocol

from training.meeting import Address
from training.views.view import Member, View, Wanted, next_view


class Place(Protocol):
    """Where views are put."""

    def find(self, number: int) -> View | None:
        """The view of this number; None if it was not committed, as far as is known."""

    def commit(self, view: View) -> bool:
        """Put the view if there is none of its number; whether it was ours."""


def meets_in_a_file(_first: Member) -> None:
    """Where the members of one machine meet: in the folder of views."""


class Decisions:
    """The views of a segment, as far as this process has read them."""

    def __init__(self, place: Place, first: View) -> None:
        self.newest = first
        self._place = place
        self._were = set(first.members)

    def has_been_in(self, member: Member) -> bool:
        """Whether it is, or was, a member of a view."""
        return member in self._were

    def read(self) -> list[View]:
        """Those that were committed since the last call, oldest first. Raises what the place raises."""
        new = []
        while (view := self._place.find(self.newest.number + 1)) is not None:
            self.newest = view
            self._were |= set(view.members)
            new.append(view)
        return new

    def settle(
        self, wanted: Wanted, meeting_of: Callable[[Member], Address | None] = meets_in_a_file
    ) -> tuple[list[View], list[View]]:
        """Have what is wanted committed, if it is not: those that were read, and those of them that are ours.

        Raises what the place raises; then it may have been committed, and is read the next time.
        """
        new, ours = self.read(), []
        while (view := next_view(self.newest, self._were, wanted, meeting_of)) is not None:
            is_ours = self._place.commit(view)
            read = self.read()
            if not read:
                break  # it cannot be read just now
            new += read
            ours += [view] if is_ours else []
        return new, ours
