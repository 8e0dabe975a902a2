"""The flows behind the deployments, as `deployments/prefect.yaml` names them."""

from flows.prepare import prepare
from flows.resume import resume
from flows.scheduled import scheduled
from flows.scrub import scrub

__all__ = ["prepare", "resume", "scheduled", "scrub"]
