"""The nodes of a job, as far as they work for one segment: which are lost, and which wait for the next one.

Invariant: that a job is done with a segment stands in the store, so that a later look sees the same.
"""

import time

from storage.objects.store import Store
from tasks.cluster.orders import NodeEnd, read_node_ends, write_node_end
from tasks.cluster.slurm.commands import find_lost_nodes, list_names

# Beyond the first node's bad end, for the others to come to theirs: their ranks lose a connection, and report it.
FOLLOWING_SECONDS = 10.0
# After all were asked to kill their ranks, for what they relay last.
ANSWERING_SECONDS = 20.0


class SegmentNodes:
    """Of the job `name`; `nodes` are those that take part, None for all that the job got."""

    def __init__(self, store: Store, run: str, fence: int, name: str, nodes: list[str] | None) -> None:
        self._store, self._run, self._fence, self._name = store, run, fence, name
        self._nodes = nodes
        self._is_part_of_job = nodes is not None
        self._held, self._listed = "", frozenset[str]()
        self._ends: dict[str, NodeEnd] = {}
        self._bad_since: float | None = None
        self._killed_at: float | None = None

    def look(self, held: str) -> None:
        """Take in what they wrote, and which nodes the job holds, as Slurm writes several. Raises `StoreError`.

        Slurm takes nodes that are down out of a job that goes on without them.
        """
        if held != self._held:
            self._held, self._listed = held, frozenset(list_names(held))
        self._nodes = sorted(self._listed) if self._nodes is None else self._nodes
        self._ends = {end.node: end for end in read_node_ends(self._store, self._run, self._fence)}
        if self._bad_since is None and (self._find_gone() or self._names("idle", "failed")):
            self._bad_since = time.monotonic()
        if self._bad_since is not None and not self._missing:
            self._write_lost(self._find_gone())
        elif self._has_waited(self._killed_at, ANSWERING_SECONDS):
            self._write_lost(self._missing)

    def find_idle_nodes(self, held: str) -> list[str]:
        """Those that wait for the next segment. Raises `StoreError`."""
        self.look(held)
        return [name for name in self._names("idle") if name in self._listed]

    def must_be_killed(self, is_wanted: bool) -> bool:
        """Whether their ranks are to be killed: it `is_wanted`, or some nodes are done and others do not notice."""
        if self._killed_at is not None or not self._missing:
            return False
        return is_wanted or bool(self._find_gone()) or self._has_waited(self._bad_since, FOLLOWING_SECONDS)

    def note_killed(self) -> None:
        """Record that all nodes were just asked to kill their ranks."""
        self._killed_at = self._killed_at or time.monotonic()

    @property
    def are_idle(self) -> bool:
        """Whether all that are left wait for the next segment, or have left."""
        return bool(self._names("idle")) and not self._missing

    @property
    def have_left(self) -> bool:
        """Whether all have, in a job that Slurm does not end by itself, since it waits for those that are lost.

        Also for one that was only cut off, and has left since: Slurm took it out of the job, and does not hear of it.
        """
        is_short = (
            self._is_part_of_job or bool(self._names("lost", "joined")) or not self._listed.issuperset(self._ends)
        )
        return is_short and bool(self._ends) and not self._missing and not self._names("idle")

    def describe_lost(self) -> str | None:
        """Those of which nothing is heard, with Slurm's reason where it has one."""
        lost = self._names("lost")
        if not lost:
            return None
        reasons = find_lost_nodes(",".join(lost))
        return f"Slurm reports NodeDown: {', '.join(reasons)}" if reasons else f"No answer came from {', '.join(lost)}"

    @property
    def _missing(self) -> list[str]:
        """Those that are there, and have not come to their end."""
        ended = {name for name, end in self._ends.items() if end.how != "joined"}
        return [name for name in self._nodes or [] if name in self._listed and name not in ended]

    def _find_gone(self) -> list[str]:
        """Those that Slurm has taken out of the job, and that the others did not go on without."""
        return [name for name in self._nodes or [] if name not in self._listed and name not in self._ends]

    def _names(self, *how: str) -> list[str]:
        return [name for name, end in self._ends.items() if end.how in how]

    def _write_lost(self, names: list[str]) -> None:
        for name in names:
            joined = self._ends.get(name)
            if joined is None or joined.how == "joined":
                claim = 0 if joined is None else joined.claim
                self._ends[name] = NodeEnd(job=self._name, node=name, claim=claim, how="lost")
                write_node_end(self._store, self._run, self._fence, self._ends[name])

    def _has_waited(self, since: float | None, seconds: float) -> bool:
        return since is not None and time.monotonic() - since >= seconds
