"""How many GPUs there are is what the installed torch says."""

from pathlib import Path

import pytest

from tasks.supervision.gpus import count_gpus

NOT_TORCH = """
class cuda:
    @staticmethod
    def device_count():
        return 77
"""


def test_a_file_of_the_users_with_the_name_of_a_library_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(NOT_TORCH)
    monkeypatch.chdir(tmp_path)
    assert count_gpus() < 77
