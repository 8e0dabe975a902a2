"""The packages `flows`, `storage`, `tasks` and `training` of this installation, for a process that is Holdfast's own.

A user's own folders may have these names, and Prefect imports a deployment's entrypoint with the working directory
first on the path. Invariant: a process that has imported this module has the four names bound to this installation from
then on, whatever comes first on the path. `import holdfast` alone does not import it: a user's process keeps its names.
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
