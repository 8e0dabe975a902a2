"""Keys: what names an object, in any store.

Invariant: a key cannot lead out of the store, nor to the files under way that a folder store keeps beside its objects.
"""

RESERVED_FOLDER = ".tmp"


def split_key(key: str) -> list[str]:
    """The parts of a key between its slashes. Raises `ValueError` if it is none."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or parts[0] == RESERVED_FOLDER:
        raise ValueError(f"not a key: {key!r}")
    return parts
