"""The smallest run through the command: four steps on text without metadata, with a checkpoint at the second."""

from pathlib import Path

CONFIGURATION = """
run = "NAME"
store = "STORE"

[data]
source = "SOURCE"
text = "text"
id = "sample_id"
label = "domain"
kind = "multiclass"
vocabulary_size = 300
max_tokens = 64
row_group_rows = 16
shard_rows = 64

[model]
width = 16
layers = 1
heads = 2
feedforward = 32

[train]
steps = 4
batch_size = 12

[checkpoint]
every_steps = 2
"""


def write_tiny_configuration(folder: Path, name: str, store: str | Path, source: str | Path) -> Path:
    """A configuration file in `folder`; data such as `text_columns` gives fit it."""
    path = folder / "run.toml"
    path.write_text(CONFIGURATION.replace("NAME", name).replace("STORE", str(store)).replace("SOURCE", str(source)))
    return path
