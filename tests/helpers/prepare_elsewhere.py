"""A preparation whose units are Prefect tasks, as a process of its own.

    python -m tests.helpers.prepare_elsewhere CONFIG_JSON STORE SCRATCH LOG CHUNK_BYTES [DASK]

Every unit that begins adds a line to LOG.
"""

import sys
from pathlib import Path

from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig, PrepareConfig
from tasks.data.pipeline import prepare_dataset
from tests.helpers.cut_preparations import Noted, cut_small


def main(config_json: str, store: str, scratch: str, log: str, chunk_bytes: str, dask: str | None = None) -> None:
    """Prepare with two processes, or on the workers of a scheduler."""
    config = DataConfig.model_validate_json(config_json)
    engine = Noted(Path(log), config, PrepareConfig(workers=2, dask=dask))
    with cut_small(int(chunk_bytes)):
        prepare_dataset(config, LocalStore(Path(store)), Path(scratch), engine=engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
