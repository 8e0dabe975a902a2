"""Whether a run's ledger is right: every sample once per epoch, in the order of the pure functions.

Invariant: reads only. Every step up to the promoted checkpoint is either looked at, sample by sample, or named in a
violation; a run passes only if there is none.
"""

from pathlib import Path
from typing import Any

from storage.checkpoints.checkpoints import CheckpointIndex, load_checkpoint
from storage.datasets import load_dataset
from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.ledger import ledger_prefix
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.audits.chain import Chain, read_chain
from tasks.audits.comparison import Comparison
from tasks.audits.content import LedgerContent
from tasks.audits.expectation import Expectation
from tasks.audits.samples import AuditedSamples
from tasks.audits.segments import CountedSteps, part_of_key
from tasks.audits.skipped import describe_skipped, find_unfounded
from tasks.audits.violations import MAX_NAMED, Violation
from tasks.audits.workplace import workplace
from tasks.config.changes import read_stored
from tasks.configuration.run import RunConfig
from tasks.data.progress import OnProgress


def audit_run(
    store: Store, run: str, on_progress: OnProgress | None = None, scratch: Path | None = None
) -> dict[str, Any]:
    """The audit of everything up to the promoted checkpoint, JSON-able. Raises `RunMissingError`, `StoreError`.

    `on_progress` is called with a phase (samples, epochs) and the share of it that is done. Ids and lengths of all
    training rows, and what does not fit into memory, are in `scratch` meanwhile, or where temporary files go.
    """
    state, index, problem = _load_promoted(store, run)
    if index is None or problem is not None:
        return _result(store, state, Chain(violations=[problem] if problem is not None else []))
    config = RunConfig.model_validate(read_stored(state.config))
    dataset = load_dataset(store, state.dataset_digest, state.dataset_sha256)
    chain = read_chain(store, state, index.ledger, index.step)
    chain.violations += find_unfounded(state, config.train.batch_size)
    num_rows = dataset.splits["train"].num_rows
    expectation = Expectation(config, num_rows, dataset.row_group_rows, state.rollbacks)
    with workplace(config.data.memory_limit, scratch) as (connection, folder):
        samples = AuditedSamples(store, dataset, folder)
        content = LedgerContent(connection, chain.parts, samples, expectation)
        comparison = Comparison(chain, content, expectation, index.step, on_progress)
        comparison.run()
    epochs = [
        {
            "epoch": count.epoch,
            "samples": count.num_samples,
            "complete": count.num_rows + len(expectation.skipped_rows(count.epoch, index.step)) == num_rows,
        }
        for count in comparison.epochs
    ]
    return _result(store, state, chain) | {
        "ok": not comparison.violations,
        "steps": comparison.num_steps,
        "samples": comparison.num_samples,
        "microbatches": comparison.num_microbatches,
        "epochs": epochs,
        "violations": [violation.as_json() for violation in comparison.violations[:MAX_NAMED]],
        "num_violations": len(comparison.violations) + comparison.num_unnamed,
    }


def _result(store: Store, state: RunState, chain: Chain) -> dict[str, Any]:
    """What is known from manifest and chain, before a sample was looked at."""
    counted = {link.part.key: link.part for link in chain.parts}
    keys = (key for key in store.list_keys(ledger_prefix(state.run)) if key not in counted)
    outside = [part for part in map(part_of_key, keys) if part is not None]
    return {
        "run": state.run,
        "address": run_address(store, state.run),
        "ok": not chain.violations,
        "steps": 0,
        "samples": 0,
        "microbatches": 0,
        "parts": len(counted),
        "epochs": [],
        "segments": CountedSteps(state).table(counted.values(), outside),
        "skipped": describe_skipped(state),
        "violations": [violation.as_json() for violation in chain.violations],
        "num_violations": len(chain.violations),
    }


def _load_promoted(store: Store, run: str) -> tuple[RunState, CheckpointIndex | None, Violation | None]:
    """The state, the index of its promoted checkpoint if there is one, and what is wrong with that."""
    manifest = Manifest(store, run)
    while True:
        state = manifest.load_head().state
        point = state.promoted
        if point is None:
            return state, None, None
        try:
            index = load_checkpoint(store, point.path, point.digest).index
        except (CorruptObjectError, ObjectUnreadableError) as error:
            if manifest.load_head().state.promoted != point:
                continue  # a run in training drops old checkpoints meanwhile
            message = f"The promoted checkpoint cannot be read, and without it the ledger cannot be checked: {error}"
            return state, None, Violation("checkpoint", (point.step,), message)
        if index.ledger is None and index.step > 0:
            message = f"The checkpoint of step {index.step:,} has no ledger: what it was trained on is not recorded."
            return state, index, Violation("no_ledger", (), message)
        return state, index, None
