"""A folder and a job that the store names are left alone unless they have the names that this run gives."""

from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from storage.runs.run_state import JobRecord
from tasks.launching.kubernetes.jobset import jobset_name
from tasks.launching.launchers import release_job
from tasks.launching.own_folders import why_not_own
from tasks.launching.slurm.submission import job_name


def test_a_scratch_that_is_itself_behind_a_link_is_the_users_choice(tmp_path: Path) -> None:
    scratch = tmp_path / "link" / "runs" / "run"
    (tmp_path / "disk" / "runs" / "run" / "00000003").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert why_not_own(scratch / "00000003", scratch) is None
    assert why_not_own(tmp_path / "disk" / "runs" / "run" / "00000003", scratch) is None


def test_no_job_of_another_name_is_ended(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("somebodys-job", job_name(store, "other", 3), job_name(LocalStore(tmp_path / "other"), "run", 3)):
        with pytest.raises(ConfigurationError, match="this one is left alone"):
            release_job(JobRecord(kind="slurm", name=name), store, "run", 3)
    assert jobset_name(store, "run", 3) != job_name(store, "run", 3)
