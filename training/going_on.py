"""How a rank goes on when the ranks are others than before: one of them died, or one more is ready.

Invariant: it goes on from the state that all of them have at one step boundary, or raises what it met, and the segment
ends as it would without views. A rank of a group that is left waits for nobody there.
"""

from training.handover import take_over
from training.parts import Segment
from training.views.lost_peer import LostPeerError, is_lost_peer
from training.views.membership import CannotGoOnError


def go_on_without(segment: Segment, error: RuntimeError) -> None:
    """Go over to the next view, in which those are that are left. Raises `error` where there is none, or it says else.

    Who dies meanwhile is left out by a newer view.
    """
    if not (segment.membership.can_change and is_lost_peer(error)):
        raise error
    lost: RuntimeError | None = error
    while lost is not None:
        segment.membership.leave()
        segment.trainer.abandon_step()
        lost = _enter_next(segment, error)


def go_over(segment: Segment) -> None:
    """Leave the present view together with all its members, at a step boundary, for the newer one that they know of.

    A rank that leaves with its node is in no view after that.
    """
    error = LostPeerError("A newer view of the ranks was committed, and it did not come about.")
    if (lost := _enter_next(segment, error)) is not None:
        go_on_without(segment, lost)


def join(segment: Segment) -> None:
    """Be taken into a view for the first time, and take over the state of those who train."""
    segment.membership.say_ready()
    error = LostPeerError("This rank was begun to join those that train, and was taken into no view.")
    if (lost := _enter_next(segment, error, longest_seconds=None)) is not None:
        go_on_without(segment, lost)


def _enter_next(segment: Segment, error: RuntimeError, **limit: None) -> RuntimeError | None:
    """None if all members have one state now; else what this rank met when one was lost again. Raises `error`."""
    try:
        if segment.membership.enter_next(**limit) is None:
            if segment.membership.is_leaving:
                return None
            raise error
        take_over(segment)
    except CannotGoOnError as reason:
        print(f"{reason} The segment ends.", flush=True)
        raise error from reason
    except RuntimeError as lost:
        if lost is error or not is_lost_peer(lost):
            raise
        return lost
    segment.membership.settle()
    words = segment.membership.note_going(segment.state.step)
    if words is not None:
        segment.reporter.noted(words)
    return None
