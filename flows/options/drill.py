"""What is typed for `holdfast drill`."""

from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, ConfigurationArgument, print_result, read_configuration


def drill(
    configuration: ConfigurationArgument,
    assignments: Assignments = None,
    kills: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="How often the second run is killed, at steps spread over the run."),
    ] = 3,
    world_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Numbers of ranks for the second run's starts, used in turn; each at most train.leaves. Default: the "
            "configured number but at least 2, and half of it. Where there are fewer GPUs, ranks share them.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Decides at which steps to kill. Default: random.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test on your own data that interruptions change nothing.

    Two runs are trained. One is not interrupted; the other is killed with SIGKILL and started again on another number
    of ranks, several times. Then samples, weights, losses and metrics are compared. Your own run is not touched. The
    two runs and a page with the verdict stay in the store: runs/RUN-drill-1-straight, runs/RUN-drill-1-interrupted and
    drills/RUN-1.html, with 2 for the second drill.

    All ranks are processes of this machine, also where cluster.kind names a cluster.

    Exit code 0 if the two agree, 1 if not. With train.sum = 'fast' only the samples decide; how far apart weights and
    metrics are is reported.
    """
    read_configuration(configuration, assignments or [])
    from flows.commands.drill import drill_run, render_drill

    found = drill_run(configuration, assignments or [], kills, world_sizes, seed)
    print_result(found, as_json, render_drill)
    if not found["ok"]:
        raise typer.Exit(1)
