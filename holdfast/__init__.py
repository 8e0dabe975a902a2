"""Holdfast in Python: what the commands do, as functions that return what the commands print as JSON.

    import holdfast

    finished = holdfast.run("run.toml")
    print(finished["step"], finished["promoted"]["weights_sha256"], finished["metrics"])

Each function starts Holdfast as a process of its own and waits for it. So nothing heavy is loaded here, and the names
`flows`, `storage`, `tasks` and `training` stay whatever they are in your process. What the command shows while it
works is on stderr; what went wrong is a `HoldfastError`. Ctrl-C asks the process to end in good order, as it does on
the command line: the ranks finish their step, save, and leave.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.child import HoldfastError
    from holdfast.functions import audit, evaluate, export, predict, prepare, report, run, runs, status, stop, verify
    from holdfast.results import (
        Audit,
        Evaluation,
        Export,
        Page,
        Prediction,
        PreparedData,
        Run,
        RunList,
        RunResult,
        Status,
        StopRequest,
        Verification,
    )

__all__ = [
    "Audit", "Evaluation", "Export", "HoldfastError", "Page", "Prediction", "PreparedData", "Run", "RunList",
    "RunResult", "Status", "StopRequest", "Verification", "audit", "evaluate", "export", "predict", "prepare", "report",
    "run", "runs", "status", "stop", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The public names, loaded when one is asked for: the command `holdfast` passes here too, and needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast import child, functions, results

    found = {**vars(results), **vars(child), **vars(functions)}
    globals().update({public: found[public] for public in __all__})
    return globals()[name]


def __dir__() -> list[str]:
    return [*globals(), *__all__]
