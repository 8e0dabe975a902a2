"""The command `advise`: what `tasks.advice.measured` found, for a person and as a page beside the run.

Invariant: the first line is the recommendation; nothing about the run is changed.
"""

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from storage.objects.addresses import RUNS_FOLDER, run_address
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.advice.basis import AdviceOptions
from tasks.advice.description import describe_advice
from tasks.advice.measured import advise
from tasks.advice.page import render_advice_page
from tasks.advice.storage_cost import find_prices
from tasks.advice.tables import intervals_table, scales_table, sources_table
from tasks.pages.tables import show_table
from tasks.settings.reading import change_values, configure
from training.configuration import CheckpointConfig

EXPLAINED = (
    "Overhead is a part of all the time. Lost is training time at a crash: on average, at most in 95 % of the crashes, "
    "and at most in any. Storage, and GPU time that makes no progress, are dollars per month."
)


def advise_run(
    store: Store, run: str, assignments: Sequence[str], options: dict[str, float | int | None]
) -> dict[str, Any]:
    """The advice, JSON-able; its page is put to the store. Raises `RunMissingError` or `ConfigurationError`."""
    given = {name: value for name, value in options.items() if value is not None}
    chosen = configure(AdviceOptions, given, "set of options")
    state = Manifest(store, run).load_head().state
    prices = find_prices(store.address, chosen.price_per_gb_month, chosen.price_per_1000_puts)
    advice = advise(state, _read_policy(state, assignments), chosen, prices)
    key = f"{RUNS_FOLDER}/{run}/advice.html"
    store.write(key, render_advice_page(advice, _command(store, run, assignments, given)).encode())
    return describe_advice(advice) | {"address": run_address(store, run), "page": f"{store.address}/{key}"}


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
        *(Text(), Text(EXPLAINED), show_table(intervals_table(result["intervals"]))),
        *(Text(), show_table(sources_table(result["sources"]))),
        *(Text(), Text("On other numbers of GPUs, as the page assumes:"), show_table(scales_table(result["scales"]))),
        page,
    )


def _read_policy(state: RunState, assignments: Sequence[str]) -> CheckpointConfig:
    """The stored policy and not a file's: it is what the run was last continued with."""
    values = change_values(state.config, assignments).get("checkpoint", {})
    return configure(CheckpointConfig, values, f"checkpoint policy of run {state.run!r}")


def _command(store: Store, run: str, assignments: Sequence[str], given: dict[str, float | int]) -> str:
    """What gives the same advice again while the run stands where it stands."""
    settings = [part for assignment in assignments for part in ("--set", assignment)]
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", f"{value:g}")]
    return shlex.join(["holdfast", "advise", run_address(store, run), *settings, *options])
