"""`make demo`: the main job on a generated corpus, preempted on the way, from the first command to the report.

Invariant: does nothing that a user could not do; it runs the command `holdfast` and sends it the SIGTERM that a
preempted machine gets. It deletes the store of the demonstration before, and only that: one that has its marker.
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from storage.errors import ConfigurationError, HoldfastError
from storage.objects.addresses import open_store, path_of
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.cluster.processes import environment_of_installation
from tasks.config.load import load_configuration
from tasks.console.terminal import console
from tasks.reporting.written import report_address

CONFIGURATION = Path("deployments/configs/demo.toml")
ROWS = 8000
POLL_SECONDS = 0.5
MARKER = "made-by-make-demo"


def main() -> None:
    """Make a corpus, train, be preempted at a third of the way, go on to the end on another number of ranks."""
    config = load_configuration(CONFIGURATION)
    manifest = Manifest(open_store(config.store), config.run)
    preempted_from = config.train.num_steps // 3
    empty_store(config.store)
    if not Path(config.data.source).exists():
        _print(f"1. A corpus of {ROWS:,} rows: text with metadata, eleven classes from 41 % to 0.3 %.")
        if _command("corpus", config.data.source, "--job", "policy", "--rows", str(ROWS)).wait():
            sys.exit(1)
    _print(f"2. Training begins. It will be preempted when a checkpoint of step {preempted_from} or later is safe.")
    training = _command("run", str(CONFIGURATION))
    while training.poll() is None and _promoted_step(manifest) < preempted_from:
        time.sleep(POLL_SECONDS)  # the manifest is all that the demo knows of the run, as of any other
    training.send_signal(signal.SIGTERM)
    if training.wait() != 128 + signal.SIGTERM:
        _print("The run ended before it could be preempted; its output is above.")
        sys.exit(1)
    _print("3. Preempted. The same command goes on from there, on one rank instead of two: the model will be the same.")
    if _command("run", str(CONFIGURATION), "--set", "train.ranks=1").wait():
        sys.exit(1)
    _print("4. Every checkpoint that was kept, hashed again; which samples the model saw; and where the run stands.")
    for command in ("verify", "audit", "status"):
        if _command(command, str(CONFIGURATION)).wait():
            sys.exit(1)
    _print(f"Open this page: {report_address(open_store(config.store), config.run)}")
    _print(
        "Next, your own data: `.venv/bin/holdfast config > run.toml`, set data.source (files or a folder: Parquet, "
        "CSV, JSON Lines), data.text, data.label and data.kind, then `.venv/bin/holdfast run run.toml`."
    )


def empty_store(address: str) -> None:
    """An empty store in a folder, with the marker that lets the next demonstration delete what will be in it.

    Raises `ConfigurationError` if the folder has files and no marker: they may be needed.
    """
    if not isinstance(open_store(address), LocalStore):
        raise ConfigurationError(
            f"`make demo` needs a store in a folder, found store = {address!r} in {CONFIGURATION}."
        )
    folder = path_of(address)
    marker = folder / MARKER
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if found and marker not in found:
        raise ConfigurationError(
            f"The store {folder} has files that `make demo` did not make: {found[0].name} has no {MARKER} beside it. "
            f"Nothing was deleted. If they are not needed, delete the folder; else set store in {CONFIGURATION} to a "
            "folder that does not exist."
        )
    for path in found:
        if path != marker:  # the last to go would be the first to be missing if this is interrupted
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text("This store was made by `make demo`, which deletes all that is in it when it starts again.\n")


def _promoted_step(manifest: Manifest) -> int:
    head = manifest.find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def _command(*arguments: str) -> "subprocess.Popen[bytes]":
    console.print(f"$ holdfast {' '.join(arguments)}", style="bold", soft_wrap=True)
    return subprocess.Popen([sys.executable, "-m", "flows.cli", *arguments], env=environment_of_installation())


def _print(text: str) -> None:
    console.print(f"\n{text}", style="cyan", soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except HoldfastError as error:
        console.print(f"Error: {error}", style="red", soft_wrap=True)
        sys.exit(2)
