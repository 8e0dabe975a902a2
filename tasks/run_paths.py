"""Where a run's things are: its store, its manifest and its folders on local disk.

Invariant: scratch holds nothing that cannot be lost. It is a folder for each segment, removed when the segment ended.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from storage.errors import StoreError
from storage.objects.addresses import open_store, path_of
from storage.objects.local_store import TEMPORARY_FOLDER, LocalStore
from storage.objects.private_folder import make_private_folder
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from tasks.configuration.run import RunConfig
from training.agents.locks import require_locks


@dataclass(frozen=True)
class RunPaths:
    """One run's store and manifest; its scratch folder, and the one in which data are prepared for all runs.

    `cache` is where a store in a bucket keeps copies, if `scratch` was set; else it chooses for itself.
    `private_folder` is set where scratch is below the system's folder for temporary files, which all users may write.
    """

    store: Store
    manifest: Manifest
    scratch: Path
    data_scratch: Path
    cache: Path | None = None
    private_folder: Path | None = None

    def segment_scratch(self, fence: int) -> Path:
        """The folder of the segment with this fence."""
        return self.scratch / f"{fence:08d}"


def open_run_paths(config: RunConfig) -> RunPaths:
    """Open the run's store; nothing is written. Raises `ConfigurationError`."""
    cache = None if config.scratch is None else path_of(config.scratch).absolute() / "cache"
    store = open_store(config.store, cache)
    scratch = _scratch_root(config, store)
    private_folder = scratch if scratch == _temporary_root() else None
    manifest = Manifest(store, config.run)
    return RunPaths(store, manifest, scratch / "runs" / config.run, scratch / "data", cache, private_folder)


def require_scratch(run_paths: RunPaths) -> None:
    """Raise `StoreError` if files under way cannot be written: better before anything was done than after.

    Raises `ConfigurationError` if they cannot be locked.
    """
    try:
        if run_paths.private_folder is not None:
            make_private_folder(run_paths.private_folder, "scratch")
        run_paths.scratch.mkdir(parents=True, exist_ok=True)
        require_locks(run_paths.scratch)
    except OSError as error:
        raise scratch_error(run_paths.scratch, error) from error


def scratch_error(scratch: Path, error: OSError, setting: str = "scratch") -> StoreError:
    """Message for a person when `scratch`, which `setting` names, cannot be written."""
    return StoreError(
        f"Cannot write working files in {scratch}: {error.strerror}. "
        f"Check that the folder is writable and has space left, or set {setting} to another one."
    )


def _scratch_root(config: RunConfig, store: Store) -> Path:
    """On the store's own file system where it has one: files then move into the store without being copied."""
    if config.scratch is not None:
        return path_of(config.scratch).absolute()
    if isinstance(store, LocalStore):
        return store.root / TEMPORARY_FOLDER / "scratch"
    return _temporary_root()


def _temporary_root() -> Path:
    return Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
