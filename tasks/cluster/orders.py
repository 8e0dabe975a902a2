"""Orders to the nodes of a job, and what they leave for their supervisor: all of it in the store.

Invariant: nodes and supervisor share nothing but the store. What is rewritten is one small object each, so a job of
days leaves as many objects as one of minutes.
"""

from contextlib import suppress
from pathlib import PurePosixPath
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.store import Store
from storage.runs.segments import segment_path
from tasks.configuration.cluster import ClusterConfig
from tasks.configuration.notices import NoticesConfig
from training.agents.ends import RankEnds
from training.configuration import ConfigModel
from training.metrics.reporter import Report
from training.rank_status import RankStatus
from training.spec import SegmentSpec

RANK_STATUS_FOLDER, RANK_END_FOLDER, END_FOLDER = "rank_statuses", "rank_ends", "ends"
REPORT_FOLDER = "reports"
Kept = TypeVar("Kept", bound=BaseModel)


class JobOrder(ConfigModel):
    """A segment, or an evaluation, for the nodes of a cluster."""

    segment: SegmentSpec
    cluster: ClusterConfig
    grace_seconds: float
    private_folder: str | None = Field(None, description="Of its scratch, where that is below the system's.")
    notices: NoticesConfig = Field(NoticesConfig(), description="Whose notices each node looks for.")
    keep_seconds: float = Field(
        0, description="For so long nodes whose segment was lost wait for the run's next one in their job."
    )

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on when a node of it is lost: for the next segment, or since the others train on."""
        return self.keep_seconds > 0 or (self.segment.work == "train" and self.cluster.silent_seconds is not None)


class FirstNode(BaseModel):
    """The node that came first, at which the others meet. `incarnation` changes when a job is queued again."""

    incarnation: str
    node: str
    addresses: list[str]
    port: int


class NumberedReport(BaseModel):
    """Numbers go up by one with each report, so that a reader knows which it has seen."""

    number: int
    report: Report


class LiveReports(BaseModel):
    """What a node's rank reported last as the first one: all that people or promotions wait for, and the newest of the
    others. After it another node's may be the first.
    """

    reports: list[NumberedReport]


class NodeStatuses(BaseModel):
    """Where the ranks of a node are."""

    ranks: list[RankStatus]


class NodeEnd(BaseModel):
    """How a node's part in a segment ended, where its job may go on with the next one.

    Each process of a node has its own: what others say of one that was lost says nothing of the next one.
    """

    job: str = Field(description="Its name.")
    node: str
    claim: int = Field(0, description="With which the node came to the segment; 0: it met the others as it began.")
    how: Literal["idle", "left", "failed", "lost", "joined"] = Field(
        description="idle: its ranks are gone, and it waits for the run's next segment. left: as the segment's end "
        "asked. failed: it had an error of its own. lost: nothing is heard of it; others wrote that. joined: it came "
        "to the segment under way, such as after it was lost, and is at work."
    )


def write_order(store: Store, order: JobOrder) -> None:
    store.write(_key(order.segment.run, order.segment.fence, "job.json"), order.model_dump_json().encode())


def write_order_once(store: Store, order: JobOrder) -> None:
    """For nodes that wait for it: what they may have read by now stays."""
    with suppress(ObjectExistsError):
        store.write_if_absent(
            _key(order.segment.run, order.segment.fence, "job.json"), order.model_dump_json().encode()
        )


def load_order(store: Store, run: str, fence: int) -> JobOrder:
    """Raises `ObjectMissingError`."""
    return JobOrder.model_validate_json(store.read(_key(run, fence, "job.json")))


def elect_first_node(store: Store, run: str, fence: int, candidate: FirstNode) -> FirstNode:
    """The node that came first to this job: `candidate`, unless there is one."""
    key = _key(run, fence, "first_node.json")
    try:
        store.write_if_absent(key, candidate.model_dump_json().encode())
    except ObjectExistsError:
        return FirstNode.model_validate_json(store.read(key))
    return candidate


def write_reports(store: Store, run: str, fence: int, node: str, live: LiveReports) -> None:
    store.write(_key(run, fence, f"{REPORT_FOLDER}/{node}.json"), live.model_dump_json().encode())


def read_reports(store: Store, run: str, fence: int) -> dict[str, LiveReports]:
    """By the nodes whose ranks have reported; without those that cannot be read."""
    return _read_all(store, run, fence, REPORT_FOLDER, LiveReports)


def find_reports(store: Store, run: str, fence: int, node: str) -> LiveReports:
    """Of one node; none where it has passed none on, or they cannot be read."""
    found = _find(store, _key(run, fence, f"{REPORT_FOLDER}/{node}.json"), LiveReports)
    return found or LiveReports(reports=[])


def write_node_statuses(store: Store, run: str, fence: int, node: str, rank_statuses: NodeStatuses) -> None:
    store.write(_key(run, fence, f"{RANK_STATUS_FOLDER}/{node}.json"), rank_statuses.model_dump_json().encode())


def read_node_statuses(store: Store, run: str, fence: int) -> list[RankStatus]:
    """The statuses of all ranks whose node has passed any on, without those that cannot be read."""
    found = _read_all(store, run, fence, RANK_STATUS_FOLDER, NodeStatuses)
    return [rank_status for statuses in found.values() for rank_status in statuses.ranks]


def write_rank_ends(store: Store, run: str, fence: int, node: str, ends: RankEnds) -> None:
    store.write(_key(run, fence, f"{RANK_END_FOLDER}/{node}.json"), ends.model_dump_json().encode())


def read_rank_ends(store: Store, run: str, fence: int) -> dict[str, RankEnds]:
    """How ranks ended, by their nodes; without nodes that have passed none on, or whose ends cannot be read."""
    return _read_all(store, run, fence, RANK_END_FOLDER, RankEnds)


def write_node_end(store: Store, run: str, fence: int, end: NodeEnd) -> None:
    """In place of what was written by the same claim; that it joined is put only where nothing was."""
    put = store.write_if_absent if end.how == "joined" else store.write
    with suppress(ObjectExistsError):  # it was lost again before it could say that it had joined
        put(_key(run, fence, f"{END_FOLDER}/{end.node}~{end.claim}.json"), end.model_dump_json().encode())


def read_node_ends(store: Store, run: str, fence: int) -> list[NodeEnd]:
    """Of each node that has any the end by its newest claim, sorted by the nodes' names."""
    keys = store.list_keys(_key(run, fence, f"{END_FOLDER}/"))
    ends = sorted((NodeEnd.model_validate_json(store.read(key)) for key in keys), key=lambda end: end.claim)
    return sorted({end.node: end for end in ends}.values(), key=lambda end: end.node)


def _read_all(store: Store, run: str, fence: int, folder: str, kind: type[Kept]) -> dict[str, Kept]:
    """What nodes keep there, by their names; without what cannot be read."""
    keys = sorted(store.list_keys(_key(run, fence, f"{folder}/")))
    found = {PurePosixPath(key).stem: _find(store, key, kind) for key in keys}
    return {node: kept for node, kept in found.items() if kept is not None}


def _find(store: Store, key: str, kind: type[Kept]) -> Kept | None:
    try:
        return kind.model_validate_json(store.read(key))
    except (ObjectMissingError, ValidationError):
        return None


def _key(run: str, fence: int, name: str) -> str:
    return f"{segment_path(run, fence)}/{name}"
