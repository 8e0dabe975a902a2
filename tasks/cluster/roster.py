"""Which nodes a segment has, by their numbers: those that met when it began, and those that came later.

In the store, below the segment: `nodes.json`, the nodes that met, and `claims/NNNNNN.json`, one for each node that came
later, with the number that it takes. Both are put if absent. Invariant: a claim is made after all claims before it were
read, and of one number the newest counts. So a name has one number at most, and an older process of it is over when
there is a newer claim.
"""

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import ObjectExistsError, ObjectMissingError, StoreError
from storage.objects.store import Store
from storage.runs.segments import segment_path
from training.meeting import Address
from training.views.view import Member, View

NODES_NAME, CLAIM_FOLDER = "nodes.json", "claims"
# Processes of ranks that one node begins one after another: as many as nobody begins.
LIVES_OF_A_CLAIM = 1_000_000


class NodePlace(BaseModel):
    """A node's number among those of the segment, where it answers, and its claim; 0 is of those that met."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: str
    ear: Address
    index: int
    claim: int = 0

    @property
    def first_life(self) -> int:
        """Of the processes of its ranks: so none of them is taken for one of an earlier claim."""
        return self.claim * LIVES_OF_A_CLAIM


class NodesThatMet(BaseModel):
    """In the order of their numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: list[NodePlace]


class Roster:
    """The nodes of one segment with so many ranks each. `places` are those that count, and `ears` theirs."""

    def __init__(self, store: Store, run: str, fence: int, num_ranks: int) -> None:
        self._store, self._folder, self._num_ranks = store, segment_path(run, fence), num_ranks
        self.places: list[NodePlace] = []
        self.ears: list[Address] = []
        self._met: list[NodePlace] = []
        self._claims: dict[int, NodePlace] = {}

    @property
    def num_met(self) -> int:
        """How many nodes there were when the segment began."""
        return len(self._met)

    def begin(self, nodes: Mapping[str, Address]) -> None:
        """With these, which met, in the order of their numbers."""
        self._met = [NodePlace(node=node, ear=ear, index=index) for index, (node, ear) in enumerate(nodes.items())]
        self.places, self.ears = list(self._met), list(nodes.values())

    def put(self) -> None:
        """Have those that come later find who met. Raises `StoreError`."""
        self._put(NODES_NAME, NodesThatMet(nodes=self._met))

    def find(self) -> bool:
        """Read who met; False if nobody can come later, or not yet. Raises `StoreError`."""
        try:
            found = NodesThatMet.model_validate_json(self._store.read(f"{self._folder}/{NODES_NAME}"))
        except ObjectMissingError:
            return False
        self.begin({place.node: place.ear for place in found.nodes})
        return True

    def read(self) -> list[NodePlace]:
        """Take in the claims since the last call, oldest first. Raises `StoreError`."""
        new = []
        while (place := self._find_claim(len(self._claims) + 1)) is not None:
            self._take(place)
            new.append(place)
        return new

    def claim(
        self, node: str, ear: Address, newest: Callable[[], View], answers: Callable[[Address], bool]
    ) -> NodePlace:
        """Take a number for this node: its own, or that of one that is lost, or else a new one. Raises `StoreError`.

        Lost is a node of which no rank is in the `newest` view, and nothing `answers` at its ear.
        """
        while True:
            self.read()
            index = self._choose(node, newest(), answers)
            place = NodePlace(node=node, ear=ear, index=index, claim=len(self._claims) + 1)
            if self._put(_name_of_claim(place.claim), place):
                self._take(place)
                return place

    def index_of(self, member: Member) -> int:
        """Of the node on which this rank is, or was."""
        return member.slot // self._num_ranks

    def place_of(self, member: Member) -> NodePlace:
        """The node that began this process. Raises `StoreError`."""
        claim = claim_of(member)
        if claim > len(self._claims):
            self.read()
        if claim > len(self._claims):
            raise StoreError(f"{self._store.address}/{self._folder}/{_name_of_claim(claim)} is missing.")
        return self._claims[claim] if claim else self._met[self.index_of(member)]

    def is_replaced(self, member: Member) -> bool:
        """Whether another process of a node has the number of the one that began this rank."""
        index = self.index_of(member)
        return index < len(self.places) and self.places[index].claim > claim_of(member)

    def is_known(self, member: Member) -> bool:
        """Whether the claim of its node was read."""
        return claim_of(member) <= len(self._claims)

    def all_ears(self) -> list[Address]:
        """Also those of nodes whose number another one has."""
        return [place.ear for place in (*self._met, *self._claims.values())]

    def _choose(self, node: str, newest: View, answers: Callable[[Address], bool]) -> int:
        own = next((place.index for place in self.places if place.node == node), None)
        if own is not None:
            return own
        taken = {self.index_of(member) for member in newest.members}
        left = (place.index for place in self.places if place.index not in taken and not answers(place.ear))
        return next(left, len(self.places))

    def _take(self, place: NodePlace) -> None:
        self._claims[place.claim] = place
        if place.index == len(self.places):
            self.places.append(place)
            self.ears.append(place.ear)
        else:
            self.places[place.index], self.ears[place.index] = place, place.ear

    def _find_claim(self, number: int) -> NodePlace | None:
        key = f"{self._folder}/{_name_of_claim(number)}"
        try:
            place = NodePlace.model_validate_json(self._store.read(key))
        except ObjectMissingError:
            return None
        except ValidationError as error:
            raise StoreError(f"{self._store.address}/{key} is no claim of a node: {error}") from error
        if place.claim != number or not 0 <= place.index <= len(self.places):
            raise StoreError(f"{self._store.address}/{key} is no claim to a number that a node could have: {place}")
        return place

    def _put(self, name: str, put: BaseModel) -> bool:
        try:
            self._store.write_if_absent(f"{self._folder}/{name}", put.model_dump_json().encode())
        except ObjectExistsError:
            return False
        return True


def claim_of(member: Member) -> int:
    """The number of the claim with which its node came; 0 is of the nodes that met."""
    return member.life // LIVES_OF_A_CLAIM


def _name_of_claim(number: int) -> str:
    return f"{CLAIM_FOLDER}/{number:06d}.json"
