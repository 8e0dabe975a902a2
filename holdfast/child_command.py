"""The command `holdfast`, as `holdfast.child` starts it: it ends in good order when its parent dies."""

import os

import holdfast.own_packages  # noqa: F401 - before all others: it decides which packages the next lines import
from flows.cli import main
from holdfast.child import PARENT
from training.stopping import follow_parent

if __name__ == "__main__":
    follow_parent(int(os.environ.pop(PARENT)))
    main()
