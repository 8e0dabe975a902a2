"""Imports at the top of a file that take place on first use.

A command's file imports so all that the command needs, which may take seconds to load; help, and a mistake in what was
typed, need none of it. Other modules import so what few of their callers need: boto3, Matplotlib, torch. Invariant: a
module is executed once, after its packages, by the thread that first asks it for something; others wait. Only modules
can be imported so, `from tasks.pages import tables`: a name out of a module is something that is asked for.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import RLock
from types import ModuleType
from typing import Any

_LOCK = RLock()


@contextmanager
def lazy_imports() -> Iterator[None]:
    """A block of imports: modules that were not imported before are executed when something of them is used.

    Packages are executed at once, since whatever is in them is found by them.
    """
    sys.meta_path.insert(0, _FINDER)
    try:
        yield
    finally:
        sys.meta_path.remove(_FINDER)


class _LazyModule(ModuleType):
    """A module in `sys.modules` that has its attributes from the first one on that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        with _LOCK:
            loader = self.__dict__.pop("_holdfast_loader", None)
            if loader is not None:
                _execute(self, loader)
        if name in self.__dict__:
            return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _execute(module: _LazyModule, loader: Loader) -> None:
    """Execute the module; if that fails, the next use tries again and fails in the same way."""
    try:
        loader.exec_module(module)
    except BaseException:
        module.__dict__["_holdfast_loader"] = loader
        raise


class _LazyLoader(Loader):
    """Makes the module, and leaves its execution to its first use."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # As if it had been loaded without delay, for inspect, pickle and tracebacks.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__dict__["_holdfast_loader"] = self._loader


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path)
        is_module = spec is not None and spec.submodule_search_locations is None
        if spec is None or not is_module or not isinstance(spec.loader, SourceFileLoader):
            return None  # as without this finder
        spec.loader = _LazyLoader(spec.loader)
        return spec


_FINDER = _Finder()
