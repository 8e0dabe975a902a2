"""Answers of an exported model's ONNX file, by the runtime that a server would use, beside the model's own."""

from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.parquet as pq

from tests.helpers.exported_runs import Exported
from training.export.standalone.holdfast_inputs import Encoded, join
from training.export.standalone.holdfast_model import load_model, padded


def encode_all(exported: Exported) -> Encoded:
    """The rows of the test split, as the exported folder encodes them."""
    model = load_model(exported.folder, "cpu")
    columns = pq.read_table(exported.data).to_pydict()
    return join([model.inputs.encode(columns)])


def require_same_answers_of_onnx(exported: Exported, folder: Path) -> None:
    """Assert it for one row and for several, of several lengths, of the ONNX file in `folder`."""
    model, encoded = load_model(exported.folder, "cpu"), encode_all(exported)
    expected = model.logits(encoded)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for rows in (slice(0, 1), slice(1, 4), slice(4, len(encoded))):
        tokens = encoded.tokens[rows]
        logits, probabilities = session.run(
            ["logits", "probabilities"],
            {
                "tokens": padded(tokens).numpy(),
                "lengths": np.array([len(ids) for ids in tokens]),
                "numeric": encoded.numeric[rows].numpy(),
                "categorical": encoded.categorical[rows].numpy(),
            },
        )
        assert np.abs(logits - expected[rows].numpy()).max() < 1e-4
        assert np.abs(probabilities - model.probabilities_of(expected[rows]).numpy()).max() < 1e-4
