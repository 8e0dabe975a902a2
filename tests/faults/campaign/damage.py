"""Bits that flip and files that are cut short, anywhere in a run that is kept.

Invariant: what is damaged is a file that the run still needs: the head of its manifest, a checkpoint that is kept, a
part of the ledger that counts. A part whose save was given up for the last one proves nothing, and is left alone.
`find_damage` asks the functions behind `holdfast verify` and `holdfast audit`, nothing else.
"""

import random
from collections.abc import Callable
from pathlib import Path

from flows.commands.verify import verify_run
from storage.checkpoints.checkpoints import load_checkpoint
from storage.errors import HoldfastError
from storage.objects.local_store import LocalStore
from storage.runs.ledger import walk_ledger
from storage.runs.manifest import Manifest
from tasks.audits.verdict import audit_run
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import Site


def flip_bits(site: Site, generator: random.Random, count: int) -> Attempt:
    """Flip one bit at a time, each of all bits with the same chance, and put it back."""
    return _damage(site, generator, count, "flipped", _flip)


def cut_short(site: Site, generator: random.Random, count: int) -> Attempt:
    """Cut one file at a time, anywhere."""
    return _damage(site, generator, count, "cut", lambda data, place: data[: place // 8])


def needed_files(store: LocalStore, run: str) -> list[Path]:
    """Every file that a kept run needs to be what it is."""
    manifest = Manifest(store, run)
    head = manifest.load_head()
    folder = store.root / "runs" / run
    generation = folder / "manifest" / f"{head.generation:012d}.json"
    checkpoints = [path for record in head.state.kept for path in (store.root / record.path).iterdir()]
    newest = head.state.kept[0]
    ledger = walk_ledger(store, load_checkpoint(store, newest.path, newest.digest).index.ledger)
    return [generation, *sorted(checkpoints), *sorted(store.root / part.key for part, _, _ in ledger)]


def find_damage(store: LocalStore, run: str) -> str | None:
    """What the run's own checks find, in words; None if they find nothing."""
    try:
        verified = verify_run(store, run)
        if not verified["valid"]:
            return str([checkpoint["reason"] for checkpoint in verified["checkpoints"] if not checkpoint["valid"]])
        audited = audit_run(store, run)
    except HoldfastError as error:
        return str(error)
    return None if audited["ok"] else str(audited["violations"])


def _damage(
    site: Site, generator: random.Random, count: int, what: str, change: Callable[[bytes, int], bytes]
) -> Attempt:
    """Damage a copy of the undisturbed run `count` times; each must be noticed, and the whole run must not be."""
    copy = site.copy_undisturbed()
    store, run = LocalStore(Path(copy.settings["store"])), str(copy.settings["run"])
    files = needed_files(store, run)
    sizes = [path.stat().st_size for path in files]
    if find_damage(store, run) is not None:
        return Attempt(count, 0, "bad", "the undamaged run is called damaged")
    missed = []
    for _ in range(count):
        path = generator.choices(files, sizes)[0]
        data = path.read_bytes()
        place = generator.randrange(8 * len(data))
        path.write_bytes(change(data, place))
        if find_damage(store, run) is None:
            missed.append(f"{path.relative_to(store.root)} {what} at bit {place}")
        path.write_bytes(data)
    note = f"not noticed: {missed}" if missed else f"{count} of {count} noticed, in {sum(sizes):,} bytes"
    return Attempt(count, count, "bad" if missed else "clear error", note)


def _flip(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)
