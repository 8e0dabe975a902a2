"""A store in a folder of which some reads fail, as those of a disk or a mount do for a while or for good."""

from pathlib import Path

from storage.objects.local_store import LocalStore


class FailingStore(LocalStore):
    """Below `checkpoints/`, or the folder `path`, the first reads fail with `number`; None: all of them."""

    def __init__(self, root: Path, number: int, failures: int | None, path: str = "/checkpoints/") -> None:
        super().__init__(root)
        self.number, self.failures, self.path = number, failures, path

    def read(self, key: str) -> bytes:
        self._fail(key)
        return super().read(key)

    def fetch(self, key: str, is_checked: bool = False) -> Path:
        self._fail(key)
        return super().fetch(key, is_checked)

    def _fail(self, key: str) -> None:
        if self.path not in f"/{key}" or self.failures == 0:
            return
        self.failures = None if self.failures is None else self.failures - 1
        raise OSError(self.number, "told to fail", key)
