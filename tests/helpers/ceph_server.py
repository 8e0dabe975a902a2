"""A real S3 server on loopback: Ceph's gateway with a monitor and a storage daemon, as Debian packages them.

Invariant: nothing of it outlives the block, however the block is left, nor the test process if that is killed. Objects
are in the memory of the storage daemon, so they go with it; settings and logs are in the folder.
"""

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from tests.helpers.prefect_server import find_free_port, running
from tests.helpers.s3_server import CREDENTIALS, make_bucket

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
PACKAGES = "radosgw ceph-mon ceph-osd ceph-common"
START_SECONDS = 60.0
POLL_SECONDS = 0.02
LAST_LINES = 8
HOST = "127.0.0.1"
USER = "tests"
SETTINGS = {
    # Everything that would go to /var or /run; all that daemons say goes to stderr.
    "admin_socket": "",
    "pid_file": "",
    "log_file": "",
    "log_to_stderr": "true",
    "mon_cluster_log_to_file": "false",
    "crash_dir": "{folder}",
    "run_dir": "{folder}",
    "mon_data": "{folder}/mon",
    "osd_data": "{folder}/osd",
    # One monitor and one storage daemon, who trust whoever is on this machine.
    "fsid": "{fsid}",
    "mon_host": "[{monitor}/0]",
    "mon_initial_members": "a",
    "public_addr": HOST,
    "cluster_addr": HOST,
    "auth_cluster_required": "none",
    "auth_service_required": "none",
    "auth_client_required": "none",
    "ms_mon_client_mode": "crc",  # without authentication there is no key to encrypt with
    # Each object is kept once; the gateway makes a dozen pools.
    "osd_pool_default_size": "1",
    "osd_pool_default_min_size": "1",
    "mon_allow_pool_size_one": "true",
    "osd_crush_chooseleaf_type": "0",
    "osd_pool_default_pg_num": "8",
    "osd_pool_default_pgp_num": "8",
    "osd_pool_default_pg_autoscale_mode": "off",
    "mon_max_pg_per_osd": "1000",
    # In memory, and never full: a full one lets puts wait for ever. What was deleted goes within seconds, not hours.
    "osd_objectstore": "memstore",
    "memstore_device_bytes": str(4 << 30),
    "rgw_gc_obj_min_wait": "5",
    "rgw_gc_processor_period": "5",
    "mon_data_avail_crit": "0",  # a disk that is nearly full is no reason for the monitor to leave
    # Quick to come and to go, also when the others have gone before: else a gateway waits for storage for two minutes.
    "paxos_propose_interval": "0.05",
    "ms_bind_retry_count": "1",
    "rgw_frontends": f"beast endpoint={HOST}:0 tcp_nodelay=1",  # any port that is free
    "rgw_exit_timeout_secs": "1",
    "osd_mon_shutdown_timeout": "1",
}


@contextmanager
def running_ceph_server(folder: Path) -> Iterator[str]:
    """The endpoint of a server that lives as long as the block; it has the bucket and the user of `s3_server`.

    Raises `RuntimeError` with the last lines of the logs if the server is not up within START_SECONDS.
    """
    with ExitStack() as daemons:
        yield _Start(folder, daemons).bring_up()


def put_key(folder: Path, key: str, secret: str) -> None:
    """Give the user one more key, on the server with this folder."""
    _administer_keys(folder, "create", f"--access-key={key}", f"--secret-key={secret}")


def remove_key(folder: Path, key: str) -> None:
    """Take a key from the user: it is refused from then on."""
    _administer_keys(folder, "rm", f"--access-key={key}")


def _administer_keys(folder: Path, *arguments: str) -> None:
    command = ["radosgw-admin", "-c", str(folder / "ceph.conf"), "key", *arguments, f"--uid={USER}", "--key-type=s3"]
    subprocess.run(command, check=True, capture_output=True)


def find_missing_programs() -> list[str]:
    """What of `PROGRAMS` is not installed on this machine."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


class _Start:
    """A server while it comes up. Its daemons are stopped with `daemons`, those first that need the others."""

    def __init__(self, folder: Path, daemons: ExitStack) -> None:
        self._folder = folder
        self._daemons = daemons
        self._living: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("CEPH_")}
        self._deadline = time.monotonic() + START_SECONDS
        self._fsid = str(uuid.uuid4())
        self._monitor = f"v2:{HOST}:{find_free_port()}"

    def bring_up(self) -> str:
        """Start the daemons, each when it can be of use; the endpoint, once it answers."""
        self._write_settings()
        self._start_monitor()
        self._start_storage()
        self._make_user()
        endpoint = self._start_gateway()
        make_bucket(endpoint)
        return endpoint

    def _write_settings(self) -> None:
        facts = {"folder": self._folder, "fsid": self._fsid, "monitor": self._monitor}
        lines = [f"{name} = {value.format(**facts)}" for name, value in SETTINGS.items()]
        (self._folder / "ceph.conf").write_text("\n".join(["[global]", *lines, ""]))
        for name in ("mon", "osd"):
            (self._folder / name).mkdir()

    def _start_monitor(self) -> None:
        members = self._folder / "monmap"
        self._call("monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", f"[{self._monitor}]", str(members))
        self._call("ceph-mon", *self._settings, "--mkfs", "-i", "a", "--monmap", str(members))
        self._start("ceph-mon", "-f", "-i", "a")

    def _start_storage(self) -> None:
        its_id = str(uuid.uuid4())
        self._call("ceph", *self._settings, "osd", "new", its_id)
        self._call("ceph-osd", *self._settings, "-i", "0", "--mkfs", "--osd-uuid", its_id)
        self._start("ceph-osd", "-f", "-i", "0")

    def _make_user(self) -> None:
        """Waits by itself for the storage to be up."""
        keys = ["--access-key", CREDENTIALS["AWS_ACCESS_KEY_ID"], "--secret-key", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
        self._call("radosgw-admin", *self._settings, "user", "create", f"--uid={USER}", f"--display-name={USER}", *keys)

    def _start_gateway(self) -> str:
        gateway = self._start("radosgw", "-f", "-n", "client.rgw")
        port = self._wait_for("the gateway", lambda: _find_port(gateway))
        return f"http://{HOST}:{port}"

    @property
    def _settings(self) -> tuple[str, str]:
        return ("-c", str(self._folder / "ceph.conf"))

    def _start(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        log = self._folder / f"{program}.log"
        command = [program, *self._settings, *arguments]
        process = self._daemons.enter_context(running(command, self._environment, log, self._folder))
        self._living[program] = process
        return process

    def _call(self, program: str, *arguments: str) -> None:
        """Run a program to its end, which must be a good one. Its arguments may be secret: no error tells them."""
        with running([program, *arguments], self._environment, self._folder / f"{program}-call.log") as process:
            exit_code = self._wait_for(program, process.poll)
        if exit_code != 0:
            self._fail(f"{program} ended with exit code {exit_code}")

    def _wait_for(self, what: str, find: Callable[[], int | None]) -> int:
        """What `find` finds, as soon as it does, unless a daemon ends or time runs out before."""
        while (found := find()) is None:
            for name, process in self._living.items():
                if process.poll() is not None:
                    self._fail(f"{name} ended with exit code {process.returncode} while {what} was waited for")
            if time.monotonic() >= self._deadline:
                self._fail(f"{what} was waited for until {START_SECONDS:.0f} s had passed")
            time.sleep(POLL_SECONDS)  # no daemon signals that it answers
        return found

    def _fail(self, what: str) -> NoReturn:
        said = []
        for log in sorted(self._folder.glob("*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            said += [f"{log.name}:", *(f"    {line}" for line in lines[-LAST_LINES:])]
        raise RuntimeError("\n".join([f"The Ceph server in {self._folder} did not come up: {what}.", *said]))


def _find_port(process: "subprocess.Popen[bytes]") -> int | None:
    """The port on which a process listens, or None if it does not, or has ended."""
    with suppress(psutil.Error):
        sockets = psutil.Process(process.pid).net_connections("tcp")
        return next((found.laddr.port for found in sockets if found.status == psutil.CONN_LISTEN), None)
    return None
