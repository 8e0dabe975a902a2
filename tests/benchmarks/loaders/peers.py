"""The loaders that Holdfast's is compared with, and the environment of their own in which they run.

They cannot be installed beside our dependencies: each asks for other versions of libraries that all of them use.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Versions shown to work together. `torch==2.13.0` exactly, as in `constraints.txt`: a range takes gigabytes for GPUs.
PACKAGES = (
    "streaming-community==0.14.2",
    "litdata==0.2.76",
    "torchdata==0.11.0",
    "datasets==5.2.0",
    "torch==2.13.0",
)
READY = "installed.txt"


@dataclass(frozen=True)
class Peer:
    """A loader, its script beside this file, and why it is not read from a bucket, if it is not."""

    name: str
    module: str
    not_from_bucket: str = ""
    reads_plain_rows: bool = False


STREAMING = Peer("MosaicML Streaming", "peer_streaming")
PEERS = (
    STREAMING,
    Peer("litdata", "peer_litdata", "fetches its files by https alone"),
    Peer("torchdata StatefulDataLoader", "peer_torchdata", "has no reader for a bucket", reads_plain_rows=True),
    Peer("Hugging Face datasets", "peer_datasets", "needs s3fs and an older boto3"),
)


def ensure_environment(folder: Path) -> Path:
    """The Python of an environment with the peers, made in `folder` unless it is there."""
    python = folder / "bin" / "python"
    ready = folder / READY
    if not (ready.exists() and ready.read_text().split() == list(PACKAGES)):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *PACKAGES], check=True)
        ready.write_text("\n".join(PACKAGES))
    return python


def peer_command(python: Path, peer: Peer, data: Path | str, **options: object) -> list[str]:
    """A peer's script, with these options."""
    command = [str(python), "-m", f"tests.benchmarks.loaders.{peer.module}", "--data", str(data)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def peer_environment(variables: dict[str, str]) -> dict[str, str]:
    """This process's, with these variables, and with no library asking anything of the internet."""
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **quiet, **variables}
