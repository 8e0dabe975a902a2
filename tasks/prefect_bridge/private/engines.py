"""Prefect's engines: the modules that they are in, and a flow run that they leave as it is.

Importing this module loads what Prefect else loads at the first call of a flow and of a task.
"""

# FastAPI's encoders are what Prefect loads to send parameters.
import fastapi.encoders  # noqa: F401
import prefect.flow_engine
import prefect.task_engine
import prefect.utilities.visualization  # noqa: F401
from prefect.exceptions import Abort

USES = (
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.utilities.visualization",
    "prefect.exceptions.Abort",
)


def abandoned(message: str) -> BaseException:
    """What a flow raises whose state another process sets from now on: the engine sends no state at all.

    Uses `Abort`, which Prefect raises where its server tells a run to end. There is no public way to end a flow without
    a state. Without it the flow run is shown as ended while another process works for it.
    """
    return Abort(message)
