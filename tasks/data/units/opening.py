"""Where a preparation's units find what they need: in this process if the source is small, else at an address."""

from importlib.metadata import version
from pathlib import Path

from storage.objects.digests import digest_of
from storage.objects.store import Store
from tasks.configuration.run import DataConfig
from tasks.data.contract.sampled import sampled_columns
from tasks.data.sources.source_file import SourceFile
from tasks.data.units.chunks import bytes_of_chunk
from tasks.data.units.staging import FolderStaging, Record, StoreStaging
from tasks.data.units.workspace import Address, Workspace

# What is smaller than this is prepared in this process, and nothing of it is kept for a second attempt.
SMALL_SOURCE_BYTES = 64 << 20
# Counted up whenever units leave something else: what another version kept is not used then.
UNITS_FORMAT = 1
LIBRARIES = ("duckdb", "pyarrow", "tokenizers", "great-expectations", "numpy")


def open_workspace(
    config: DataConfig,
    store: Store,
    scratch: Path,
    folder: Path,
    inputs: Record,
    files: list[SourceFile],
    cache: Path | None,
) -> tuple[Workspace, Address | None]:
    """Where units find what they need, and, unless the source is small, the address at which any process finds it."""
    if sum(file.num_bytes for file in files) < SMALL_SOURCE_BYTES:
        return Workspace(config, store, FolderStaging(folder / "units"), folder, folder / "source", files), None
    decides = {
        "inputs": inputs,
        "versions": versions_of_libraries(),
        "format": UNITS_FORMAT,
        "chunk": bytes_of_chunk(config),
    }
    decides |= {"sampled": [*sampled_columns(config)]}
    address = Address(config.model_dump_json(), store.address, cache, digest_of(decides), scratch)
    return Workspace(config, store, StoreStaging(store, address.staging), folder, address.brought, files), address


def versions_of_libraries() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES}
