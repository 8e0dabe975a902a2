"""Finding the newest of a run's generations, of which there are ten thousand after days of training.

Invariant: the answer is that of a listing of all of them, whatever was deleted among them: what is asked is only
whether there is one behind a number, never whether a certain one is there. Except where a listing lags, as that of a
network file system may for half a minute: then it is the newest one that was met through the same opened store.
"""

import re
from collections.abc import Callable
from weakref import WeakKeyDictionary

from storage.errors import ObjectMissingError
from storage.objects.store import Store

# Numbers have 12 digits. Further ahead are only files of other names.
MOST_GENERATIONS = 10**12
# Of each opened store, by the prefix of a run's generations, the newest that was met: the next look begins there.
_met: WeakKeyDictionary[Store, dict[str, int]] = WeakKeyDictionary()


def find_newest_key(store: Store, prefix: str, key_of: Callable[[int], str]) -> str | None:
    """The last key with this prefix, where keys are numbered from 1 on by `key_of`; None if there is none.

    Whoever has met one before needs one listing, of two keys; others one in a folder, and in a bucket one or two,
    of one key, for each doubling of their number, between two of a page.
    """
    met = _met.get(store, {}).get(prefix, 0)
    # The one that was met is asked for too: somebody may have put an earlier state of the store in its place.
    found = _list_behind(store, prefix, key_of(max(met - 1, 0)))
    if not found and met > 0:
        if _is_there(store, key_of(met)):
            return key_of(met)
        _met[store].pop(prefix, None)
        found = _list_behind(store, prefix, "")
    if not found:
        return None
    newest, page_keys = found[-1], store.page_keys
    if len(found) == page_keys:
        newest = _search(store, prefix, key_of, newest, page_keys)
    met_generation(store, prefix, _number_of(newest))
    return newest


def met_generation(store: Store, prefix: str, number: int) -> None:
    """Remember that there is one of this number: no later look gives an older one, unless this one is gone."""
    known = _met.setdefault(store, {})
    known[prefix] = max(number, known.get(prefix, 0))


def _search(store: Store, prefix: str, key_of: Callable[[int], str], newest: str, page_keys: int) -> str:
    """The last key, where `newest` is one of them: ahead by distances that double, back by halves, then by pages."""

    def step_ahead(by: int) -> bool:
        nonlocal newest
        behind = list(store.list_keys(prefix, key_of(_number_of(newest) + by), most=1))
        newest = behind[0] if behind else newest
        return bool(behind)

    distance = page_keys
    while distance < MOST_GENERATIONS and step_ahead(distance):
        distance *= 2
    while distance > page_keys:
        distance //= 2
        step_ahead(distance)
    while found := _list_behind(store, prefix, newest):
        newest = found[-1]
        if len(found) < page_keys:
            break
    return newest


def _list_behind(store: Store, prefix: str, key: str) -> list[str]:
    return list(store.list_keys(prefix, key, store.page_keys))


def _is_there(store: Store, key: str) -> bool:
    try:
        store.open(key).close()
    except ObjectMissingError:
        return False
    return True


def _number_of(key: str) -> int:
    number = re.match(r"\d*", key.rpartition("/")[2])
    assert number is not None, "it matches an empty text"
    return int(number[0] or 0)
