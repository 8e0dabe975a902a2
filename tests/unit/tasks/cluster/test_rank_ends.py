"""Of ranks that failed or were killed the segment's cause tells, by their agent's account."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from storage.errors import StoreError, StoreUnavailableError
from storage.objects.s3.address import S3Address
from storage.objects.s3.errors import explain
from storage.runs.segments import CONNECTION_BROKE, OutcomeRecord
from tasks.cluster.rank_ends import RankEndsAccount, describe_ends_on_nodes, describe_rank_ends
from tasks.recovery.settle import LOST, describe_cause
from training.agents.ends import (
    Fault,
    RankEnd,
    RankEnds,
    RankFailure,
    classify,
    find_failure,
    write_ends,
    write_failure,
)
from training.places import MicrobatchPlace
from training.rank_status import Phase, RankStatus
from training.views.folder import ViewFolder
from training.views.view import Going, LostMember, Member, View

GLOO = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]")


def failed(rank: int, fault: Fault, words: str = "it failed") -> RankEnd:
    return end(rank, exit_code=1, failure=RankFailure(rank=rank, pid=100 + rank, fault=fault, words=words))


def end(rank: int, **how: Any) -> RankEnd:
    return RankEnd(rank=rank, pid=100 + rank, host="here", **how)


def account_of(folder: Path, *ends: RankEnd) -> RankEndsAccount:
    write_ends(folder, RankEnds(ends=list(ends)))
    return describe_rank_ends(folder)


def test_the_rank_that_was_killed_is_named_and_not_the_one_that_failed_since_it_was_gone(tmp_path: Path) -> None:
    account = account_of(tmp_path, failed(1, Fault.LOST_PEER), end(0, signal=9))
    assert account.cause is not None and account.cause == account.kills
    assert account.cause.startswith("Rank 0 (process 100) was killed with SIGKILL: by a person, or by the kernel when")
    assert "Rank 1" not in account.cause


def test_all_that_were_killed_are_named_in_the_order_of_ranks_and_none_that_the_agent_ended(tmp_path: Path) -> None:
    account = account_of(tmp_path, end(1, signal=40), end(0, signal=11), end(2, signal=9, was_killed_by_agent=True))
    assert account.kills is not None
    assert account.kills.startswith("Rank 0 (process 100) was killed with SIGSEGV: it read memory")
    assert account.kills.endswith("Rank 1 (process 101) was killed with signal 40.")


def test_a_death_after_which_the_others_trained_on_is_no_cause_and_one_after_which_they_did_not_is(
    tmp_path: Path,
) -> None:
    views = ViewFolder(tmp_path)
    views.create()
    for number, gone in ((1, 0), (2, 2)):
        lost = [LostMember(member=Member(slot=gone, life=0), pid=100 + gone, signal=9)]
        views.commit(View(number=number, members=[Member(slot=1, life=0)], lost=lost, committed_at=0.0))
    views.say_going(1, Going(step=7, seconds=0.1))
    account = account_of(tmp_path, end(0, signal=9), end(2, signal=9), failed(1, Fault.LOST_PEER))
    assert account.cause is not None and account.cause.startswith("Rank 2 (process 102) was killed with SIGKILL")
    assert "Rank 0" not in account.cause
    assert [(view.step, view.lost, view.causes) for view in account.views] == [(7, [0], ["SIGKILL"])]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"signal": 9, "is_out_of_memory": True}, "was killed with SIGKILL: by the kernel, since the machine, or this"),
        ({"signal": 6}, "was killed with SIGABRT: a library found an error"),
        ({"signal": 7}, "was killed with SIGBUS: the shared memory in /dev/shm"),
        ({"exit_code": 3}, "left with exit code 3 and said no reason"),
    ],
)
def test_what_an_end_usually_means_is_said(how: dict[str, Any], words: str, tmp_path: Path) -> None:
    account = account_of(tmp_path, end(0, **how))
    assert account.cause is not None and account.cause.startswith(f"Rank 0 (process 100) {words}")


def test_a_microbatch_that_ended_several_is_the_cause_and_not_who_was_killed(tmp_path: Path) -> None:
    words = "Microbatch 2 of the step after step 5 ended each rank that computed it."
    write_ends(tmp_path, RankEnds(ends=[end(0, signal=11), failed(1, Fault.LOST_PEER)], deadly=words))
    account = describe_rank_ends(tmp_path)
    assert account.cause == words
    assert describe_cause(_outcome(f"rank 1: {CONNECTION_BROKE}: its process ended"), account) == words
    assert describe_cause(None, account) == f"no outcome recorded. {words}"
    assert describe_cause(_outcome("rank 1: full"), account) == f"rank 1: full. {words}"
    nodes = {"n1": RankEnds(ends=[end(0, signal=11)], deadly=words)}
    assert describe_ends_on_nodes(nodes, []).cause == words


def test_where_a_rank_broke_is_told_and_where_one_was_that_somebody_killed_is_not(tmp_path: Path) -> None:
    place = MicrobatchPlace(step=5, index=2, rows=(7,), began_at=1.0)
    broke = account_of(tmp_path, end(0, signal=11, place=place)).cause
    assert broke is not None and broke.endswith(". It computed microbatch 2 of the step after step 5.")
    killed = account_of(tmp_path, end(0, signal=9, place=place)).cause
    assert killed is not None and "microbatch" not in killed


def test_a_rank_that_fails_says_why_before_others_lose_it(tmp_path: Path) -> None:
    account = account_of(tmp_path, failed(1, Fault.LOST_PEER), failed(0, Fault.DISK_FULL, "OSError: full."))
    assert account == RankEndsAccount(None, "Rank 0 (process 100) found a full disk: OSError: full.")
    broke = _outcome(f"rank 1: {CONNECTION_BROKE}: its process ended")
    assert describe_cause(broke, account) == account.first
    assert describe_cause(None, account) == f"no outcome recorded. {account.first}"
    assert describe_cause(_outcome("rank 0: full"), account) == "rank 0: full"


def test_where_no_agent_lived_to_see_an_end_nothing_is_said(tmp_path: Path) -> None:
    for text in (None, "", '{"ends": [{"rank": 0'):
        if text is not None:
            (tmp_path / "rank-ends.json").write_text(text)
        assert describe_rank_ends(tmp_path) == RankEndsAccount()
    assert account_of(tmp_path, end(0, exit_code=0)) == RankEndsAccount()
    assert describe_cause(None, RankEndsAccount()) == LOST
    assert describe_cause(None, RankEndsAccount(cluster="Node n1 died.")) == f"{LOST}. Node n1 died."


def on(node: str, *ends: RankEnd) -> dict[str, RankEnds]:
    """What the store has of a node."""
    return {node: RankEnds(ends=[end.model_copy(update={"host": node}) for end in ends])}


def at(node: str, rank: int) -> RankStatus:
    return RankStatus(rank=rank, host=node, beat=1, step=5, phase=Phase.OTHERS, seconds=2, microbatches=9, spent={})


def test_of_several_nodes_the_rank_with_the_fault_is_named_with_its_node_and_none_that_lost_it() -> None:
    heard = on("n1", failed(0, Fault.LOST_PEER)) | on("n2", end(3, signal=9), failed(2, Fault.LOST_PEER))
    account = describe_ends_on_nodes(heard, [at("n1", 0), at("n2", 3)])
    assert account.kills is not None and account.cause == account.kills and account.cluster is None
    assert account.kills.startswith("Rank 3 (process 103 on n2) was killed with SIGKILL: ")
    assert "Rank 0" not in account.kills and "Rank 2" not in account.kills
    assert describe_cause(_outcome(f"rank 0: {CONNECTION_BROKE}: its process ended"), account) == account.kills


@pytest.mark.parametrize(
    "follows",
    [failed(0, Fault.OTHER, "RuntimeError: Broken pipe"), end(0, exit_code=1), end(0, signal=6)],
    ids=["an error in other words", "no reason said", "aborted by a library"],
)
def test_of_faults_of_several_nodes_whose_clocks_differ_the_surest_counts_and_then_the_lowest_rank(
    follows: RankEnd,
) -> None:
    sure = on("n2", failed(1, Fault.DISK_FULL, "OSError: full"))
    account = describe_ends_on_nodes(on("n1", follows) | sure, [])
    assert account.first == "Rank 1 (process 101 on n2) found a full disk: OSError: full."
    account = describe_ends_on_nodes(on("n3", failed(2, Fault.STORE_AWAY)) | sure, [])
    assert account.first is not None and account.first.startswith("Rank 1 (process 101 on n2)")


def test_a_node_from_which_nothing_came_is_named_where_others_lost_it() -> None:
    statuses = [at("n1", 0), at("n2", 2), at("n2", 3)]
    heard = on("n1", failed(0, Fault.LOST_PEER))
    account = describe_ends_on_nodes(heard, statuses)
    assert account == RankEndsAccount(cluster="No word came from n2 of how ranks 2, 3 ended.")
    assert describe_cause(None, account) == f"{LOST}. {account.cluster}"
    broke = _outcome(f"rank 0: {CONNECTION_BROKE} (it said so)")
    assert describe_cause(broke, account) == f"rank 0: {CONNECTION_BROKE} (it said so). {account.cluster}"
    assert describe_ends_on_nodes(heard | on("n2", end(2, exit_code=0)), statuses) == RankEndsAccount()
    assert describe_ends_on_nodes({}, statuses) == RankEndsAccount()  # of a release that passed none on


def test_what_the_cluster_says_follows_what_the_agents_saw() -> None:
    account = RankEndsAccount("Rank 3 was killed.", "Rank 3 was killed.", "Slurm reports NodeDown: n1")
    known = "Rank 3 was killed. Slurm reports NodeDown: n1"
    assert describe_cause(None, account) == f"no outcome recorded. {known}"
    assert describe_cause(_outcome(CONNECTION_BROKE), account) == known
    assert describe_cause(_outcome("rank 3: full."), account) == f"rank 3: full. {known}"
    assert describe_cause(_outcome(""), RankEndsAccount()) == ""


def _outcome(cause: str) -> OutcomeRecord:
    return OutcomeRecord(outcome="failed", cause=cause, first_step=0, last_step=0, world_size=2, seconds=1.0, phases={})


BUCKET = S3Address("bucket", "prefix")


def s3_answer(status: int, code: str) -> ClientError:
    metadata: Any = {"HTTPStatusCode": status}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": metadata}, "PutObject")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (StoreUnavailableError("the store does not answer"), Fault.STORE_AWAY),
        (caused(StoreUnavailableError("away"), ConnectionResetError("Connection reset by peer")), Fault.STORE_AWAY),
        (StoreUnavailableError("/mnt/store: Connection refused"), Fault.STORE_AWAY),
        (explain(s3_answer(403, "AccessDenied"), BUCKET, "key", "server"), Fault.REFUSED),
        (explain(s3_answer(403, "403"), BUCKET, "key", "server"), Fault.REFUSED),
        (explain(s3_answer(403, "InvalidAccessKeyId"), BUCKET, "key", "server"), Fault.REFUSED),
        (explain(s3_answer(400, "ExpiredToken"), BUCKET, "key", "server"), Fault.REFUSED),
        (explain(NoCredentialsError(), BUCKET, "key", "server"), Fault.REFUSED),
        (explain(s3_answer(503, "SlowDown"), BUCKET, "key", "server"), Fault.STORE_AWAY),
        (PermissionError(errno.EACCES, "Permission denied"), Fault.REFUSED),
        (OSError(errno.ENOSPC, "No space left on device"), Fault.DISK_FULL),
        (caused(StoreError("not written"), OSError(errno.EDQUOT, "Disk quota exceeded")), Fault.DISK_FULL),
        (MemoryError(), Fault.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), Fault.OUT_OF_MEMORY),
        (GLOO, Fault.LOST_PEER),
        (ValueError("a bug"), Fault.OTHER),
    ],
)  # fmt: skip
def test_a_failure_is_told_by_what_caused_it(error: Exception, fault: Fault, tmp_path: Path) -> None:
    assert classify(error) is fault
    write_failure(tmp_path, 2, error)
    found = find_failure(tmp_path, 2, os.getpid())
    assert found is not None and (found.rank, found.fault) == (2, fault)
    assert find_failure(tmp_path, 1, os.getpid()) is None
    assert find_failure(tmp_path, 2, os.getppid()) is None  # an earlier process of this rank said it
