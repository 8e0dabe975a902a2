"""Each private part of Prefect that we use is there, in the installed version, with the shape that we need.

Another version of Prefect that lacks one fails here, by the name of the part, and not in the middle of a run.
"""

import ast
import inspect
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastapi
import prefect._flow_run_suspension as flow_run_suspension
import prefect.context as context
import prefect.exceptions as exceptions
import pytest
from prefect import tags
from prefect._internal.concurrency import threads
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, Settings
from prefect.transactions import Transaction, get_transaction

import tasks.prefect_bridge.private as private
from tasks.prefect_bridge.private import (
    client_settings,
    contexts,
    engines,
    local_server,
    process_end,
    server_requests,
    suspensions,
)
from tests.helpers.prefect_server import put_empty_database

MODULES = (client_settings, contexts, engines, local_server, process_end, server_requests, suspensions)


def context_variable(variable: Any, find: Callable[[], Any]) -> None:
    """What is set is what Prefect finds."""
    assert isinstance(variable, ContextVar)
    token = variable.set("around")
    try:
        assert find() == "around"
    finally:
        variable.reset(token)


def name_of_a_task_run() -> None:
    assert context.TaskRunContext.model_fields["task_run"].annotation is TaskRun
    assert not TaskRun.model_config.get("frozen")


def tags_context() -> None:
    with tags("of-a-flow-run"):
        assert context.TagsContext.get().current_tags == {"of-a-flow-run"}
        with context.TagsContext(current_tags=set()):
            assert context.TagsContext.get().current_tags == set()
        assert context.TagsContext.get().current_tags == {"of-a-flow-run"}


def suspension_request() -> None:
    request = flow_run_suspension.FlowRunSuspensionRequest()
    assert not request.is_requested()
    request.raise_if_requested()
    request.mark_requested(State(type="PAUSED", name="Suspended"))
    assert request.is_requested()
    with pytest.raises(exceptions.Pause):
        request.raise_if_requested()


def request_of_a_flow_run() -> None:
    """The engines ask the context that is around them, so that a copy with another request hides the first."""
    field = context.FlowRunContext.model_fields["flow_run_suspension_request"]
    assert field.annotation is flow_run_suspension.FlowRunSuspensionRequest
    request, other = flow_run_suspension.FlowRunSuspensionRequest(), flow_run_suspension.FlowRunSuspensionRequest()
    request.mark_requested(State(type="PAUSED", name="Suspended"))
    around = flow_run_context(flow_run_suspension_request=request)
    with around, around.model_copy(update={"flow_run_suspension_request": other}):
        flow_run_suspension.raise_if_flow_run_suspension_requested()
    with around, pytest.raises(exceptions.Pause):
        flow_run_suspension.raise_if_flow_run_suspension_requested()


def copy_of_a_flow_runs_context() -> None:
    """It can be entered within the context that it was copied from."""
    around = flow_run_context(flow_run=FlowRun(flow_id=uuid4()))
    with around, around.model_copy(update={}) as copy:
        assert context.FlowRunContext.get() is copy and copy.flow_run is around.flow_run
    assert context.FlowRunContext.get() is None


def flow_run_context(**parts: Any) -> context.FlowRunContext:
    """With these parts and no others."""
    return context.FlowRunContext.model_construct(**parts)


def settings_context() -> None:
    now = context.get_settings_context()
    changed = now.settings.copy_with_update({PREFECT_CLIENT_MAX_RETRIES: 0})
    with context.SettingsContext(profile=now.profile, settings=changed):
        assert PREFECT_CLIENT_MAX_RETRIES.value() == 0
    assert PREFECT_CLIENT_MAX_RETRIES.value() == now.settings.client.max_retries


def settings_of_a_context() -> None:
    assert isinstance(context.get_settings_context().settings, Settings)


def copy_of_settings() -> None:
    settings = context.get_settings_context().settings
    changed = settings.copy_with_update({PREFECT_CLIENT_MAX_RETRIES: settings.client.max_retries + 1})
    assert changed.client.max_retries == settings.client.max_retries + 1


def abort() -> None:
    """An engine lets it through, and it is no error that a flow of ours catches."""
    assert issubclass(exceptions.Abort, BaseException) and not issubclass(exceptions.Abort, Exception)
    assert str(engines.abandoned("handed over")) == "handed over"


def loop_of(variable: str, find: Callable[[], Any]) -> None:
    """What begins a loop puts it there."""
    loop = find()
    assert getattr(threads, variable) is loop
    assert loop.thread.is_alive() and callable(loop.shutdown)


def client_request() -> None:
    parameters = inspect.signature(SyncPrefectClient.request).parameters
    assert list(parameters)[:3] == ["self", "method", "path"]
    assert {"path_params", "kwargs"} <= parameters.keys()


def application() -> None:
    """As uvicorn makes it from its name."""
    import prefect.server.api.server as server  # seconds: only this test needs it

    assert callable(server.create_app)
    required = [one for one in inspect.signature(server.create_app).parameters.values() if one.default is one.empty]
    assert required == []


def routers() -> None:
    """The server reads them by this name, in whatever order they are."""
    import prefect.server.api.server as server  # as above

    assert isinstance(server.API_ROUTERS, tuple)
    assert all(isinstance(router, fastapi.APIRouter) for router in server.API_ROUTERS)
    assert set(local_server.ASKED_FIRST) <= {router.prefix for router in server.API_ROUTERS}
    assert "API_ROUTERS" in inspect.getsource(server.create_api_app)


def tables(folder: Path) -> None:
    put_empty_database(folder)
    assert local_server.is_whole(folder / "prefect.db")
    sqlite3.connect(folder / "begun.db").execute("create table alembic_version (version_num text)")
    assert not local_server.is_whole(folder / "begun.db")


PARTS: dict[str, Callable[[], None]] = {
    "prefect.context.TaskRunContext.__var__": lambda: context_variable(
        context.TaskRunContext.__var__, context.TaskRunContext.get
    ),
    "prefect.context.TaskRunContext.task_run.name": name_of_a_task_run,
    "prefect.context.TagsContext": tags_context,
    "prefect.transactions.Transaction.__var__": lambda: context_variable(Transaction.__var__, get_transaction),
    "prefect._flow_run_suspension.FlowRunSuspensionRequest": suspension_request,
    "prefect.context.FlowRunContext.flow_run_suspension_request": request_of_a_flow_run,
    "prefect.context.FlowRunContext.model_copy": copy_of_a_flow_runs_context,
    "prefect.context.SettingsContext": settings_context,
    "prefect.context.get_settings_context": settings_of_a_context,
    "prefect.settings.Settings.copy_with_update": copy_of_settings,
    "prefect.flow_engine": lambda: require_module("prefect.flow_engine"),
    "prefect.task_engine": lambda: require_module("prefect.task_engine"),
    "prefect.utilities.visualization": lambda: require_module("prefect.utilities.visualization"),
    "prefect.exceptions.Abort": abort,
    "prefect._internal.concurrency.threads._run_sync_loop": lambda: loop_of(
        "_run_sync_loop", threads.get_run_sync_loop
    ),
    "prefect._internal.concurrency.threads._global_loop": lambda: loop_of("_global_loop", threads.get_global_loop),
    "prefect.client.orchestration.SyncPrefectClient.request": client_request,
    "prefect.server.api.server.create_app": application,
    "prefect.server.api.server.API_ROUTERS": routers,
}
TABLES = "prefect.server.database alembic_version"


def require_module(name: str) -> None:
    assert find_spec(name) is not None


@pytest.mark.parametrize("part", PARTS)
def test_a_private_part_of_prefect_is_there_as_it_is_needed(part: str) -> None:
    PARTS[part]()


def test_the_tables_of_prefects_database_are_known_by_the_number_of_their_version(tmp_path: Path) -> None:
    tables(tmp_path)


def test_each_part_that_a_module_uses_is_looked_at_here() -> None:
    named = [part for module in MODULES for part in module.USES]
    assert len(named) == len(set(named))
    assert set(named) == {*PARTS, TABLES}
    files = {path.stem for path in Path(private.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == {module.__name__.rpartition(".")[2] for module in MODULES}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_function_says_what_it_uses_and_what_breaks_without_it(module: Any) -> None:
    tree = ast.parse(inspect.getsource(module))
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    assert public
    for function in public:
        said = ast.get_docstring(function) or ""
        assert any(word in said for word in ("Uses", "Asks", "Reads")), function.name
        assert "Without it" in said or "If it goes" in said or "goes, " in said, function.name


def test_a_step_sees_no_tags_and_no_transaction_and_a_task_that_is_handed_on_no_task() -> None:
    with tags("of-a-flow-run"), contexts.without_tags():
        assert context.TagsContext.get().current_tags == set()
    around = Transaction(key="around")
    token = Transaction.__var__.set(around)
    try:
        with contexts.outside_of_transactions():
            assert get_transaction() is None
        assert get_transaction() is around
    finally:
        Transaction.__var__.reset(token)
    with contexts.outside_of_tasks():
        assert context.TaskRunContext.get() is None


def test_a_client_asks_once_within_the_block_and_as_before_after_it() -> None:
    before = PREFECT_CLIENT_MAX_RETRIES.value()
    with client_settings.without_retries():
        assert PREFECT_CLIENT_MAX_RETRIES.value() == 0
    assert PREFECT_CLIENT_MAX_RETRIES.value() == before > 0


def test_the_module_about_a_local_server_loads_nothing_of_prefect() -> None:
    """It is begun before Prefect is loaded, which takes seconds."""
    code = "import sys, tasks.prefect_bridge.private.local_server; print([n for n in sys.modules if 'prefect.' in n])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [name for name in ast.literal_eval(said) if not name.startswith("tasks.")] == []
