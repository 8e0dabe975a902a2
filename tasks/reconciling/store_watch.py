"""The watch over one store: a look every few seconds, what it means, and what follows.

Invariant: while the store does not answer nothing is set for its runs, and their counts begin anew. Before each act the
store is asked whether this process is still the one that acts. What was not done since a server was away is done at a
later look. An error of a run is that run's alone, and none ends the watch.
"""

import time
from collections.abc import Callable, Mapping

from storage.errors import HoldfastError
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.segment_notes import find_flow_runs, find_stop
from tasks.console.announce import announce
from tasks.reconciling.completions import Completions
from tasks.reconciling.consequences import TAKEN_UP, Consequences, ServerAwayError
from tasks.reconciling.lone_flow_runs import LoneFlowRuns
from tasks.reconciling.looks import ERRORS_OF_A_RUN, SeenRun, StoreLook, StoreReader, is_refusal
from tasks.reconciling.noted_runs import NotedRuns
from tasks.reconciling.open_pages import OpenPages
from tasks.reconciling.outbox import Outbox
from tasks.reconciling.pages import Kind, Page, page_of_place
from tasks.reconciling.said import Said
from tasks.reconciling.silence import SILENT_SECONDS, Look, Silence, follow
from tasks.reconciling.terms import Leadership
from tasks.reconciling.verdicts import (
    Watched,
    is_undecided,
    page_of_unreadable,
    pages_of_holder,
    pages_of_need,
    watch,
)

# A store that misses one look may have been busy.
AWAY_SECONDS = 30.0
# What is not urgent is looked at so often.
SECONDS_BETWEEN = 60.0
SERVER_AWAY = (
    "Prefect's server does not answer; its flow runs are set to crashed, and the next one is begun, when it does."
)


class StoreWatch:
    """Of one store. `more_pages` are further ones that hold, of which this store keeps the notes."""

    def __init__(
        self,
        store: Store,
        who: str,
        consequences: Consequences,
        outbox: Outbox,
        more_pages: Callable[[], Mapping[str, Page]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._clock, self._consequences, self._more_pages = clock, consequences, more_pages
        self._leadership = Leadership(store, who, clock)
        self._reader = StoreReader(store)
        self._at_rest, self._completions = NotedRuns(store, "paused"), Completions(store, outbox)
        self._lone = LoneFlowRuns(store.address, consequences, clock)
        self._pages = OpenPages(store, outbox, clock)
        self._said = Said(store.address)
        self._watched: dict[str, Watched] = {}
        self._unreadable: dict[str, Silence | None] = {}
        self._settled: dict[str, str] = {}
        self._missing_since: float | None = None
        self._missing_as: Kind = "store-away"
        self._tended_at: float | None = None
        self._told_at: float | None = None

    def look(self) -> None:
        """One look, and all that follows from it. Raises nothing."""
        began = self._clock()
        try:
            if not self._leadership.stand():
                self._rest()
                return
            self._act(self._reader.look(began), began)
        except HoldfastError as error:
            self._miss(error)
        except Exception as error:  # noqa: BLE001 - the next look may succeed, and other stores go on
            self._watched.clear()
            self._said.say("look", f"A look failed by an error of the program: {type(error).__name__}: {error}")
        else:
            self._said.forget("look")

    def leave(self) -> None:
        """Let another reconciler act at once."""
        try:
            self._leadership.resign()
        except HoldfastError as error:
            announce(f"{self.store.address}: another reconciler takes over only after a minute: {error}")

    def _act(self, look: StoreLook, began: float) -> None:
        ended = self._clock()
        self._missing_since = None
        self._said.forget("away")
        self._pages.load()
        wanted: dict[str, Page] = dict(self._more_pages())
        self._watched = {run: watch(self._watched.get(run), seen, began, ended) for run, seen in look.runs.items()}
        failed = {run for run, seen in look.runs.items() if not self._follow(seen, wanted)}
        wanted |= self._find_unreadable(look, began, ended)

        def stays(key: str) -> bool:
            run = _run_of(key)
            if run is None:
                return False
            if run in failed or run in look.unreadable:
                return True
            return run in look.runs and is_undecided(look.runs[run], self._watched[run], key)

        if not self._pages.would_change(wanted, stays) or self._leadership.still_leads():
            self._pages.update(wanted, stays)
        self._pages.note()
        self._completions.note()
        if _is_due(self._told_at, ended):
            self._completions.tell(look.runs.values(), self._leadership.still_leads)
            self._told_at = ended
        if _is_due(self._tended_at, ended):
            self._tend(look, ended)

    def _follow(self, seen: SeenRun, wanted: dict[str, Page]) -> bool:
        """What follows for one run, and the pages that hold for it; whether that could be found out."""
        try:
            wanted |= self._judge(seen, self._watched[seen.run])
        except Exception as error:  # the other runs are looked at all the same
            if isinstance(error, HoldfastError) and not isinstance(error, ERRORS_OF_A_RUN):
                raise  # of the store: nothing more is done in this look
            self._said.say(seen.run, f"Run {seen.run!r} could not be judged: {type(error).__name__}: {error}")
            return False
        self._said.forget(seen.run)
        return True

    def _judge(self, seen: SeenRun, watched: Watched) -> dict[str, Page]:
        if not watched.is_dead:
            self._settled.pop(seen.run, None)
            return pages_of_need(self.store, seen, watched)
        done = self._settled.get(seen.run)
        if done is None or done == TAKEN_UP:
            done = self._go_on(seen, is_again=done is not None) or done
        if done is None:  # a server that is busy may answer at the next look: then the page can say what follows
            if watched.holder is None or watched.holder.seconds < 2 * SILENT_SECONDS:
                return {}
            done = SERVER_AWAY
        is_taken_up = False
        if watched.is_stuck:
            try:
                is_taken_up = self._consequences.is_taken_up(seen)
            except ServerAwayError:
                is_taken_up = True  # not known; that the server is away is a page of its own
        return pages_of_holder(seen, watched, done, is_taken_up)

    def _go_on(self, seen: SeenRun, is_again: bool) -> str | None:
        """What was done about a dead holder; None if nothing could be done now."""
        if not self._leadership.still_leads():
            return None
        assert seen.lease is not None
        ids = find_flow_runs(self.store, seen.run, seen.lease.fence)
        stop = find_stop(self.store, seen.run, seen.lease.fence)
        is_to_stop = stop is not None and not stop.is_handed_over
        try:
            done = self._consequences.go_on(seen, ids, is_to_stop, is_again)
        except ServerAwayError as error:
            self._said.say("server", f"Prefect's server did not do what follows; it is asked again: {error}")
            return None
        self._said.forget("server")
        if done != self._settled.get(seen.run):
            announce(f"{seen.address}: its holder is dead. {done}")
        self._settled[seen.run] = done
        return done

    def _find_unreadable(self, look: StoreLook, began: float, ended: float) -> dict[str, Page]:
        """Pages of runs that could not be read in several looks, while the store answered."""
        silences = {run: follow(self._unreadable.get(run), Look(began, ended, "unreadable")) for run in look.unreadable}
        self._unreadable = silences
        for run in look.unreadable:
            self._said.say(f"unreadable {run}", f"Run {run!r} cannot be read: {look.unreadable[run]}")
        long = [run for run, silence in silences.items() if silence is not None and silence.is_long]
        return dict(page_of_unreadable(run_address(self.store, run), run, look.unreadable[run]) for run in long)

    def _tend(self, look: StoreLook, now: float) -> None:
        """What Prefect needs: flow runs that died without a lease, schedules of complete runs, and late flow runs."""
        complete = {seen.address: seen for seen in self._at_rest.find_new(look.runs.values())}
        if not self._leadership.still_leads():
            return
        try:
            self._lone.look(self._find_held(look), self._leadership.still_leads)
            done = self._consequences.tend([seen.address for seen in look.runs.values()], list(complete))
        except ServerAwayError:
            return
        self._tended_at = now
        for address in done.at_rest:
            self._at_rest.note(complete[address])
            announce(f"{address} is complete: its schedule is paused.")
        if done.num_ended:
            announce(f"{self.store.address}: {done.num_ended} late flow runs were ended; of each run the newest stays.")

    def _find_held(self, look: StoreLook) -> set[str]:
        """The addresses of the runs whose holder lives, or may live."""
        held = {run for run, seen in look.runs.items() if seen.lease is not None and not self._watched[run].is_dead}
        return {run_address(self.store, run) for run in held | set(look.unreadable)}

    def _miss(self, error: HoldfastError) -> None:
        """A look that the store did not answer, or refused."""
        now = self._clock()
        self._watched.clear()
        self._unreadable.clear()
        self._lone.forget()
        self._leadership.forget_silence()
        self._said.say("away", f"The store does not answer: {error}")
        if self._leadership.is_known and self._leadership.term is None:
            return  # it is the matter of the one that acts
        if self._missing_since is None:
            self._missing_since = now
            self._missing_as = "store-refuses" if is_refusal(error) else "store-away"
        wanted = dict(self._more_pages())
        if now - self._missing_since >= AWAY_SECONDS:
            wanted[self._missing_as] = page_of_place(self._missing_as, self.store.address, str(error))
        self._pages.update(wanted, lambda key: _run_of(key) is not None or key in ("store-away", "store-refuses"))

    def _rest(self) -> None:
        """Another reconciler acts."""
        self._missing_since = None
        self._watched.clear()
        self._unreadable.clear()
        self._lone.forget()
        self._settled.clear()
        self._at_rest.forget()
        self._completions.forget()
        self._pages.forget()


def _is_due(last: float | None, now: float) -> bool:
    return last is None or now - last >= SECONDS_BETWEEN


def _run_of(key: str) -> str | None:
    """The run that a page of this key is about; None for one about a store or a server."""
    _, *rest = key.split("/")
    return rest[0] if rest else None
