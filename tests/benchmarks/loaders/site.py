"""The rows that all loaders read, in a folder and in a bucket, and one measurement of a loader on them.

Invariant: each measurement is a process of its own, with empty folders for what it decodes and downloads.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from storage.datasets import DatasetManifest
from storage.objects.addresses import open_store
from storage.objects.local_store import LocalStore
from tasks.cluster.processes import kill_tree
from tasks.cluster.rank_environment import ALLOCATOR
from tasks.config.load import load_configuration
from tasks.configuration.run import RunConfig
from tasks.corpora.generate import generate_corpus
from tasks.data.pipeline import prepare_dataset
from tests.benchmarks.loaders.holdfast import QUALITY
from tests.benchmarks.loaders.peers import PEERS, ROOT, Peer, peer_command, peer_environment
from tests.benchmarks.loaders.rows import write_rows
from tests.helpers.ceph_server import running_ceph_server
from tests.helpers.s3_server import BUCKET, s3_environment, use_s3
from tests.helpers.slow_link import SlowLink, running_slow_link

BYTES_PER_SECOND = 100e6 / 8
DELAY_SECONDS = 0.020
LARGE_BYTES = 64_000_000
LARGE_KEY = "large"
IN_BUCKET = f"s3://{BUCKET}"
RUN_SECONDS = 300
Measured = dict[str, Any]


class Site:
    """Prepared rows in `folder`, each peer's files of them, and how a loader is run. Without `python` no peers."""

    def __init__(self, folder: Path, python: Path | None, num_rows: int) -> None:
        self.folder = folder
        self.link: SlowLink | None = None
        self.config, self.dataset = _prepare(folder, num_rows)
        self.num_rows = self.dataset.splits["train"].num_rows
        self.num_bytes = sum(shard.num_bytes for shard in self.dataset.splits["train"].shards)
        self._python = python
        self._variables: dict[str, str] = {}
        self._store = LocalStore(Path(self.config.store))
        self._rows = folder / "rows"
        if python is None:
            return
        write_rows(self._store, self.dataset, self._rows)
        for peer in PEERS:
            if not peer.reads_plain_rows:
                options = {"rows": self._rows, "cache": folder / "cache"}
                self._run(peer_command(python, peer, folder / peer.module, **options), peer_environment({}))

    @property
    def steps_per_epoch(self) -> int:
        return self.num_rows // self.config.train.batch_size

    @contextmanager
    def in_bucket(self) -> Iterator[None]:
        """All that is read, in a bucket of Ceph behind a slow link too."""
        (self.folder / "ceph").mkdir()
        with running_ceph_server(self.folder / "ceph") as endpoint, pytest.MonkeyPatch.context() as patch:
            use_s3(patch, endpoint)
            self._upload()
            with running_slow_link(endpoint, BYTES_PER_SECOND, DELAY_SECONDS) as self.link:
                self._variables = s3_environment(self.link.endpoint, S3_ENDPOINT_URL=self.link.endpoint)
                yield

    def run_own(self, ranks: int, steps: int, first_step: int = 0, bucket: bool = False, **more: object) -> Measured:
        """Some steps of our loader."""
        store = IN_BUCKET if bucket else self.config.store
        options = {"store": store, "digest": self.dataset.digest, "ranks": ranks, "steps": steps} | more
        command = [sys.executable, "-m", "tests.benchmarks.loaders.holdfast", "--first-step", str(first_step)]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            environment = peer_environment(ALLOCATOR | self._variables)  # as ranks are launched
            return self._run([*command, "--scratch", scratch], environment)

    def run_peer(self, peer: Peer, ranks: int, bucket: bool = False) -> Measured:
        """An epoch of a peer."""
        assert self._python is not None
        folder = self._rows if peer.reads_plain_rows else self.folder / peer.module
        data = f"{IN_BUCKET}/{peer.module}" if bucket else folder
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            options = {"ranks": ranks, "batch_size": self.config.train.batch_size // ranks, "cache": cache}
            command = peer_command(self._python, peer, data, **options)
            return self._run(command, peer_environment(self._variables))

    def fetch_large(self) -> Measured:
        """An object of 64 MB, through the link."""
        command = [sys.executable, "-m", "tests.benchmarks.loaders.fetching", BUCKET, LARGE_KEY]
        return self._run(command, peer_environment(self._variables))

    def _upload(self) -> None:
        store = open_store(IN_BUCKET)
        for key in self._store.list_keys("datasets/"):
            store.put_file(self._store.fetch(key), key)
        client = boto3.session.Session().client("s3")
        client.put_object(Bucket=BUCKET, Key=LARGE_KEY, Body=bytes(LARGE_BYTES))
        for peer in PEERS:
            if not peer.not_from_bucket:
                for path in (self.folder / peer.module).iterdir():
                    client.upload_file(str(path), BUCKET, f"{peer.module}/{path.name}")

    def _run(self, command: list[str], environment: dict[str, str]) -> Measured:
        """The last line that a process prints, if it is JSON. Raises `TimeoutExpired` after RUN_SECONDS."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            environment = environment | {"TMPDIR": folder}
            process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                output, errors = process.communicate(timeout=RUN_SECONDS)
            finally:
                kill_tree(process.pid)  # its ranks too
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{output}\n{errors}")
        lines = [line for line in output.splitlines() if line.startswith("{")]
        measured: Measured = json.loads(lines[-1]) if lines else {}
        return measured


def _prepare(folder: Path, num_rows: int) -> tuple[RunConfig, DatasetManifest]:
    generate_corpus(folder / "corpus", "quality", num_rows)
    assignments = [f"data.source={folder / 'corpus'}", f"store={folder / 'store'}", "data.memory_limit=2GB"]
    config = load_configuration(QUALITY, assignments)
    dataset = prepare_dataset(config.data, LocalStore(Path(config.store)), folder / "scratch")
    shutil.rmtree(folder / "corpus")
    return config, dataset
