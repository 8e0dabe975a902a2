"""Notices of Azure: scheduled events, from the instance metadata service.

Invariant: an event counts only if it names this machine, since all machines of a scale set or an availability set are
told of each other's. https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events says which there
are, and leaves at least 30 seconds for Preempt, 5 minutes for Terminate, 10 for Redeploy and 15 for Reboot.
"""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pydantic import BaseModel, Field

from tasks.preemption.metadata import MetadataService
from tasks.preemption.notice import Notice
from tasks.text import shortened

ENDPOINT = "http://169.254.169.254"
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
MACHINE_NAME = re.compile(r"[\w.-]+")
# What no process survives. Freeze is a pause of seconds, after which all goes on.
ENDS = ("Preempt", "Terminate", "Redeploy", "Reboot")


class _Event(BaseModel):
    kind: str = Field(alias="EventType")
    not_before: str = Field("", alias="NotBefore")  # empty when it has begun
    machines: list[str] = Field([], alias="Resources")

    def names(self, machine: str) -> bool:
        return machine in [name.lower() for name in self.machines]

    def seconds_left(self) -> float:
        if not self.not_before:
            return 0.0
        return max(0.0, (parsedate_to_datetime(self.not_before) - datetime.now(UTC)).total_seconds())


class _Events(BaseModel):
    events: list[_Event] = Field(alias="Events")


class AzureNotices:
    """Asks for the machine's own name once."""

    name = "Azure's instance metadata service"
    least_seconds: float | None = 30.0

    def __init__(self, endpoint: str) -> None:
        self._service = MetadataService(endpoint, {"Metadata": "true"})
        self._machine: str | None = None

    def look(self) -> Notice | None:
        if self._machine is None:
            self._machine = self._read_name()
        found = _Events.model_validate_json(self._service.read(EVENTS_PATH)).events
        ends = [event for event in found if event.kind in ENDS and event.names(self._machine)]
        if not ends:
            return None
        first = min(ends, key=_Event.seconds_left)
        when = f"not before {shortened(first.not_before, 40)}" if first.not_before else "it has begun"
        return Notice(f"Azure announces for this machine: {first.kind}, {when}", first.seconds_left())

    def _read_name(self) -> str:
        name = self._service.read(NAME_PATH).strip()
        if not MACHINE_NAME.fullmatch(name):
            raise ValueError(f"expected the name of this machine at {NAME_PATH}, found {shortened(name, 40)!r}")
        return name.lower()
