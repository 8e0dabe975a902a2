"""`make bench-tokenising`: what texts cost a preparation, against the `tokenizers` library alone on all processors.

The same rows are prepared from their texts, and from the ids that the library made of them with the same tokenizer:
what the first takes longer is learning a tokenizer and encoding with it. Beside it stands what the library takes for
that, called by one process that has all texts in memory. The last line is for machines: `name=value` pairs.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.configuration.run import DataConfig
from tasks.corpora.generate import generate_corpus
from tests.benchmarks.bench_prepare import command
from tests.benchmarks.bench_prepare_processes import TIMES
from tests.benchmarks.measured import measure
from tests.helpers.prefect_server import running_prefect_server

ROWS = 400_000
ROUNDS = 3


def main() -> None:
    """Make the source, measure in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, help="where sources and results are put; the default is TMPDIR")
    options = parser.parse_args()
    table = Table("from texts s", "from ids s", "tokenising s", "library s", "of which learning s", "ratio")
    ratios = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        generate_corpus(folder / "texts", "policy", options.rows)
        with running_prefect_server(folder) as server:
            environment = server | {"PREFECT_LOGGING_LEVEL": "ERROR"}
            for _ in range(options.rounds):
                texts = measure(command("prepare", _texts(folder), folder / "own"), folder / "own", environment)
                measure(command("encode", _texts(folder), folder / "ids"), folder / "ids", environment)
                ids = measure(command("prepare", _ids(folder), folder / "other"), folder / "other", environment)
                library = json.loads((folder / "ids" / TIMES).read_text())
                for part in ("own", "ids", "other"):
                    shutil.rmtree(folder / part)
                seconds = texts.seconds - ids.seconds
                ratios.append(seconds / sum(library.values()))
                figures = (texts.seconds, ids.seconds, seconds, sum(library.values()), library["learn"])
                table.add_row(*(f"{figure:.1f}" for figure in figures), f"{ratios[-1]:.2f}")
    Console(width=130, highlight=False).print(table)
    print(f"tokenising_over_library={sorted(ratios)[len(ratios) // 2]:.3f}")


def _texts(folder: Path) -> DataConfig:
    return DataConfig.model_validate(
        {"source": str(folder / "texts"), "text": "prompt_text", "max_tokens": 512} | _columns("violation_class")
    )


def _ids(folder: Path) -> DataConfig:
    return DataConfig.model_validate(
        {"source": str(folder / "ids"), "tokens": "tokens", "max_tokens": 512} | _columns("violation_class")
    )


def _columns(label: str) -> dict[str, object]:
    return {"id": "sample_id", "label": label, "kind": "multiclass", "memory_limit": "2GB"}


if __name__ == "__main__":
    main()
