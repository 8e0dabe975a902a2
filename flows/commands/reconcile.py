"""`holdfast reconcile STORE...`: one long-lived process beside Prefect's server that acts on what the stores say.

Invariant: it ends by a signal alone, with its exit code; what goes wrong with one store is printed, and the others go
on. It starts no server. What it does is decided in `tasks.reconciling`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.arguments import Assignments, open_stores
from flows.commands.results import ending_in_order, print_progress
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import flows.prefect_server as prefect_server
    import storage.objects.local_store as local_store
    import tasks.console.messages as messages
    import tasks.monitoring.server as metrics_server
    import tasks.prefect_bridge.notifications as notifications
    import tasks.prefect_bridge.run_deployments as run_deployments
    import tasks.reconciling.all_runs as all_runs
    import tasks.reconciling.consequences as consequences
    import tasks.reconciling.reconciler as reconciler
    import tasks.text as words

EVERY_SECONDS = 15.0


def reconcile(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="Stores, or configuration files: the stores that they name."),
    ],
    assignments: Assignments = None,
    every: Annotated[
        float, typer.Option(min=1.0, max=60.0, metavar="SECONDS", help="Time between two looks at a store.")
    ] = EVERY_SECONDS,
    tag: Annotated[
        str | None,
        typer.Option(
            metavar="TEAM",
            help="Pages go to the notification blocks of this name. If not given: to those that are named holdfast.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Keep the list of all runs as one HTML page in this file."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="Serve the figures of all runs for Prometheus."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where --metrics-port listens.", show_default=True)
    ] = "127.0.0.1",
) -> None:
    """Keep a Prefect server true to what stores say.

    Until it is stopped. A run whose holder gives no sign of life for a minute: its flow runs are set to crashed, and
    the next one begins. The schedule of a complete run is paused; of late flow runs the newest of each run stays.
    People are told each thing once, and when it is over. Several such processes may run: for each store one acts, and
    another takes over where it ends. See deployments/operation.md.
    """
    stores = open_stores(targets, assignments or [])
    for store in stores:
        if isinstance(store, local_store.LocalStore) and not store.root.is_dir():
            raise ConfigurationError(
                f"Expected a store, and there is no folder {store.address}. Mount its file system, or correct the "
                "address; a store is there once its first run was begun with `holdfast run`."
            )
    if page is not None and not page.parent.is_dir():
        raise ConfigurationError(f"--page {page}: expected a file in a folder, and there is no folder {page.parent}.")
    messages.show_messages()
    with prefect_server.asking_server() as client, ending_in_order():
        block = tag or run_deployments.TAG
        notifiers = notifications.load_notifiers(client, block)
        told = words.listed([one.name for one in notifiers]) if notifiers else "nobody"
        print_progress(f"Watching {words.count_of(len(stores), 'store')}, every {words.duration(every)}. Told: {told}.")
        if not notifiers:
            print_progress(
                f"Nobody is told of pages: the server has no notification block named {block!r}. Make one, and start "
                "this command again: deployments/README.md, section What alerts."
            )
        shown = all_runs.AllRuns(page)
        show = shown.show if page is not None or metrics_port is not None else None
        with metrics_server.serving_all_runs(shown.figures, metrics_port, metrics_host):
            reconciler.Reconciler(stores, notifiers, consequences.PrefectConsequences(), every, block, show).run()
