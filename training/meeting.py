"""Where the ranks of a segment meet: in a file on one machine, or at an address over several.

Invariant: what is exchanged there is bytes that torch's own stores carry; nothing that is found there is unpickled.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Address(BaseModel):
    """Where a socket listens: an IPv4 address and a port."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: int


class Meeting(BaseModel):
    """A file in a folder of this user alone; or the address and port of the first node.

    `listening` is the number of a socket that listens there already, in the processes of that node alone: its first
    rank hosts the store on it. So no other process can take the port, and who connects early waits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path | None = None
    address: str | None = None
    port: int | None = None
    listening: int | None = None
    ear: Address | None = None
    segment: str = ""


def note_met(folder: Path, slot: int) -> None:
    """Note that this rank has met the others: from now on it notices when one is gone. Raises `OSError`."""
    _note_of(folder, slot).touch()


def has_met(folder: Path, slot: int) -> bool:
    """Whether the rank that was begun with this number has met the others."""
    return _note_of(folder, slot).exists()


def forget_met(folder: Path, slot: int) -> None:
    """Take the note of a launch before away, under the same fence. Raises `OSError`."""
    _note_of(folder, slot).unlink(missing_ok=True)


def _note_of(folder: Path, slot: int) -> Path:
    return folder / f"met-{slot:04d}"
