"""Which nodes of a segment answer, and which count as lost.

Invariant: whoever answers is not lost, however slow its ranks are. One whose port is closed has ended: its kernel says
so. One that says nothing is lost after a while, and after a longer one where those that answer are not most of the
nodes, so that of a network in two parts the larger one decides first.
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from training.meeting import Address
from training.views.ear import Question, ask

# Times as long as where most of the nodes answer.
WHERE_FEW_ANSWER = 5
NUM_ASKED_AT_ONCE = 16


class RollCall:
    """What is known of the nodes that answer at `ears`, by their numbers; `silent_seconds` as in `[cluster]`."""

    def __init__(
        self,
        segment: str,
        ears: Sequence[Address],
        silent_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._question = Question(segment=segment, asks="here")
        self._ears, self._silent_seconds, self._clock = ears, silent_seconds, clock
        self._silent_since: dict[int, float] = {}
        self._ended: set[int] = set()
        self._left: set[int] = set()

    def ask(self, nodes: Collection[int]) -> None:
        """Ask these, all at once; returns when the last one has answered, or a second is over."""
        with ThreadPoolExecutor(NUM_ASKED_AT_ONCE, "roll call") as askers:
            list(askers.map(partial(self._ask, self._clock()), nodes))

    def note_left(self, node: int) -> None:
        """This one has left in good order: it answers no more, and is not lost."""
        self._left.add(node)

    def forget(self, node: int) -> None:
        """Another one has this number from now on."""
        self._silent_since.pop(node, None)
        self._ended.discard(node)
        self._left.discard(node)

    def answers(self, node: int) -> bool:
        """Whether it did when it was asked last."""
        return node in self._left or (node not in self._silent_since and node not in self._ended)

    def find_lost(self, nodes: Collection[int]) -> set[int]:
        """Of all `nodes` of a view, this one among them, those that are lost."""
        nodes = set(nodes) - self._left
        living = {node for node in nodes if node not in self._ended}
        since = self._silent_since.copy()  # another thread may be asking
        silent = {node: self._clock() - since[node] for node in living & since.keys()}
        most_answer = 2 * len(silent) < len(living)
        bound = self._silent_seconds * (1 if most_answer else WHERE_FEW_ANSWER)
        return {node for node in nodes if node in self._ended or silent.get(node, 0.0) >= bound}

    def is_undecided(self, nodes: Collection[int]) -> bool:
        """Whether one of these is silent and not lost yet."""
        lost = self.find_lost(nodes)
        return any(node in self._silent_since for node in nodes if node not in lost and node not in self._left)

    def _ask(self, asked_at: float, node: int) -> None:
        try:
            ask(self._ears[node], self._question)
        except ConnectionRefusedError:
            self._ended.add(node)
        except OSError:
            self._silent_since.setdefault(node, asked_at)
        else:
            self._silent_since.pop(node, None)
            self._ended.discard(node)
