"""How two prepared data sets differ: rows, columns, vocabularies, statistics, target, tokenizer.

Pure, and for people: two data sets differ if their digests do; this module describes how.
"""

from collections.abc import Iterator, Mapping, Sequence

from storage.datasets import CategoricalColumn, DatasetManifest, NumericColumn, SplitRecord

MAX_DIFFERENCES_SHOWN = 10
STATISTICS = ("mean", "standard_deviation", "median", "missing_share")
SHAPE = ("vocabulary_size", "max_tokens", "row_group_rows")


def describe_difference(before: DatasetManifest, now: DatasetManifest) -> list[str]:
    """One line for each thing that is not the same, at most ten and the number of the others; empty if nothing is."""
    lines = [
        *_splits(before.splits, now.splits),
        *_numeric_columns(before.numeric, now.numeric),
        *_categorical_columns(before.categorical, now.categorical),
        *_target(before, now),
        *(_changed(name, getattr(before, name), getattr(now, name)) for name in SHAPE),
        *_weight(before, now),
        *_tokenizer(before, now),
    ]
    found = [line for line in lines if line]
    num_more = len(found) - MAX_DIFFERENCES_SHOWN
    return found[:MAX_DIFFERENCES_SHOWN] + ([f"and {num_more:,} more differences"] if num_more > 0 else [])


def _splits(before: Mapping[str, SplitRecord], now: Mapping[str, SplitRecord]) -> Iterator[str]:
    for name in sorted(before.keys() & now.keys()):
        old, new = before[name], now[name]
        yield _changed(f"{name} split, rows", old.num_rows, new.num_rows)
        yield _changed(f"{name} split, tokens", old.num_tokens, new.num_tokens)
        if (old.num_rows, old.num_tokens) == (new.num_rows, new.num_tokens):
            known = {shard.sha256 for shard in old.shards}
            others = sum(shard.sha256 not in known for shard in new.shards)
            yield f"{name} split: other content in {others:,} of {len(new.shards):,} shards" if others else ""


def _numeric_columns(before: Sequence[NumericColumn], now: Sequence[NumericColumn]) -> Iterator[str]:
    old, new = ({column.name: column for column in columns} for columns in (before, now))
    yield _changed("numeric columns", list(old), list(new))
    for name in (name for name in old if name in new):
        for field in STATISTICS:
            yield _changed(f"numeric column {name!r}, {field}", getattr(old[name], field), getattr(new[name], field))


def _categorical_columns(before: Sequence[CategoricalColumn], now: Sequence[CategoricalColumn]) -> Iterator[str]:
    old, new = ({column.name: column for column in columns} for columns in (before, now))
    yield _changed("categorical columns", list(old), list(new))
    for name in (name for name in old if name in new):
        yield _values(f"categorical column {name!r}, vocabulary", old[name].vocabulary, new[name].vocabulary)
        yield _changed(f"categorical column {name!r}, missing_share", old[name].missing_share, new[name].missing_share)


def _target(before: DatasetManifest, now: DatasetManifest) -> Iterator[str]:
    yield _changed("target, kind", before.target.kind, now.target.kind)
    yield _changed("target, column", before.target.column, now.target.column)
    yield _values("target, classes", before.target.classes, now.target.classes)
    if before.target.classes == now.target.classes:
        yield _changed("target, class counts", before.target.class_counts, now.target.class_counts)


def _weight(before: DatasetManifest, now: DatasetManifest) -> Iterator[str]:
    yield _changed("weight", *(manifest.weight and manifest.weight.model_dump() for manifest in (before, now)))


def _tokenizer(before: DatasetManifest, now: DatasetManifest) -> Iterator[str]:
    old, new = (manifest.tokenizer.sha256[:16] if manifest.tokenizer else None for manifest in (before, now))
    yield _changed("tokenizer, SHA-256", old, new)


def _values(what: str, before: Sequence[str], now: Sequence[str]) -> str:
    """How two lists of values differ, by the values that came and went; the order decides the index, so it counts."""
    if list(before) == list(now):
        return ""
    old, new = set(before), set(now)
    gone, added = [value for value in before if value not in new], [value for value in now if value not in old]
    if not gone and not added:
        return f"{what}: the same values in another order"
    changes = {"gone": gone, "new": added}
    return f"{what}: " + ", ".join(f"{len(v):,} {word} ({_first(v)})" for word, v in changes.items() if v)


def _first(values: Sequence[str]) -> str:
    shown = ", ".join(repr(value[:40]) for value in values[:3])
    return shown + (", ..." if len(values) > 3 else "")


def _changed(what: str, before: object, now: object) -> str:
    return "" if before == now else f"{what}: was {_shown(before)}, is {_shown(now)} now"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else repr(value)
