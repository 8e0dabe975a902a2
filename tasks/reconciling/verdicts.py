"""What follows for a run from the looks at it: that its holder is dead, that nobody goes on, that a person is needed.

Invariant: a pure function of the looks in their order, with the clock of who looked. A look that the store did not
answer begins everything anew.
"""

import time
from dataclasses import dataclass

from storage.objects.store import Store
from storage.runs.run_state import Lease
from tasks.reconciling.looks import SeenRun
from tasks.reconciling.pages import Kind, Page
from tasks.reconciling.silence import Look, Silence, follow
from tasks.reporting.needs import UNATTENDED_SECONDS, describe_need
from tasks.reporting.status import describe_status, find_owner
from tasks.text import duration, how_far

# A flow run that was begun for a dead run has loaded everything, and prepared, by then.
STUCK_SECONDS = 600.0
OF_HOLDER: tuple[Kind, ...] = ("run-dead", "run-stuck")


@dataclass(frozen=True)
class Watched:
    """A run after some looks: for how long its holder said nothing, and for how long its manifest stood still.

    `is_heard`: the holder gave a sign of life between two of them, and does not count as dead since.
    """

    holder: Silence | None
    manifest: Silence | None
    is_heard: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether a process holds the run, and that counts as dead."""
        return self.holder is not None and self.holder.is_long

    @property
    def is_stuck(self) -> bool:
        """Whether nobody has taken it from a dead holder for long."""
        return self.holder is not None and self.holder.seconds >= STUCK_SECONDS

    @property
    def rests_for(self) -> float:
        """Seconds for which the manifest is known to stand still; less than it does, where looks began later."""
        return 0.0 if self.manifest is None else self.manifest.seconds


def watch(before: Watched | None, seen: SeenRun, began: float, ended: float) -> Watched:
    """The run after one more look, which the store answered."""
    last = Watched(None, None) if before is None else before
    holder = follow(last.holder, Look(began, ended, seen.sign))
    manifest = follow(last.manifest, Look(began, ended, str(seen.head.generation)))
    has_changed = holder is not None and last.holder is not None and holder.sign != last.holder.sign
    is_dead = holder is not None and holder.is_long
    return Watched(holder, manifest, not is_dead and (has_changed or last.is_heard))


def pages_of_holder(seen: SeenRun, watched: Watched, done: str, is_taken_up: bool) -> dict[str, Page]:
    """Those of a run whose holder is dead, by their keys.

    `done` says in a sentence what was done about it; `is_taken_up`: a flow run of it is under way.
    """
    if seen.lease is None or watched.holder is None or not watched.is_dead:
        return {}
    who, silent = _name_holder(seen.lease), duration(watched.holder.seconds)
    killed = f"{who} gave no sign of life for {silent}: it or its machine was killed, or stands still. {done}"
    pages = [_page("run-dead", seen, killed)]
    if watched.is_stuck and not is_taken_up:
        stuck = f"{who} gave no sign of life for {silent}, and nobody has gone on with the run. {done}"
        pages.append(_page("run-stuck", seen, stuck))
    return {key_of_run(page.kind, seen.run, seen.fence): page for page in pages}


def pages_of_need(store: Store, seen: SeenRun, watched: Watched) -> dict[str, Page]:
    """That a run which nobody holds needs a person, by its key. How long it rests is what was watched."""
    if seen.lease is not None or seen.head.state.is_complete:
        return {}
    rests_since = time.time() - watched.rests_for  # so that no clock of another machine has a part in it
    need = describe_need(describe_status(store, seen.head) | {"last_sign_of_life_at": rests_since})
    if need is None:
        return {}
    return {key_of_run("run-needs-person", seen.run, seen.step): _page("run-needs-person", seen, need)}


def page_of_unreadable(address: str, run: str, why: str) -> tuple[str, Page]:
    """That a run cannot be read though the store answers, and its key."""
    return f"run-needs-person/{run}/unreadable", Page(kind="run-needs-person", about=run, address=address, what=why)


def is_undecided(seen: SeenRun, watched: Watched, key: str) -> bool:
    """Whether a page that was sent stays as it is, though what it says was not found in the last look.

    Of a dead holder: as long as it was not heard, also by who has just begun to look. That a person is needed: as long
    as the run is tried again at the same step, which may fail in the same way, or has not rested for long enough.
    """
    if seen.lease is not None and key in (key_of_run(kind, seen.run, seen.fence) for kind in OF_HOLDER):
        return not watched.is_heard
    if key == key_of_run("run-needs-person", seen.run, seen.step) and not seen.head.state.is_complete:
        return seen.lease is not None or watched.rests_for <= UNATTENDED_SECONDS
    return False


def key_of_run(kind: Kind, run: str, number: int) -> str:
    """The key of a page about a run: of its holder by the fence, of its need by the step."""
    return f"{kind}/{run}/{number:012d}"


def _page(kind: Kind, seen: SeenRun, what: str) -> Page:
    host = None if seen.lease is None else seen.lease.holder.host
    step = seen.step if seen.live_step is None else max(seen.live_step, seen.step)
    state = seen.head.state
    return Page(
        kind=kind, about=seen.run, address=seen.address, what=what, owner=find_owner(state), host=host,
        step=how_far(step, state),
    )  # fmt: skip


def _name_holder(lease: Lease) -> str:
    return f"Process {lease.holder.pid} on {lease.holder.host}, which holds the run,"
