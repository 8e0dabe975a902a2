"""`holdfast advise`: how often to save, and the page about it beside the run.

Invariant: the first line is the recommendation; nothing about the run is changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, RunArgument, find_run
from flows.commands.results import print_result
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import storage.objects.addresses as addresses
    import storage.runs.manifest as manifests
    import tasks.advice.basis as basis
    import tasks.advice.description as description
    import tasks.advice.measured as measured
    import tasks.advice.page as advice_page
    import tasks.advice.storage_cost as storage_cost
    import tasks.advice.tables as advice_tables
    import tasks.config.load as settings
    import tasks.console.tables as tables
    import training.configuration as training_configuration

if TYPE_CHECKING:
    from storage.objects.store import Store
    from storage.runs.run_state import RunState


EXPLAINED = (
    "Overhead is a part of all the time. Lost is training time at a crash: on average, at most in 95 % of the crashes, "
    "and at most in any. Storage, and GPU time that makes no progress, are dollars per month."
)


FailuresPerDay = Annotated[
    float | None, typer.Option(metavar="N", help="Expected crashes per day. Default: measured from this run.")
]
StallSeconds = Annotated[
    float | None,
    typer.Option(metavar="N", help="Seconds for which a save stops training. Default: measured from this run."),
]
DurableSeconds = Annotated[
    float | None,
    typer.Option(
        metavar="N", help="Seconds from there until the save is in the store. Default: measured from this run."
    ),
]
RestartSeconds = Annotated[
    float | None,
    typer.Option(metavar="N", help="Seconds from a start to its first training step. Default: measured from this run."),
]
PricePerGbMonth = Annotated[
    float | None, typer.Option(metavar="DOLLARS", help="Price of 10^9 bytes kept for a month. Default: 0.023.")
]
PricePer1000Puts = Annotated[
    float | None,
    typer.Option(metavar="DOLLARS", help="Price of 1,000 put requests. Default: 0.005 in a bucket, 0 in a folder."),
]
PricePerGpuHour = Annotated[
    float | None, typer.Option(metavar="DOLLARS", help="Price of an hour of one GPU. Default: 2.")
]
FailuresPerGpuHour = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        help="Expected crashes per GPU and hour, for other numbers of GPUs and while the run had no crash. "
        "Default: 2.0e-5.",
    ),
]


def advise(
    run: RunArgument,
    assignments: Assignments = None,
    failures_per_day: FailuresPerDay = None,
    stall_seconds: StallSeconds = None,
    durable_seconds: DurableSeconds = None,
    restart_seconds: RestartSeconds = None,
    price_per_gb_month: PricePerGbMonth = None,
    price_per_1000_puts: PricePer1000Puts = None,
    price_per_gpu_hour: PricePerGpuHour = None,
    failures_per_gpu_hour: FailuresPerGpuHour = None,
    as_json: AsJson = False,
) -> None:
    """Recommend how often to save, from what was measured.

    Saving too often costs training time; saving too rarely means that a crash loses much work. The best interval
    follows from the time a save stops training, the time until it is durable, the time of a restart and how often the
    run crashes: all measured, or given. The table shows overhead, lost work and the cost of storage for every
    interval, beside the price of the GPU time that makes no progress. The configured interval is compared with the best
    one; --set checkpoint.every_seconds=300 and the like compare another. A page with a chart is written to the store:
    runs/RUN/advice.html. Nothing about the run is changed.
    """
    options = {
        "failures_per_day": failures_per_day,
        "stall_seconds": stall_seconds,
        "durable_seconds": durable_seconds,
        "restart_seconds": restart_seconds,
        "price_per_gb_month": price_per_gb_month,
        "price_per_1000_puts": price_per_1000_puts,
        "price_per_gpu_hour": price_per_gpu_hour,
        "failures_per_gpu_hour": failures_per_gpu_hour,
    }
    store, name = find_run(run, assignments or [])
    print_result(advise_run(store, name, assignments or [], options), as_json, render_advice)


def advise_run(
    store: Store, run: str, assignments: Sequence[str], options: dict[str, float | int | None]
) -> dict[str, Any]:
    """The advice, JSON-able; its page is put to the store. Raises `RunMissingError` or `ConfigurationError`."""
    given = {name: value for name, value in options.items() if value is not None}
    chosen = settings.configure(basis.AdviceOptions, given, "set of options")
    state = manifests.Manifest(store, run).load_head().state
    prices = storage_cost.find_prices(store.address, chosen.price_per_gb_month, chosen.price_per_1000_puts)
    advice = measured.advise(state, _read_policy(state, assignments), chosen, prices)
    key = f"{addresses.RUNS_FOLDER}/{run}/advice.html"
    store.write(key, advice_page.render_advice_page(advice, _command(store, run, assignments, given)).encode())
    return description.describe_advice(advice) | {
        "address": addresses.run_address(store, run),
        "page": f"{store.address}/{key}",
    }


def render_advice(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    verdict = result["verdict"]
    badge = Text(verdict["badge"], "bold green" if verdict["standing"] == "complete" else "bold yellow")
    label = "Best settings" if verdict["standing"] == "complete" else "Continue with"
    settings = Text(f"{label}: {verdict['settings']}", no_wrap=True, overflow="ignore")
    page = Text(f"page {result['page']}", no_wrap=True, overflow="ignore")
    remarks = [part for remark in verdict["remarks"] for part in (Text(), Text(remark))]
    return Group(
        badge,
        Text(verdict["headline"]),
        settings,
        *remarks,
        *(Text(), Text(EXPLAINED), tables.show_table(advice_tables.intervals_table(result["intervals"]))),
        *(Text(), tables.show_table(advice_tables.sources_table(result["sources"]))),
        *(
            Text(),
            Text("On other numbers of GPUs, as the page assumes:"),
            tables.show_table(advice_tables.scales_table(result["scales"])),
        ),
        page,
    )


def _read_policy(state: RunState, assignments: Sequence[str]) -> training_configuration.CheckpointConfig:
    """The stored policy and not a file's: it is what the run was last continued with."""
    values = settings.change_values(state.config, assignments).get("checkpoint", {})
    return settings.configure(
        training_configuration.CheckpointConfig, values, f"checkpoint policy of run {state.run!r}"
    )


def _command(store: Store, run: str, assignments: Sequence[str], given: dict[str, float | int]) -> str:
    """What gives the same advice again while the run stands where it stands."""
    settings = [part for assignment in assignments for part in ("--set", assignment)]
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", f"{value:g}")]
    return shlex.join(["holdfast", "advise", addresses.run_address(store, run), *settings, *options])
