"""The process that watches several stores, each in a thread of its own, and Prefect's server, until it is stopped.

Invariant: a store that is away, or slow, delays no other. The thread that calls `run` asks the server, sends the pages
and gives a sign of life; none of that can end it. What shows all runs, which reads all stores, has a thread too.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial

import httpx
from prefect.exceptions import PrefectException, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from storage.objects.store import Store
from tasks.console.announce import announce
from tasks.prefect_bridge.alerts import RECONCILER, RECONCILER_ALIVE, send
from tasks.prefect_bridge.private.server_requests import require_api
from tasks.prefect_bridge.server import CALL_SECONDS, impatient_client
from tasks.reconciling.consequences import Consequences
from tasks.reconciling.outbox import Notifier, Outbox
from tasks.reconciling.pages import Page, page_of_place
from tasks.reconciling.said import Said
from tasks.reconciling.store_watch import StoreWatch
from tasks.text import listed

ALIVE_SECONDS = 60.0
# Longer than a server takes that is started again.
SERVER_SECONDS = 60.0
LEAVE_SECONDS = 10.0
# To show all runs much more is read than to watch them.
SHOW_SECONDS = 60.0


class Reconciler:
    """Of these stores. `name` is that of the blocks by which people are told.

    `show_all` is called with them every minute, for figures and a page of all runs. One store given twice is watched
    once.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        notifiers: Sequence[Notifier],
        consequences: Consequences,
        every_seconds: float,
        name: str,
        show_all: Callable[[Sequence[Store]], None] | None = None,
    ) -> None:
        self._stores = list({store.address: store for store in stores}.values())
        self._every_seconds, self._show_all, self._name = every_seconds, show_all, name
        self._outbox, self._server = Outbox(notifiers), ServerWatch()
        self._said, self._is_over = Said("The reconciler"), threading.Event()
        who = f"process {os.getpid()} on {socket.gethostname()}"
        first, *others = self._stores
        self._watches = [StoreWatch(first, who, consequences, self._outbox, self._server.pages)]
        self._watches += [StoreWatch(store, who, consequences, self._outbox) for store in others]
        self._alive_at: float | None = None

    def run(self) -> None:
        """Watch until an exception is raised in this thread, as by a signal; then let others take over at once."""
        self._server.look()
        threads = [self._start(partial(self._watch, watch), watch.store.address) for watch in self._watches]
        if self._show_all is not None:
            threads.append(self._start(self._keep_showing, "all runs"))
        try:
            while True:
                self._do_between()
                time.sleep(self._every_seconds)  # a signal ends it; the server and the blocks call nobody back
        finally:
            self._is_over.set()
            deadline = time.monotonic() + LEAVE_SECONDS
            for thread in threads:  # one whose store hangs is left behind
                thread.join(max(0.0, deadline - time.monotonic()))
            self._outbox.send_all()

    def _start(self, do: Callable[[], None], what: str) -> threading.Thread:
        context = copy_context()  # by which Prefect knows its settings
        thread = threading.Thread(target=lambda: context.run(do), name=f"watch {what}", daemon=True)
        thread.start()
        return thread

    def _watch(self, watch: StoreWatch) -> None:
        watch.look()
        while not self._is_over.wait(self._every_seconds):
            watch.look()
        watch.leave()

    def _keep_showing(self) -> None:
        assert self._show_all is not None
        show = partial(self._show_all, self._stores)
        self._try("to show all runs", show)
        while not self._is_over.wait(SHOW_SECONDS):
            self._try("to show all runs", show)

    def _do_between(self) -> None:
        for what, do in (
            ("to ask Prefect's server", self._server.look),
            ("to send pages", self._outbox.send_all),
            ("to give a sign of life", self._give_sign_of_life),
        ):
            self._try(what, do)

    def _try(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the rest is done all the same, and this is tried again
            self._said.say(what, f"It failed {what}: {type(error).__name__}: {error}")
        else:
            self._said.forget(what)

    def _give_sign_of_life(self) -> None:
        now = time.monotonic()
        if self._alive_at is None or now - self._alive_at >= ALIVE_SECONDS:
            self._alive_at = now
            watched = listed([store.address for store in self._stores])
            send(RECONCILER_ALIVE, RECONCILER.format(name=self._name), f"Watched: {watched}.")


class ServerWatch:
    """Whether Prefect's server answers, and has its database, by looks of one thread; its page is read by another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent_since: float | None = None
        self._why = ""

    def look(self) -> None:
        """Ask it once."""
        try:
            with impatient_client() as client:
                require_api(client, CALL_SECONDS)
                client.read_deployments(limit=1)  # without its database it answers the first, and does nothing
        except PrefectHTTPStatusError as error:
            self._miss(f"it answers with the status {error.response.status_code}")
        except (httpx.HTTPError, PrefectException, ValueError) as error:
            self._miss(f"no answer ({type(error).__name__})")
        else:
            if self._silent_since is not None:
                announce("Prefect's server answers again.")
            self._silent_since = None

    def pages(self) -> Mapping[str, Page]:
        """The page that it is away, if it is."""
        since = self._silent_since
        if since is None or self._clock() - since < SERVER_SECONDS:
            return {}
        what = f"Prefect's server has not answered for a minute: {self._why}."
        return {"server-away": page_of_place("server-away", PREFECT_API_URL.value() or "", what)}

    def _miss(self, why: str) -> None:
        self._why = why
        if self._silent_since is None:
            self._silent_since = self._clock()
            announce(f"Prefect's server does not answer: {why}.")
