"""Private parts of Prefect are used in one room alone, which says what breaks without them.

Each of them is looked at in the installed version by `tasks/prefect_bridge/test_private_parts.py`.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_project import MODULES, PACKAGES, called_name, parse

# What may be used of Prefect anywhere: modules of its documentation, and of some only these names. All else is private.
PRIVATE_PREFECT = Path("tasks/prefect_bridge/private")
PUBLIC_PREFECT: dict[str, set[str] | None] = {
    "prefect": {"flow", "task", "tags", "State"},
    "prefect.automations": None,
    "prefect.blocks": {"notifications"},
    "prefect.blocks.abstract": {"NotificationBlock"},
    "prefect.blocks.core": {"Block", "UnknownBlockType"},
    "prefect.cache_policies": None,
    "prefect.client.orchestration": {"SyncPrefectClient", "get_client"},
    "prefect.client.schemas.actions": None,
    "prefect.client.schemas.filters": None,
    "prefect.client.schemas.objects": None,
    "prefect.client.schemas.responses": None,
    "prefect.client.schemas.schedules": None,
    "prefect.context": {"FlowRunContext", "TaskRunContext"},
    "prefect.events": None,
    "prefect.events.actions": None,
    "prefect.exceptions": {"ObjectNotFound", "PrefectException", "PrefectHTTPStatusError"},
    "prefect.futures": None,
    "prefect.runtime": None,
    "prefect.settings": {
        "PREFECT_API_SSL_CERT_FILE", "PREFECT_API_TLS_INSECURE_SKIP_VERIFY", "PREFECT_API_URL",
        "PREFECT_CLIENT_MAX_RETRIES", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "temporary_settings",
    },
    "prefect.states": None,
    "prefect.task_runners": None,
    "prefect_dask.task_runners": {"DaskTaskRunner"},
}  # fmt: skip
# Of objects of Prefect's, whatever the variable is called.
PRIVATE_ATTRIBUTES = {"__var__", "flow_run_suspension_request", "copy_with_update"}
NAMES_OF_PYTHON = {"__name__", "__doc__", "__dict__"}
HTTP_METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE"}
# In text that another process executes, or that is looked up by its name.
PRIVATE_IN_TEXT = re.compile(r"\bprefect\.(_|(server|utilities|flow_engine|task_engine)\b|client\.base\b)|alembic")


@pytest.mark.parametrize("package", PACKAGES)
def test_private_parts_of_prefect_are_used_in_one_room_alone(package: str) -> None:
    others = [module for module in MODULES if module.parts[0] == package and module.parent != PRIVATE_PREFECT]
    assert {str(module): found for module in others if (found := private_prefect_in(parse(module)))} == {}


def test_each_module_of_that_room_uses_a_private_part_of_prefect() -> None:
    modules = [module for module in MODULES if module.parent == PRIVATE_PREFECT and module.stem != "__init__"]
    assert modules and [str(module) for module in modules if not private_prefect_in(parse(module))] == []


@pytest.mark.parametrize(
    "code",
    [
        "import prefect.flow_engine",
        "import prefect.server.api.server as server",
        "from prefect._internal import concurrency",
        "from prefect.context import SettingsContext",
        "from prefect.settings import get_current_settings",
        "from prefect.exceptions import Abort",
        "from prefect.utilities.callables import parameter_schema",
        "from prefect import task\ntask._run_name",
        "client.request('POST', '/automations/filter', json={})",
        "context.flow_run_suspension_request",
        "with context.model_copy(update={'flow_run_suspension_request': None}): ...",
        "from prefect.context import TaskRunContext\nTaskRunContext.get().task_run.name = 'another'",
        "run(['-m', 'uvicorn', 'prefect.server.api.server:create_app'])",
        "connection.execute('select version_num from alembic_version')",
    ],
)
def test_a_private_part_of_prefect_would_be_noticed(code: str) -> None:
    assert private_prefect_in(ast.parse(code))


def test_a_public_part_of_prefect_is_used_freely() -> None:
    code = """
        "What prefect.server does."
        from prefect.context import FlowRunContext
        from prefect.settings import PREFECT_API_URL
        class Own:
            def name(self): return self._name, FlowRunContext.get().flow_run.id, PREFECT_API_URL.value()
    """
    assert private_prefect_in(ast.parse(textwrap.dedent(code))) == []


def private_prefect_in(tree: ast.Module) -> list[str]:
    """The private parts of Prefect that a module uses, each with its line."""
    all_nodes = list(ast.walk(tree))
    modules = {alias.name for node in all_nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in all_nodes if isinstance(node, ast.ImportFrom)}
    knows_prefect = any(module.partition(".")[0] == "prefect" for module in modules)
    docstrings = {id(node.value) for node in all_nodes if isinstance(node, ast.Expr)}
    texts = [node for node in all_nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    found = [(node, name) for node in all_nodes for name in private_imports(node)]
    found += [(node, name) for node in all_nodes for name in private_uses(node, knows_prefect)]
    found += [(text, text.value) for text in texts if isinstance(text.value, str) and is_private_text(text.value)]
    return [f"line {getattr(node, 'lineno', 0)}: {name}" for node, name in found]


def private_imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("prefect."))
    elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ("prefect", "prefect_dask"):
        public = PUBLIC_PREFECT.get(str(node.module), set())
        for alias in node.names:
            if alias.name.startswith("_") or (public is not None and alias.name not in public):
                yield f"{node.module}.{alias.name}"


def private_uses(node: ast.AST, knows_prefect: bool) -> Iterator[str]:
    """Attributes, requests past the calls of a client, and what is written into a run that Prefect's engine has."""
    if isinstance(node, ast.Attribute):
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        is_underscored = node.attr.startswith("_") and node.attr not in NAMES_OF_PYTHON and not is_own
        if node.attr in PRIVATE_ATTRIBUTES or (knows_prefect and is_underscored):
            yield node.attr
        owner = getattr(node.value, "attr", "")
        if isinstance(node.ctx, ast.Store) and owner in ("task_run", "flow_run"):
            yield f"{owner}.{node.attr} = ..."
    elif called_name(node) == "request" and isinstance(node, ast.Call) and node.args:
        method = node.args[0]
        if isinstance(method, ast.Constant) and method.value in HTTP_METHODS:
            yield "client.request"


def is_private_text(text: str) -> bool:
    return bool(PRIVATE_IN_TEXT.search(text)) or text in PRIVATE_ATTRIBUTES
