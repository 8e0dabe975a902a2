"""What a run's checkpoints cost in a store per month: the bytes that stay, and the requests that put them there.

Invariant: pure. Left out is what no interval changes or what costs next to nothing: reading, deleting, the network
within a region, the ledger, and the manifest's small generations.
"""

from dataclasses import dataclass
from math import ceil

from storage.objects.s3.address import SCHEME as S3_SCHEME
from training.configuration import CheckpointConfig

GIGABYTE = 1e9
MONTH_SECONDS = 365.25 / 12 * 86_400
# A large file goes up in chunks of this size; index, state, ledger, manifest and the ends of uploads are the others.
CHUNK_BYTES = 16 << 20
OTHER_PUTS = 8
S3_PER_1000_PUTS = 0.005


@dataclass(frozen=True)
class StoragePrices:
    """In dollars: of a gigabyte (10^9 bytes) kept for a month, and of a thousand PUT requests."""

    per_gb_month: float
    per_1000_puts: float


@dataclass(frozen=True)
class StorageUse:
    """What a run puts into its store: one checkpoint, and all that stay beside the one under way, in bytes."""

    checkpoint_bytes: int
    kept_bytes: int
    prices: StoragePrices

    def dollars_per_month(self, interval_seconds: float) -> float:
        """Of keeping what stays and saving every `interval_seconds`."""
        puts = MONTH_SECONDS / interval_seconds * puts_of_save(self.checkpoint_bytes)
        return self.kept_bytes / GIGABYTE * self.prices.per_gb_month + puts / 1000 * self.prices.per_1000_puts


def find_prices(store_address: str, per_gb_month: float, per_1000_puts: float | None) -> StoragePrices:
    """The given prices; where none is given for requests, a bucket's are S3 Standard's and a folder has none."""
    is_bucket = store_address.startswith(f"{S3_SCHEME}://")
    return StoragePrices(
        per_gb_month, per_1000_puts if per_1000_puts is not None else S3_PER_1000_PUTS if is_bucket else 0.0
    )


def plan_storage(
    checkpoint_bytes: int, policy: CheckpointConfig, steps_total: int, prices: StoragePrices
) -> StorageUse:
    """What a run of `steps_total` steps comes to keep: what the policy allows at most, and the save under way."""
    milestones = steps_total // policy.keep_every_steps if policy.keep_every_steps else 0
    kept = (policy.keep + policy.keep_best + milestones) * checkpoint_bytes
    if policy.keep_bytes is not None:
        kept = min(kept, max(policy.keep_bytes, policy.num_always_kept * checkpoint_bytes))
    return StorageUse(checkpoint_bytes, kept + checkpoint_bytes, prices)


def puts_of_save(checkpoint_bytes: int) -> int:
    """Requests of one save."""
    return ceil(checkpoint_bytes / CHUNK_BYTES) + OTHER_PUTS
