"""Source of a run that was begun: whether it still is what its data set was made of, where that can be decided.

Invariant: a run reads its data set and no source, so a source that is gone ends no run; one that was changed does.
"""

import time

from storage.datasets import DatasetManifest, find_dataset
from storage.errors import ConfigurationError, ContractError, IncompatibleRunError, StoreError
from storage.objects.digests import digest_of
from storage.runs.run_state import RunState
from tasks.configuration.run import DataConfig
from tasks.console.announce import warn
from tasks.data.identity.difference import describe_difference
from tasks.data.identity.fingerprints import describe_change, fingerprint_files, read_inputs
from tasks.data.identity.identities import find_identities, identities_of, keep_identities
from tasks.data.listing import find_source
from tasks.data.progress import OnProgress
from tasks.run_paths import RunPaths


def require_same_source(
    config: DataConfig, run_paths: RunPaths, state: RunState, on_progress: OnProgress | None = None
) -> DatasetManifest | None:
    """The run's data set, or None if it is not in the store any more and has to be made again.

    Of files that a listing shows as they were nothing is read. Raises `IncompatibleRunError` if the source was changed,
    before anything is written.
    """
    dataset = find_dataset(run_paths.store, state.dataset_digest, state.dataset_sha256)
    digest = state.dataset_digest
    identities, listed_at = find_identities(run_paths.store, digest), time.time()
    try:
        files = find_source(config)
        fingerprints = fingerprint_files(files, run_paths.data_scratch, on_progress, identities)
    except (ConfigurationError, ContractError, StoreError, OSError) as error:
        if dataset is None:
            raise
        warn(
            "The source cannot be read, so whether it was changed is not known. The run does not need it: its data "
            f"set {digest[:12]} is in the store. {error}"
        )
        return dataset
    inputs = read_inputs(config, files, fingerprints)
    if digest != digest_of(inputs):
        before = dataset or find_dataset(run_paths.store, digest)
        changes = describe_change(before, inputs) if before else ["its data set is no longer in the store"]
        now = find_dataset(run_paths.store, digest_of(inputs))  # there if another run has it
        if before is not None and now is not None:
            changes += describe_difference(before, now)
        raise IncompatibleRunError(
            f"The data of run {state.run!r} changed since it was started:\n"
            + "\n".join(f"  {change}" for change in changes)
            + "\nRestore the data to go on with the run, or give another run name to start a new one."
        )
    if dataset is not None:
        keep_identities(run_paths.store, digest, identities_of(files, fingerprints, listed_at))
    return dataset
