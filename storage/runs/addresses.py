"""From an address a user types to a run, or to a whole store.

Invariant: a run is where a manifest is. The form of an address does not decide: a store may itself be in a folder
called `runs`, and then its address looks like that of a run.
"""

from storage.errors import RunMissingError
from storage.objects.addresses import find_run_address, open_store
from storage.objects.store import Store
from storage.runs.manifest import Manifest, find_runs


def find_target(text: str) -> tuple[Store, str | None]:
    """The store that an address names, and the run if it names one.

    An address that has not the form of a run's is taken for a store's, whether there are runs in it or not. Raises
    `RunMissingError` if it has the form and is neither, `ConfigurationError` if no store can be meant.
    """
    address = find_run_address(text)
    if address is None:
        return open_store(text), None
    store, run = address
    if Manifest(store, run).exists():
        return address
    other = open_store(text)
    if find_runs(other):
        return other, None
    raise RunMissingError(
        f"There is no run {run!r} in {store.address}, and no store with runs at {other.address}. Check the address, "
        "which for a run is STORE/runs/NAME, or start it with `holdfast run`."
    )
