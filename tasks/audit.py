"""Task `audit`: whether the ledger proves which samples trained the promoted checkpoint.

Invariant: a run whose ledger has a violation is an error, each time. What was proven once is not proven again for the
same checkpoint; the command `holdfast audit` always looks anew.
"""

from typing import Any

from storage.checkpoints.results import audit_key, find_result, write_result
from storage.errors import LedgerViolationError, ObjectUnreadableError
from storage.lazy_imports import lazy_imports
from storage.objects.addresses import run_address
from storage.runs.run_state import CheckpointRecord
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce, warn
from tasks.prefect_bridge.alerts import AUDIT_VIOLATION, alert
from tasks.prefect_bridge.server import show
from tasks.retrying import Retry
from tasks.run_paths import RunPaths, open_run_paths
from tasks.step import step

# Not before the first step: until the last one nothing is audited. Loaded while the ranks evaluate: see `evaluate.py`.
with lazy_imports():
    import tasks.audits.verdict as verdict
    import tasks.audits.words as words

# Violations that may be those of one bad second: a part, or the checkpoint that names the newest one, cannot be read.
UNREADABLE = ("part_missing", "checkpoint")


@step("audit")
def audit_ledger(config: RunConfig) -> tuple[None, str]:
    """Audit the run up to its promoted checkpoint.

    Raises `LedgerViolationError`, after an alert was sent: where a part is not what was written, at two looks, or
    cannot be read for as long as a checkpoint is waited for.
    """
    run_paths = open_run_paths(config)
    try:
        result = Retry(config.retry).call("Auditing the ledger", lambda: _audit(config, run_paths, is_last=False))
    except ObjectUnreadableError:
        result = Retry(config.retry).call("Auditing the ledger", lambda: _audit(config, run_paths, is_last=True))
    return None, words.sum_up(result)


def _audit(config: RunConfig, run_paths: RunPaths, is_last: bool) -> dict[str, Any]:
    promoted = run_paths.manifest.load_head().state.promoted
    assert promoted is not None
    result = _find_proof(run_paths, promoted)
    if result is None:
        announce("Auditing the ledger: which samples trained the model.")
        result = _look(config, run_paths, is_last)
        show(f"audit-{config.run}", words.render_markdown(result))
        if not result["ok"]:
            _fail(run_paths, result)
        write_result(run_paths.store, audit_key(promoted.path), {"digest": promoted.digest, "result": result})
    return result


def _look(config: RunConfig, run_paths: RunPaths, is_last: bool) -> dict[str, Any]:
    """What an audit finds: a violation only if a second look finds one too."""
    result = verdict.audit_run(run_paths.store, config.run, scratch=run_paths.data_scratch)
    unread = [violation["message"] for violation in result["violations"] if violation["kind"] in UNREADABLE]
    if unread and not is_last:
        raise ObjectUnreadableError(unread[0])
    if not result["ok"] and not unread:
        warn(f"{words.sum_up(result)} It is looked at again in {config.retry.reread_seconds:g} s.")
        Retry(config.retry).pause(config.retry.reread_seconds)
        result = verdict.audit_run(run_paths.store, config.run, scratch=run_paths.data_scratch)
    return result


def _find_proof(run_paths: RunPaths, promoted: CheckpointRecord) -> dict[str, Any] | None:
    """What an earlier audit of this very checkpoint found, if it passed."""
    found = find_result(run_paths.store, audit_key(promoted.path))
    return found["result"] if found is not None and found["digest"] == promoted.digest else None


def _fail(run_paths: RunPaths, result: dict[str, Any]) -> None:
    address = run_address(run_paths.store, run_paths.manifest.run)
    found = " ".join(violation["message"] for violation in result["violations"])
    message = (
        f"{words.sum_up(result)} {found} The model is kept, "
        f"but what it was trained on is not proven. All that was found: `holdfast audit {address}`."
    )
    alert(AUDIT_VIOLATION, address, message, run=run_paths.manifest.run, violations=result["num_violations"])
    raise LedgerViolationError(message)
