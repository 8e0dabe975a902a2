"""Finding the newest of a run's generations, of which there are ten thousand after days of training.

Invariant: the answer is that of a listing of all of them, whatever was deleted among them: what is asked is only
whether there is one behind a number, never whether a certain one is there.
"""

import re
from collections.abc import Callable
from weakref import WeakKeyDictionary

from storage.objects.store import Store

# Of one listing: as many as a bucket gives for one request.
PAGE_KEYS = 1000
# Of each opened store, by the prefix of a run's generations, the newest that was seen: the next look begins there.
_seen: WeakKeyDictionary[Store, dict[str, int]] = WeakKeyDictionary()


def find_newest_key(store: Store, prefix: str, key_of: Callable[[int], str]) -> str | None:
    """The last key with this prefix, where keys are numbered from 1 on by `key_of`; None if there is none.

    Whoever has seen one before needs one listing, of one key; others some for each doubling of their number.
    """

    def list_behind(number: int) -> list[str]:
        return list(store.list_keys(prefix, key_of(number), PAGE_KEYS))

    seen = _seen.setdefault(store, {})
    # The one that was seen is asked for too: somebody may have put an earlier state of the store in its place.
    found = list_behind(max(seen.get(prefix, 0) - 1, 0)) or list_behind(0)
    if not found:
        seen.pop(prefix, None)
        return None
    newest = _search(list_behind, found)
    seen[prefix] = _number_of(newest)
    return newest


def _search(list_behind: Callable[[int], list[str]], found: list[str]) -> str:
    """The last key, where `found` are the first ones: ahead by distances that double, then back by their halves."""
    newest, distance, is_beyond = found[-1], PAGE_KEYS, False
    while len(found) == PAGE_KEYS:
        ahead = list_behind(_number_of(newest) + distance)
        if ahead:
            found, newest = ahead, ahead[-1]
        elif distance == 0:
            break
        is_beyond = is_beyond or not ahead
        if not is_beyond:
            distance *= 2
        else:
            distance = distance // 2 if distance >= 2 * PAGE_KEYS else 0
    return newest


def _number_of(key: str) -> int:
    number = re.match(r"\d*", key.rpartition("/")[2])
    assert number is not None, "it matches an empty text"
    return int(number[0] or 0)
