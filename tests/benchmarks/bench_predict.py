"""`make bench-predict`: rows a second of `predict`, against a plain PyTorch loop over the same rows, on one core.

Both read the same Parquet file, tokenise, impute and scale the same, go through the same network of the default size,
and write the same columns. The plain loop takes rows as they come, some at a time, pads them to the longest of them and
gives attention a mask; its size of a batch is the best of three. Both are measured in turn, in processes of their own,
by the processor time from the first row to the last: one thread each, so that is the time on a core of its own. Then
memory: the peak of `predict` over a hundred thousand and over a million short rows. The last line is for machines:
`name=value` pairs.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from storage.objects.digests import sha256_of_file
from tasks.corpora.generate import generate_corpus
from tasks.data.tokenizer import TOKENIZER_FILE, train_tokenizer
from tasks.models.prediction import Prediction
from training.export.prediction import open_model
from training.export.standalone.holdfast_inputs import PREPROCESSING_FILE
from training.export.standalone.holdfast_model import FILES_FILE, LABELS_FILE, MODEL_FILE, MODEL_FORMAT, padded
from training.export.standalone.holdfast_network import Architecture, PaddedNetwork

ROWS = 20_000
ROUNDS = 3
PLAIN_BATCHES = (16, 64, 256)
MEMORY_ROWS = (100_000, 1_000_000)
CLASSES = [f"class {i}" for i in range(11)]
NUMERIC = ("token_count", "language_confidence", "prior_report_rate", "account_age_days")
CATEGORICAL = ("language", "source_surface", "policy_area", "region")
DEFAULT = {"width": 128, "layers": 2, "heads": 4, "feedforward": 512}
TINY = {"width": 16, "layers": 1, "heads": 2, "feedforward": 32}


def main() -> None:
    """Measure both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--memory-rows", type=int, nargs=2, default=MEMORY_ROWS)
    parser.add_argument("--child", nargs=4, metavar=("WAY", "MODEL", "DATA", "RESULT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_measure_here(*options.child)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ratio = _compare(folder, options.rows, options.rounds)
        few, many = (_peak_bytes(folder, rows) for rows in options.memory_rows)
    small, large = options.memory_rows
    print(f"Peak memory of predict: {few / 2**20:,.0f} MiB for {small:,} rows, {many / 2**20:,.0f} MiB for {large:,}.")
    print(f"predict_over_plain={ratio:.2f} memory_many_over_few={many / few:.3f}")


def _compare(folder: Path, num_rows: int, num_rounds: int) -> float:
    generate_corpus(folder / "corpus", "policy", num_rows)
    data = folder / "data.parquet"
    pq.write_table(pq.read_table(folder / "corpus"), data)
    model = _make_model(folder / "model", pq.read_table(data), DEFAULT)
    ways = ["predict", *(f"plain-{size}" for size in PLAIN_BATCHES)]
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(num_rounds):
        for way in ways:
            rates[way].append(num_rows / _measure(way, model, data, folder / f"{way}.parquet")["seconds"])
    table = Table("way", "rows a second of processor time, each round", "median")
    for way in ways:
        table.add_row(way, ", ".join(f"{rate:,.0f}" for rate in rates[way]), f"{median(rates[way]):,.0f}")
    Console(width=120, highlight=False).print(table)
    _require_same(folder, ways)
    best = max(ways[1:], key=lambda way: median(rates[way]))
    return median(ours / plain for ours, plain in zip(rates["predict"], rates[best], strict=True))


def _require_same(folder: Path, ways: list[str]) -> None:
    """The answers of all ways are equal, up to rounding."""
    tables = [pq.read_table(folder / f"{way}.parquet") for way in ways]
    for name in (f"probability_{label}" for label in CLASSES):
        first, *others = (torch.from_numpy(table.column(name).to_numpy().copy()).double() for table in tables)
        for other in others:
            torch.testing.assert_close(first, other, atol=1e-5, rtol=0)


def _peak_bytes(folder: Path, num_rows: int) -> int:
    data = folder / "short.parquet"
    words = [f"a short text of row {i} in about ten words or so" for i in range(1000)]
    values: dict[str, Any] = dict.fromkeys(NUMERIC, [1.0] * 1000) | dict.fromkeys(CATEGORICAL, ["a"] * 1000)
    part = pa.table({"prompt_text": words, **values})
    with pq.ParquetWriter(data, part.schema) as writer:
        for _ in range(num_rows // 100_000 or 1):
            writer.write_table(pa.concat_tables([part] * min(100, num_rows // 1000)))
    model = _make_model(folder / f"tiny-{num_rows}", part, TINY)
    peak: int = _measure("predict", model, data, folder / "short-result.parquet")["peak_bytes"]
    return peak


def _measure(way: str, model: Path, data: Path, result: Path) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.bench_predict",
        "--child",
        way,
        str(model),
        str(data),
        str(result),
    ]
    environment = dict(os.environ) | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _measure_here(way: str, folder: str, data: str, result: str) -> dict[str, Any]:
    model = open_model(Path(folder), threads=1, truncates=True)
    begun = time.process_time()
    if way == "predict":
        Prediction(model, data, Path(result), None).write(lambda done, total: None)
    else:
        _predict_plainly(Path(folder), Path(data), Path(result), int(way.partition("-")[2]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": time.process_time() - begun, "peak_bytes": peak}


@torch.no_grad()
def _predict_plainly(folder: Path, data: Path, result: Path, batch_size: int) -> None:
    """What one writes at first: rows as they come, padded to the longest of the batch."""
    model = open_model(folder, threads=1, truncates=True)
    network = model._network
    found = []
    with pq.ParquetFile(data) as file:
        for batch in file.iter_batches(batch_size, columns=model.inputs.columns):
            rows = model.inputs.encode(batch.to_pydict())
            lengths = torch.tensor([len(ids) for ids in rows.tokens])
            found.append(network(padded(rows.tokens), lengths, rows.numeric, rows.categorical).softmax(dim=1))
    probabilities = torch.cat(found)
    labels = [CLASSES[place] for place in probabilities.argmax(dim=1).tolist()]
    columns = {f"probability_{name}": probabilities[:, i].numpy() for i, name in enumerate(CLASSES)}
    pq.write_table(pa.table({"row": range(len(labels)), "predicted": labels, **columns}), result)


def _make_model(folder: Path, table: pa.Table, sizes: dict[str, int]) -> Path:
    """An exported folder as `predict` needs it; its weights are the first ones, for only its speed is looked at."""
    folder.mkdir()
    texts = table.column("prompt_text").to_pylist()
    tokenizer = train_tokenizer(texts[:20_000], 8192)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    vocabularies = [sorted(set(table.column(name).drop_null().to_pylist())) for name in CATEGORICAL]
    architecture = Architecture(
        **sizes, dropout=0.1, metadata_width=16, vocabulary_size=tokenizer.get_vocab_size(), num_positions=512,
        num_numeric=len(NUMERIC), category_counts=tuple(2 + len(names) for names in vocabularies),
        num_outputs=len(CLASSES),
    )  # fmt: skip
    torch.manual_seed(0)
    save_file(PaddedNetwork(architecture).state_dict(), folder / "model.safetensors")
    numbers = {"mean": 0.0, "standard_deviation": 1000.0, "median": 1.0}
    described = {
        "texts": ["prompt_text"], "tokens": None, "attention_mask": None, "tokenizer": TOKENIZER_FILE,
        "max_tokens": 512, "too_long": "truncate", "vocabulary_size": architecture.vocabulary_size, "missing_index": 0,
        "unseen_index": 1, "first_vocabulary_index": 2, "adds_special_tokens": False,
        "numeric": [{"name": name, **numbers} for name in NUMERIC],
        "categorical": [
            {"name": name, "vocabulary": names} for name, names in zip(CATEGORICAL, vocabularies, strict=True)
        ],
    }  # fmt: skip
    _write(folder / PREPROCESSING_FILE, described)
    _write(folder / LABELS_FILE, {"kind": "multiclass", "classes": CLASSES})
    _write(
        folder / MODEL_FILE,
        {"architecture": {"kind": "encoder", **asdict(architecture)}, "weights": ["model.safetensors"]},
    )
    hashes = {path.name: sha256_of_file(path) for path in folder.iterdir()}
    _write(folder / FILES_FILE, {"format": MODEL_FORMAT, "sha256": hashes})
    return folder


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main()
