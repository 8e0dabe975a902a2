"""A prepared data set: immutable Parquet shards under the digest of their inputs, with a manifest written last.

Invariant: `datasets/<digest>/dataset.json` exists only when every file it names is in the store, durable, with the
SHA-256 it states. A folder without it is an interrupted preparation and is never read. The first one that is put stays,
and so do its files: they are named by their content, so that another preparation of the same data replaces none.
"""

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from storage.errors import CorruptObjectError, IncompatibleRunError, ObjectExistsError, ObjectMissingError
from storage.objects.digests import is_sealed, require_format, seal, sha256_of_bytes
from storage.objects.store import Store
from storage.target_kinds import KindName

DATASET_FORMAT = 1
# In the footer of a shard, in its key-value metadata: SHA-256 of the bytes of each row group, as hex digits, in order.
GROUP_HASHES_KEY = b"holdfast.sha256_of_row_groups"
MANIFEST_NAME = "dataset.json"
# Stands beside the manifest's fields: SHA-256 over all of them, so that a flipped bit in a statistic is noticed.
SEAL_FIELD = "seal"
SPLITS = ("train", "validation", "test")
MISSING_INDEX = 0
UNSEEN_INDEX = 1
FIRST_VOCABULARY_INDEX = 2
MANIFEST_ADVICE = (
    "Restore this file from a backup of the store. Without a backup: delete this one file and run `holdfast run` "
    "again, with the versions of the libraries that the data were prepared with. The data set is then prepared again "
    "from its source, to the same bytes; by other versions it may become another one, which its runs refuse."
)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Record):
    """One immutable file: `name` is relative to the data set's folder."""

    name: str
    num_bytes: int
    sha256: str


class ShardRecord(FileRecord):
    """A file with rows."""

    num_rows: int
    footer_sha256: str = Field(description="SHA-256 of the footer, to the end of the file.")


class SplitRecord(_Record):
    """One split's shards, in row order: row r stands in the shard that covers it, row groups of equal size."""

    num_rows: int
    num_tokens: int
    shards: list[ShardRecord]
    class_counts: list[int] | None = Field(
        None,
        description="Rows of each of the target's classes; None in a table on which a run's model is evaluated.",
    )


class NumericColumn(_Record):
    """Statistics of a numeric column over the training split; missing values become the median, then all are scaled."""

    name: str
    mean: float
    standard_deviation: float
    median: float
    missing_share: float


class CategoricalColumn(_Record):
    """Vocabulary of a categorical column over the training split.

    Index 0 stands for a missing value, 1 for one that the training split does not have, 2 + i for `vocabulary[i]`.
    """

    name: str
    vocabulary: list[str]
    missing_share: float


class Target(_Record):
    """What is predicted. `classes[i]` is the label with index i; counts are over the training split."""

    kind: KindName
    column: str
    classes: list[str]
    class_counts: list[int]


class WeightColumn(_Record):
    """The weights of rows in the training loss; in the shards each is divided by the mean over the training split."""

    name: str
    mean: float


class DatasetManifest(_Record):
    """All that training needs to know of a data set, and the hash of every byte of it."""

    format: int = DATASET_FORMAT
    digest: str = Field(description="SHA-256 over the inputs: source files, data configuration, seed, format.")
    inputs: dict[str, object] = Field(description="What the digest was taken over, for a field-by-field comparison.")
    versions: dict[str, str] = Field(description="Versions of the libraries that prepared it.")
    target: Target
    vocabulary_size: int = Field(description="Token ids are in [0, vocabulary_size); 0 is padding.")
    max_tokens: int = Field(description="Longest sequence, in tokens.")
    row_group_rows: int = Field(description="Rows of every row group but the last of a split.")
    numeric: list[NumericColumn]
    categorical: list[CategoricalColumn]
    splits: dict[str, SplitRecord]
    tokenizer: FileRecord | None = Field(description="tokenizer.json of `tokenizers`; none for token input.")
    contract: FileRecord | None = Field(
        None,
        description="contract.json: what is expected of the data, and what was found; None in a table on which a run's "
        "model is evaluated.",
    )
    weight: WeightColumn | None = Field(
        None,
        exclude_if=lambda weight: weight is None,
        description="None where each row counts alike; then it is not stated.",
    )


def token_type(vocabulary_size: int) -> Literal["uint16", "int32"]:
    """What token ids are in the shards: as narrow as the vocabulary allows. NumPy and Arrow call it by this name."""
    return "uint16" if vocabulary_size <= 1 << 16 else "int32"


def dataset_key(digest: str, name: str = "") -> str:
    """Key of a data set's folder, or of a file in it."""
    return f"datasets/{digest}/{name}"


def named_by_content(name: str, sha256: str) -> str:
    """The name of a data set's file: `name` with a part of its hash, `train-00000-1f0a3c6d5e7b9a02.parquet`."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{sha256[:16]}.{suffix}"


def find_dataset(store: Store, digest: str, sha256: str | None = None) -> DatasetManifest | None:
    """The published data set with this digest, or None.

    With a `sha256`, as `dataset_sha256` gave it, no other one that was prepared from the same inputs. Raises
    `CorruptObjectError` if its manifest cannot be read, `IncompatibleRunError` if it is of another format or not that
    one.
    """
    key = dataset_key(digest, MANIFEST_NAME)
    try:
        data = store.read(key)
    except ObjectMissingError:
        return None
    require_format(data, DATASET_FORMAT, f"The data set {digest}")
    try:
        content = json.loads(data)
        content.pop(SEAL_FIELD, None)
        manifest = DatasetManifest.model_validate(content)
    except (ValueError, AttributeError) as error:
        raise CorruptObjectError(f"{store.address}/{key} cannot be read: it is damaged. {MANIFEST_ADVICE}") from error
    if not is_sealed(data, SEAL_FIELD):
        raise CorruptObjectError(f"{store.address}/{key} was changed after it was written. {MANIFEST_ADVICE}")
    if sha256 is not None:
        _require_same(store, manifest, sha256_of_bytes(data), sha256)
    return manifest


def load_dataset(store: Store, digest: str, sha256: str | None = None) -> DatasetManifest:
    """Like `find_dataset`, but raises `ObjectMissingError` when there is none."""
    manifest = find_dataset(store, digest, sha256)
    if manifest is None:
        raise ObjectMissingError(f"There is no data set {digest} in {store.address}: it was deleted since.")
    return manifest


def dataset_sha256(store: Store, digest: str) -> str:
    """SHA-256 of `dataset.json`, and by it of every byte of the data set: the digest is of its inputs alone."""
    return sha256_of_bytes(store.read(dataset_key(digest, MANIFEST_NAME)))


def _require_same(store: Store, manifest: DatasetManifest, found: str, expected: str) -> None:
    if found == expected:
        return
    folder = f"{store.address}/{dataset_key(manifest.digest)}".rstrip("/")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))
    raise IncompatibleRunError(
        f"The data set {folder} is not the one that the run was begun with: expected {MANIFEST_NAME} with SHA-256 "
        f"{expected[:16]}..., found {found[:16]}.... It was prepared again from the same source, by other versions of "
        f"the libraries or of Holdfast: now {versions or 'unknown'}. Its tokens or their order may be others, and the "
        "run would become another model. Restore the folder from a backup of the store to go on with the run, or give "
        "another run name to start a new run on the data set as it is now. Nothing was changed."
    )


def publish_dataset(store: Store, manifest: DatasetManifest) -> DatasetManifest:
    """Make a data set visible, after every one of its files has been put into the store.

    Returns the one that is published now: another one, if it was prepared from the same inputs and published before.
    """
    data = seal(manifest.model_dump(mode="json"), SEAL_FIELD)
    try:
        store.write_if_absent(dataset_key(manifest.digest, MANIFEST_NAME), data)
    except ObjectExistsError:
        return load_dataset(store, manifest.digest)
    return manifest


def remove_other_files(store: Store, published: DatasetManifest) -> None:
    """Remove what other preparations of the same inputs left in the folder of a data set that is published."""
    shards = [shard for split in published.splits.values() for shard in split.shards]
    files = [file for file in (*shards, published.tokenizer, published.contract) if file is not None]
    named = {dataset_key(published.digest, name) for name in (MANIFEST_NAME, *(file.name for file in files))}
    for key in list(store.list_keys(dataset_key(published.digest))):
        if key not in named:
            store.delete(key)


def read_dataset_file(store: Store, dataset: DatasetManifest, file: FileRecord) -> bytes:
    """A file without rows. Raises `CorruptObjectError` if it is not what was published, `ObjectMissingError`."""
    key = dataset_key(dataset.digest, file.name)
    data = store.read(key)
    if sha256_of_bytes(data) != file.sha256:
        raise CorruptObjectError(f"{store.address}/{key} was changed after it was written. `holdfast scrub` says more.")
    return data
