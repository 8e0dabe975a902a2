"""Where the ranks of a segment meet: in a file on one machine, or at an address over several.

Invariant: what is exchanged there is bytes that torch's own stores carry; nothing that is found there is unpickled.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict


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
