"""Which names a glob matches, on this machine and in a bucket alike.

Invariant: `*` matches within one part, `**` any number of folders; neither of them what begins with a dot.
"""

import fnmatch
from collections.abc import Sequence

ANY_FOLDERS = "**"


def is_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches as `glob.glob` would have it: `**` is any number of folders, none of them hidden."""
    if not pattern:
        return not parts
    if pattern[0] == ANY_FOLDERS:
        if len(pattern) > 1 and is_match(parts, pattern[1:]):
            return True
        if not parts or parts[0].startswith("."):
            return False
        return is_match(parts[1:], pattern) or len(parts) == len(pattern) == 1
    return bool(parts) and _is_part(parts[0], pattern[0]) and is_match(parts[1:], pattern[1:])


def may_lead_to_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether something in the folder with these parts, or below it, may match."""
    if not parts or not pattern:
        return bool(pattern)
    if pattern[0] == ANY_FOLDERS:
        if len(pattern) > 1 and may_lead_to_match(parts, pattern[1:]):
            return True
        return not parts[0].startswith(".") and may_lead_to_match(parts[1:], pattern)
    return _is_part(parts[0], pattern[0]) and may_lead_to_match(parts[1:], pattern[1:])


def _is_part(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))
