"""Where Prefect and the command `holdfast` enter: the only name of the project that a folder of a user's does not have.

Prefect imports a deployment's entrypoint with the working directory first on the path, and `flows`, `tasks`, `training`
and `storage` are names that a user's own folders may have. Invariant: whoever imports a module of this package has
these four names bound to this installation from then on, whatever comes first on the path. It loads nothing else.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bind_packages(root: Path) -> None:
    """Import the four packages from the folder `root`, ahead of all others of these names.

    Raises `ImportError` if this process has imported another package of one of these names before.
    """
    sys.path.insert(0, str(root))
    try:
        # Not at the top: only now does the right folder come first. From here on Python finds them by sys.modules.
        import flows
        import storage
        import tasks
        import training
    finally:
        sys.path.remove(str(root))
    for package in (flows, storage, tasks, training):
        expected = root / package.__name__ / "__init__.py"
        if not package.__file__ or Path(package.__file__).resolve() != expected.resolve():
            raise ImportError(
                f"Expected {expected} as the package {package.__name__}, found {package}, which this process imported "
                f"before. Start Holdfast in a process that does not import the other {package.__name__}, or rename it."
            )


bind_packages(ROOT)
