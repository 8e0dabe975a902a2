"""A store of which the manifest is misread for a while: what is on its disk is sound."""

from collections.abc import Iterator
from pathlib import Path

from storage.objects.local_store import LocalStore


class MisreadManifests(LocalStore):
    """Gives generations with a flipped bit, `times` times, as bad memory does, or a cache."""

    def __init__(self, root: Path, times: int) -> None:
        super().__init__(root)
        self.num_left = times

    def read(self, key: str) -> bytes:
        return self._spoilt(key, super().read(key))

    def read_chunks(self, key: str) -> Iterator[bytes]:
        yield self._spoilt(key, b"".join(super().read_chunks(key)))

    def _spoilt(self, key: str, data: bytes) -> bytes:
        if "/manifest/" not in key or not self.num_left:
            return data
        self.num_left -= 1
        return bytes([data[0] ^ 1]) + data[1:]
