"""Units of a preparation in other processes: on a pool of this machine, and on workers of a real Dask scheduler."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from storage.errors import ConfigurationError
from storage.objects.digests import sha256_of_file
from storage.objects.local_store import LocalStore
from tasks import prepare_unit
from tasks.configuration.run import DataConfig, PrepareConfig
from tasks.data.pipeline import prepare_dataset
from tests.helpers.cut_preparations import CHUNK_BYTES
from tests.helpers.parquet import text_columns, text_config, write_parquet
from tests.helpers.prefect_server import find_free_port, running

pytestmark = pytest.mark.server

POLL_SECONDS = 0.05
WAIT_SECONDS = 240.0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    folder = tmp_path_factory.mktemp("data")
    for part in range(3):
        write_parquet(folder / f"{part}.parquet", text_columns(400, first=400 * part), 50)
    return text_config(folder, numeric=["length"], categorical=["region"])


@pytest.fixture(scope="module")
def undisturbed(config: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("store")
    prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch")
    return files_of(folder / "store")


@pytest.fixture
def environment(prefect_server: dict[str, str]) -> dict[str, str]:
    return {**prefect_server, "PYTHONPATH": str(Path.cwd()), "PREFECT_LOGGING_LEVEL": "ERROR"}


def files_of(store: Path) -> dict[str, str]:
    opened = LocalStore(store)
    return {key: sha256_of_file(opened.fetch(key)) for key in opened.list_keys("") if not key.startswith("sources/")}


def command_of(config: DataConfig, folder: Path, *dask: str, chunk_bytes: int = CHUNK_BYTES) -> list[str]:
    places = [str(folder / name) for name in ("store", "scratch", "log")]
    module = "tests.helpers.prepare_elsewhere"
    return [sys.executable, "-m", module, config.model_dump_json(), *places, str(chunk_bytes), *dask]


def units_in(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def wait_for_units(log: Path, number: int, process: "subprocess.Popen[Any]") -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(units_in(log)) < number:
        assert process.poll() is None and time.monotonic() < deadline, "the preparation ended, or did not get so far"
        time.sleep(POLL_SECONDS)  # units are begun in processes that are no children of this one


@pytest.mark.slow
def test_a_pool_whose_parent_is_killed_ends_with_it_and_costs_one_unit_for_each_process(
    config: DataConfig, undisturbed: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    with subprocess.Popen(command_of(config, tmp_path), env=environment) as process:
        wait_for_units(tmp_path / "log", 9, process)
        pool = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(pool, timeout=WAIT_SECONDS)
    assert len(pool) >= 2 and not alive
    begun = units_in(tmp_path / "log")
    subprocess.run(command_of(config, tmp_path), env=environment, check=True)
    again = units_in(tmp_path / "log")[len(begun) :]
    assert len(set(begun) & set(again)) <= 2
    assert files_of(tmp_path / "store") == undisturbed
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["fingerprints.json"]


@pytest.mark.slow
def test_a_process_that_is_killed_alone_is_one_clear_error_and_what_was_done_is_kept(
    config: DataConfig, undisturbed: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    command = command_of(config, tmp_path)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for_units(tmp_path / "log", 9, process)
        pool = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
        pool[0].kill()
        _, stderr = process.communicate(timeout=WAIT_SECONDS)
    assert len(pool) == 2 and process.returncode and "StoreError: A process that prepared data was killed" in stderr
    begun = units_in(tmp_path / "log")
    subprocess.run(command, env=environment, check=True)
    assert len(set(begun[:9]) & set(units_in(tmp_path / "log")[len(begun) :])) <= 2
    assert files_of(tmp_path / "store") == undisturbed


@pytest.mark.slow
def test_killed_at_ten_random_moments_less_than_15_percent_is_done_again(
    config: DataConfig, undisturbed: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator, command = random.Random(seed), command_of(config, tmp_path, chunk_bytes=2000)
    for _ in range(10):
        with subprocess.Popen(command, env=environment) as process:
            wait_for_units(tmp_path / "log", len(units_in(tmp_path / "log")) + generator.randint(1, 20), process)
            pool = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in pool:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        psutil.wait_procs(pool, timeout=WAIT_SECONDS)
    subprocess.run(command, env=environment, check=True)
    begun = units_in(tmp_path / "log")
    print(f"{len(begun)} units begun, {len(set(begun))} of them for the first time")
    assert len(begun) < 1.15 * len(set(begun))
    assert files_of(tmp_path / "store") == undisturbed


def test_a_unit_that_fails_in_another_process_is_the_error_that_it_is_here(
    environment: dict[str, str], tmp_path: Path
) -> None:
    columns = text_columns(400)
    columns["domain"] = ["billing"] * 400
    config = text_config(write_parquet(tmp_path / "a.parquet", columns, 50))
    (tmp_path / "a.parquet").write_bytes(damaged((tmp_path / "a.parquet").read_bytes()))
    done = subprocess.run(command_of(config, tmp_path), env=environment, check=False, stderr=subprocess.PIPE, text=True)
    assert done.returncode and "ContractError: The file" in done.stderr
    assert "a.parquet cannot be read to its end" in done.stderr


def damaged(content: bytes) -> bytes:
    """Without the rows of its first row groups."""
    return content[:4] + bytes(2000) + content[2004:]


def test_a_scheduler_that_is_not_there_is_one_clear_error(
    config: DataConfig, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_unit, "CONNECT_SECONDS", 1)
    engine = prepare_unit.PrefectUnits(config, PrepareConfig(dask=f"tcp://127.0.0.1:{find_free_port()}"))
    with pytest.raises(ConfigurationError, match=r"no Dask scheduler answers there: .*take prepare\.dask out"):
        engine.attend(lambda: None)


@pytest.fixture
def dask(environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """The address of a scheduler with two workers, and their processes."""
    pytest.importorskip("prefect_dask")
    address, log = f"tcp://127.0.0.1:{find_free_port()}", tmp_path / "dask.log"
    with ExitStack() as stack:
        dask = [sys.executable, "-m", "dask"]
        stack.enter_context(running([*dask, "scheduler", "--port", address.rpartition(":")[2], "--no-dashboard",
                                     "--host", "127.0.0.1"], environment, log))  # fmt: skip
        worker = [*dask, "worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        worker += ["--local-directory", str(tmp_path)]
        yield address, [stack.enter_context(running(worker, environment, log)) for _ in range(2)]


@pytest.mark.slow
def test_on_dask_a_worker_that_is_killed_changes_nothing(
    config: DataConfig,
    undisturbed: dict[str, str],
    environment: dict[str, str],
    dask: tuple[str, list["subprocess.Popen[bytes]"]],
    tmp_path: Path,
) -> None:
    address, workers = dask
    # So late that the worker has done many units: Dask asks again for what a worker did that is gone.
    with subprocess.Popen(command_of(config, tmp_path, address, chunk_bytes=2000), env=environment) as process:
        wait_for_units(tmp_path / "log", 30, process)
        workers[0].kill()
        assert process.wait(WAIT_SECONDS) == 0
    done = units_in(tmp_path / "log")
    # What the worker was at, and at most one more that it had just been given.
    assert len(done) - len(set(done)) <= 2
    assert files_of(tmp_path / "store") == undisturbed
