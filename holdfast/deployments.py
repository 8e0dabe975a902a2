"""The flows behind the deployments, as `deployments/prefect.yaml` names them."""

import holdfast.own_packages  # noqa: F401 - before all others: it decides which packages the next lines import
from flows.deployments import audit, drill, evaluate, export, report, scrub
from flows.prepare import prepare
from flows.resume import resume
from flows.scheduled import scheduled
from tasks.prefect_bridge.private.process_end import end_loops_at_exit

__all__ = ["audit", "drill", "evaluate", "export", "prepare", "report", "resume", "scheduled", "scrub"]

end_loops_at_exit()
