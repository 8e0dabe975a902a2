"""The folder of an audit: gone at its end, or by the next audit if its process was killed."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from storage.errors import StoreError
from tasks.audits.workplace import working_folder, workplace
from tests.helpers.commands import ROOT

WAIT = """
import sys
from tasks.audits.workplace import working_folder
with working_folder() as folder:
    (folder / "rows.parquet").write_bytes(b"rows")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_the_folder_of_an_audit_that_was_killed_is_removed_by_the_next_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    other = tmp_path / "holdfast-audit-file"
    other.write_text("no folder")
    line = [sys.executable, "-c", WAIT]
    with subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as audit:
        assert audit.stdout is not None
        folder = Path(audit.stdout.readline().strip())
        with working_folder() as own:
            assert own != folder and (folder / "rows.parquet").exists()
        assert not own.exists()
        audit.send_signal(signal.SIGKILL)
        audit.wait()
        assert folder.exists()
        with working_folder():
            assert not folder.exists()
    assert list(tmp_path.iterdir()) == [other]


def test_with_scratch_nothing_is_written_where_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with workplace("1GiB", tmp_path / "scratch" / "data") as (connection, folder):
        ((spill,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
        assert Path(spill).parent == folder and folder.parent == tmp_path / "scratch" / "data"
    assert not folder.exists()


def test_a_scratch_that_is_no_folder_is_one_error_that_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="set scratch to another one"), working_folder(tmp_path / "file"):
        pass
