"""`make demo`: the main job on a generated corpus, preempted on the way, from the first command to the report.

Invariant: does nothing that a user could not do; it runs the command `holdfast` and sends it the SIGTERM that a
preempted machine gets.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from storage.objects.addresses import open_store
from storage.runs.manifest import Manifest
from tasks.settings.reading import load_configuration
from tasks.telling.terminal import console

CONFIGURATION = Path("deployments/configs/demo.toml")
ROWS = 8000
POLL_SECONDS = 0.5


def main() -> None:
    """Make a corpus, train, be preempted at a third of the way, go on to the end on another number of ranks."""
    config = load_configuration(CONFIGURATION)
    manifest = Manifest(open_store(config.store), config.run)
    preempted_from = config.train.steps // 3
    shutil.rmtree(config.store, ignore_errors=True)
    if not Path(config.data.source).exists():
        _say(f"1. A corpus of {ROWS:,} rows: text with metadata, eleven classes from 41 % to 0.3 %.")
        if _command("corpus", config.data.source, "--job", "policy", "--rows", str(ROWS)).wait():
            sys.exit(1)
    _say(f"2. Training begins. It will be preempted when a checkpoint of step {preempted_from} or later is safe.")
    training = _command("run", str(CONFIGURATION))
    while training.poll() is None and _promoted_step(manifest) < preempted_from:
        time.sleep(POLL_SECONDS)  # the manifest is all that the demo knows of the run, as of any other
    training.send_signal(signal.SIGTERM)
    if training.wait() != 128 + signal.SIGTERM:
        _say("The run ended before it could be preempted; what it said stands above.")
        sys.exit(1)
    _say("3. Preempted. The same command goes on where it was, on one rank instead of two: the model will be the same.")
    if _command("run", str(CONFIGURATION), "--set", "train.ranks=1").wait():
        sys.exit(1)
    _say("4. Every checkpoint that was kept, hashed again; which samples the model saw; and where the run stands.")
    for command in ("verify", "audit", "status"):
        if _command(command, str(CONFIGURATION)).wait():
            sys.exit(1)


def _promoted_step(manifest: Manifest) -> int:
    head = manifest.find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def _command(*arguments: str) -> "subprocess.Popen[bytes]":
    console.print(f"$ holdfast {' '.join(arguments)}", style="bold")
    return subprocess.Popen([sys.executable, "-m", "flows.cli", *arguments], env=os.environ)


def _say(text: str) -> None:
    console.print(f"\n{text}", style="cyan")


if __name__ == "__main__":
    main()
