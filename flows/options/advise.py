"""What is typed for `holdfast advise`."""

from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, RunArgument, find_run, print_result


def advise(
    run: RunArgument,
    assignments: Assignments = None,
    failures_per_day: Annotated[
        float | None, typer.Option(metavar="N", help="Expected crashes per day. Default: measured from this run.")
    ] = None,
    stall_seconds: Annotated[
        float | None,
        typer.Option(metavar="N", help="Seconds for which a save stops training. Default: measured from this run."),
    ] = None,
    durable_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Seconds from there until the save is in the store. Default: measured from this run."
        ),
    ] = None,
    restart_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Seconds from a start to its first training step. Default: measured from this run."
        ),
    ] = None,
    price_per_gb_month: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="Price of 10^9 bytes kept for a month. Default: 0.023.")
    ] = None,
    price_per_1000_puts: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="Price of 1,000 put requests. Default: 0.005 in a bucket, 0 in a folder."),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="Price of an hour of one GPU. Default: 2.")
    ] = None,
    failures_per_gpu_hour: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Expected crashes per GPU and hour, for other numbers of GPUs and while the run had no crash. "
            "Default: 2.0e-5.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the simulation. Default: 0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend how often to save, from what was measured.

    Saving too often costs training time; saving too rarely means that a crash loses much work. The best interval
    follows from the time a save stops training, the time until it is durable, the time of a restart and how often the
    run crashes: all measured, or given. The table shows overhead, lost work and the cost of storage for every
    interval, beside the price of the GPU time that makes no progress, computed and simulated. The configured interval
    is compared with the best one; --set checkpoint.every_seconds=300 and the like compare another. A page with a chart
    is written to the store: runs/RUN/advice.html. Nothing about the run is changed.
    """
    from flows.commands.advise import advise_run, render_advice

    options = {
        "failures_per_day": failures_per_day,
        "stall_seconds": stall_seconds,
        "durable_seconds": durable_seconds,
        "restart_seconds": restart_seconds,
        "price_per_gb_month": price_per_gb_month,
        "price_per_1000_puts": price_per_1000_puts,
        "price_per_gpu_hour": price_per_gpu_hour,
        "failures_per_gpu_hour": failures_per_gpu_hour,
        "seed": seed,
    }
    store, name = find_run(run, assignments or [])
    print_result(advise_run(store, name, assignments or [], options), as_json, render_advice)
