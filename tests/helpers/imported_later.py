"""Changing a module of the product as soon as it has been imported, from outside and without importing it early."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Call `change(module)` once, when the module `name` has been executed; now, if it has been."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    sys.meta_path.insert(0, _Finder(name, change))


class _Finder(MetaPathFinder):
    """Finds one module as Python would, with a loader that does one thing more."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._change)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, change: Callable[[Any], None]) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # runpy and inspect ask the real one for more
