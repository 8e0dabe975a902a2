"""What a program gives `run` in place of files, as the command takes it: a configuration's fields, a function, a table.

Invariant: the command gets text and files alone, so a run that a program has begun can be gone on with from a terminal;
and pandas, Arrow and torch are loaded by whoever gives something of theirs, never by `import holdfast`.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from holdfast.child import HoldfastError

# Below the working directory: tables that were given, each named by its content.
TABLES_FOLDER = Path(".holdfast") / "tables"
IN_A_FILE = (
    "Put it into a file, in a notebook with %%writefile my_models.py as the first line of its cell, and give "
    'model="my_models.py:build": the ranks are processes of their own, and import it there.'
)
Model = str | Callable[..., Any]


def flattened(fields: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Fields of a configuration by their dotted names; None is one that is not set."""
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, Mapping) and prefix.count(".") < 1:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def name_of(model: Model) -> tuple[str, list[str]]:
    """A function as model.factory names it, and folders in which its package is found besides.

    Raises `HoldfastError` for one that is in no file.
    """
    if isinstance(model, str):
        if model.startswith("__main__:"):
            raise _refused(f"model is {model!r}, which is in no file. {IN_A_FILE}")
        return model, []
    name, module = getattr(model, "__qualname__", ""), getattr(model, "__module__", "")
    if not callable(model) or not name.isidentifier():
        raise _refused(f"model is {model!r}, expected a function at the outermost level of a module. {IN_A_FILE}")
    if module == "__main__":
        raise _refused(f"model is the function {name!r} of the program itself or of a notebook's cell. {IN_A_FILE}")
    try:
        file = inspect.getfile(inspect.unwrap(model))
    except TypeError:
        raise _refused(f"model is {model!r}, whose file is not known. {IN_A_FILE}") from None
    if "." not in module:
        return f"{Path(file).absolute()}:{name}", []
    package = sys.modules[module.partition(".")[0]]
    return f"{module}:{name}", [str(Path(folder).resolve().parent) for folder in package.__path__]


def source_of(data: object) -> str:
    """A path as it is; a table of pandas, Arrow or polars as the path of a Parquet file that has its rows."""
    if isinstance(data, str | PathLike):
        return os.fspath(data)
    import pyarrow as pa  # a second, and only here
    import pyarrow.parquet as pq

    try:
        # pandas' index is no column of the data.
        is_pandas = type(data).__module__.partition(".")[0] == "pandas"
        table = pa.Table.from_pandas(data, preserve_index=False) if is_pandas else pa.table(data)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise _refused(
            f"data is {type(data).__name__}, expected the path of a table, or a table of pandas or Arrow: {error}"
        ) from None
    table = table.combine_chunks().replace_schema_metadata(None)
    path = TABLES_FOLDER / f"{_content_of(table)[:32]}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        with beside.open("wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())  # before it has its name, under which it is never looked into again
        beside.replace(path)
    return str(path)


def _content_of(table: Any) -> str:
    import pyarrow as pa  # as above

    digest = hashlib.sha256()

    class Sink:
        """Where Arrow writes what is hashed."""

        closed = False

        def write(self, data: Any) -> int:
            digest.update(data)
            return len(data)

        def flush(self) -> None: ...

        def close(self) -> None: ...

    with pa.ipc.new_stream(Sink(), table.schema) as writer:
        writer.write_table(table)
    return digest.hexdigest()


def _refused(message: str) -> HoldfastError:
    return HoldfastError(message, "ConfigurationError", 2)
