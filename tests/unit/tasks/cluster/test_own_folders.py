"""A folder and a job that the store names are left alone unless they have the names that this run gives."""

from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from storage.runs.run_state import JobRecord
from tasks.cluster.kubernetes.jobset import jobset_name
from tasks.cluster.launchers import release_job
from tasks.cluster.own_folders import require_own_folder, why_not_own
from tasks.cluster.slurm.submission import job_name


@pytest.mark.parametrize(
    "folder",
    ["/home/me", "/home/me/00000003", "/s/runs/run/00000004", "/s/runs/other/00000003", "/s/runs/run/../run/00000003"],
)
def test_a_node_works_only_where_a_segment_of_its_run_has_its_folder(folder: str) -> None:
    with pytest.raises(ValueError, match="is to be SCRATCH/runs/run/00000003"):
        require_own_folder(Path(folder), "run", 3)


def test_a_node_works_in_its_own_folder_unless_that_is_behind_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run" / "00000003"
    require_own_folder(folder, "run", 3)
    require_own_folder(folder.with_name("evaluation-00000003"), "run", 3)
    (tmp_path / "home" / "00000003").mkdir(parents=True)
    folder.parent.parent.mkdir()
    folder.parent.symlink_to(tmp_path / "home")
    with pytest.raises(ValueError, match="through the link"):
        require_own_folder(folder, "run", 3)


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
