"""The flows behind the deployments, as `deployments/prefect.yaml` names them."""

from flows.resume import resume
from flows.scheduled import scheduled
from flows.scrub import scrub

__all__ = ["resume", "scheduled", "scrub"]
