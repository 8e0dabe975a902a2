"""The flows behind the deployments, as `deployments/prefect.yaml` names them."""

from flows.audit import audit
from flows.drill import drill
from flows.evaluate import evaluate
from flows.export import export
from flows.prepare import prepare
from flows.report import report
from flows.resume import resume
from flows.scheduled import scheduled
from flows.scrub import scrub

__all__ = ["audit", "drill", "evaluate", "export", "prepare", "report", "resume", "scheduled", "scrub"]
