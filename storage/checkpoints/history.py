"""Loss curve and validations up to a checkpoint: what its `state.json` has, and the parts of the history before.

Invariant: reads only. The parts are written with a save, by `training/checkpointing`.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

from storage.objects.history import HistoryContent, HistoryPart, walk_history
from storage.objects.store import Store

ENTRIES = ("loss", "gradient_norm", "validation")


def newest_part_of(state: Mapping[str, Any]) -> HistoryPart | None:
    """The newest part that a checkpoint's `state.json` names, or None while it holds all of the history itself."""
    stated = state.get("history", {}).get("earlier")
    return None if stated is None else HistoryPart.model_validate(stated)


def read_whole_history(
    store: Store, state: Mapping[str, Any], known: MutableMapping[HistoryPart, HistoryContent] | None = None
) -> dict[str, list[Any]]:
    """Loss curve and validations of a checkpoint's `state.json` from step 0 on. Raises `CorruptObjectError`.

    Parts that are `known` are not read again. `loss` has points (step, mean loss, learning rate), `gradient_norm`
    (step, norm before it was clipped), `validation` the metrics of each by step.
    """
    parts = [content.entries for content in walk_history(store, newest_part_of(state), known)][::-1]
    parts.append(state["history"])
    return {name: [entry for part in parts for entry in part[name]] for name in ENTRIES}
