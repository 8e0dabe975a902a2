"""Which data set a run reads, to the byte.

A data set stands under the digest of its inputs: prepared again by other versions of the libraries, it may have other
tokens under the same digest. Invariant: a run reads the data set whose `dataset.json` has the SHA-256 in the run's
manifest; one that began before this was kept gets it there when it is continued.
"""

from storage.datasets import dataset_sha256, load_dataset
from storage.runs.run_state import RunState
from storage.runs.transitions import pin_dataset
from tasks.places import RunPlaces
from tasks.telling.announce import announce


def require_pinned_dataset(places: RunPlaces, state: RunState) -> None:
    """Raise `IncompatibleRunError` if the data set in the store is not the one that the run was begun with."""
    load_dataset(places.store, state.dataset_digest, state.dataset_sha256)


def pin_if_older(places: RunPlaces, state: RunState) -> RunState:
    """Keep the hash of the data set in the manifest of a run that began before this was done; where it stands now."""
    if state.dataset_sha256 is not None:
        return state
    sha256 = dataset_sha256(places.store, state.dataset_digest)
    announce(
        f"Run {state.run!r} was begun by an earlier version: from now on its manifest holds the SHA-256 of its data "
        f"set's dataset.json ({sha256[:16]}...), and the run reads no other data set."
    )
    return places.manifest.commit("data set pinned", pin_dataset(sha256)).state
