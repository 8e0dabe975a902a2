"""Notices of Google Compute Engine, from the metadata server of a Spot or preemptible VM, and of one with GPUs.

Invariant: a live migration ends nothing. https://docs.cloud.google.com/compute/docs/instances/spot gives a preempted VM
up to 30 seconds. Before a machine is stopped for maintenance of its host it has 60 seconds, one with GPUs an hour:
https://docs.cloud.google.com/compute/docs/gpus/gpu-host-maintenance.
"""

import os

from tasks.preemption.metadata import MetadataService
from tasks.preemption.notice import Notice
from tasks.text import shortened

HOST_VARIABLE = "GCE_METADATA_HOST"
HOST = "metadata.google.internal"
PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
MAINTENANCE_PATH = "/computeMetadata/v1/instance/maintenance-event"
PREEMPTED_SECONDS = 30.0


class GcpNotices:
    """Of preemption, and of maintenance for which the machine is stopped."""

    name = "Google Compute Engine's metadata server"
    least_seconds: float | None = PREEMPTED_SECONDS

    def __init__(self) -> None:
        host = os.environ.get(HOST_VARIABLE) or HOST
        self._service = MetadataService(f"http://{host}", {"Metadata-Flavor": "Google"})

    def look(self) -> Notice | None:
        if self._is_preempted():
            return Notice("Google Compute Engine preempts this machine", PREEMPTED_SECONDS)
        if self._service.read(MAINTENANCE_PATH).strip() == "TERMINATE_ON_HOST_MAINTENANCE":
            return Notice("Google Compute Engine stops this machine for maintenance, with GPUs within the hour")
        return None

    def _is_preempted(self) -> bool:
        text = self._service.read(PREEMPTED_PATH).strip()
        if text not in ("TRUE", "FALSE"):
            raise ValueError(f"expected TRUE or FALSE at {PREEMPTED_PATH}, found {shortened(text, 40)!r}")
        return text == "TRUE"
