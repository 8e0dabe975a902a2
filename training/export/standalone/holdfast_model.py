"""A trained model in the folder that `holdfast export` has written: loading it, and its predictions for rows.

    from holdfast_model import load_model
    model = load_model("the folder")
    model.predict([{"text": "...", ...}])

Invariant: nothing is read before its SHA-256 was found to be what `files.json` states; and this file and those that it
imports need torch and safetensors alone, `tokenizers` where the model reads text, and transformers for a pretrained
model.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from safetensors.torch import load_file
from torch import Tensor

from training.export.standalone.holdfast_inputs import Encoded, Inputs, read_inputs
from training.export.standalone.holdfast_network import Architecture, PaddedNetwork
from training.export.standalone.holdfast_targets import outputs_of

MODEL_FORMAT = 1
FILES_FILE, MODEL_FILE, LABELS_FILE = "files.json", "model.json", "labels.json"
CALIBRATION_FILE = "calibration.json"
# Tokens of one forward pass, padding included: what stays near the processor, and what fills a GPU.
CPU_TOKENS, GPU_TOKENS = 4096, 65_536
# Rows whose lengths differ by more than this part do not stand in one pass, unless it would be a small one.
PADDED_PART = 1 / 32
CHUNK_BYTES = 8 << 20
ADVICE = "Export the model again, or copy the folder again from where it is whole."


class ModelFolderError(ValueError):
    """The folder is no exported model, or a file of it is not as it was written."""


class Model:
    """A network on its device, and what it takes and gives."""

    def __init__(
        self,
        network: Any,
        inputs: Inputs,
        labels: Mapping[str, Any],
        device: torch.device,
        temperature: float = 1.0,
        thresholds: Sequence[float] | None = None,
    ) -> None:
        self.inputs = inputs
        self.classes: list[str] = labels["classes"]
        self.outputs = outputs_of(labels["kind"], labels["classes"])
        self.device = device
        self.temperature = temperature
        self.thresholds = thresholds
        self._network = network.to(device).eval()
        self._pass_tokens = CPU_TOKENS if device.type == "cpu" else GPU_TOKENS

    @overload
    def predict(self, rows: Mapping[str, Any]) -> dict[str, Any]: ...

    @overload
    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]: ...

    def predict(self, rows: Any) -> Any:
        """Predictions: of each row what `outputs.answer` calls it, its `label`, and `probabilities` by label.

        One alone for one row, which is no list.

        A row is a dict with all columns; None is a missing value. Raises `InputError`, which names column and row.
        """
        if isinstance(rows, Mapping):
            return self._predict([rows])[0]
        return self._predict(rows)

    def _predict(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        columns = {
            name: [row[name] for row in rows] for name in self.inputs.columns if all(name in row for row in rows)
        }
        logits = self.logits(self.inputs.encode(columns))
        answers, probabilities = self.answers_of(logits)
        return [
            {self.outputs.answer: answer, "probabilities": dict(zip(self.classes, numbers, strict=True))}
            for answer, numbers in zip(answers, probabilities.tolist(), strict=True)
        ]

    @torch.inference_mode()
    def logits(self, encoded: Encoded) -> Tensor:
        """[N, outputs] on the CPU."""
        logits = torch.zeros(len(encoded), self.outputs.num_outputs)
        for rows in passes([len(ids) for ids in encoded.tokens], self._pass_tokens):
            logits[rows] = self._pass_through(encoded, rows).float().cpu()
        return logits

    def answers_of(self, logits: Tensor) -> tuple[list[Any], Tensor]:
        """What is predicted of each row, and the probabilities [N, classes], in 64 bits."""
        probabilities = self.probabilities_of(logits)
        if self.thresholds is None:
            return self.outputs.predict(logits), probabilities
        return self.outputs.predict_by(self.thresholds, probabilities), probabilities

    def probabilities_of(self, logits: Tensor) -> Tensor:
        """[N, classes], in 64 bits."""
        return self.outputs.probabilities(logits.double() / self.temperature)

    def _pass_through(self, encoded: Encoded, rows: list[int]) -> Tensor:
        chosen = [encoded.tokens[row] for row in rows]
        lengths = [len(ids) for ids in chosen]
        indices = torch.tensor(rows)
        numeric, categorical = encoded.numeric[indices].to(self.device), encoded.categorical[indices].to(self.device)
        tokens = padded(chosen).to(self.device)
        if min(lengths) == tokens.shape[1]:
            return self._network.of_one_length(tokens, numeric, categorical)  # type: ignore[no-any-return]
        result: Tensor = self._network(tokens, torch.tensor(lengths, device=self.device), numeric, categorical)
        return result


def load_model(
    folder: str | Path,
    device: str | None = None,
    calibrated: bool = False,
    build: Callable[..., Any] | None = None,
    fitted_thresholds: bool = False,
) -> Model:
    """The model in an exported folder, on `device`: by default a GPU if torch finds one.

    `calibrated`: probabilities of logits divided by the temperature in calibration.json; labels are the same. `build`:
    the function that builds the module, where the model is one of your own code. `fitted_thresholds`: a class counts
    from its threshold in calibration.json on instead of above one half; they are thresholds of calibrated
    probabilities, so these are given too. Raises `ModelFolderError` if the folder is no export, one that was changed,
    has no temperature or no thresholds where they are asked for, or needs `build`.
    """
    path = Path(folder)
    verify(path)
    if not (path / MODEL_FILE).exists():
        raise ModelFolderError(
            f"{path} is no exported model: it has an adapter alone. Export the run without --adapter."
        )
    labels = json.loads((path / LABELS_FILE).read_text(encoding="utf-8"))
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    fitted = _read_calibration(path) if calibrated or fitted_thresholds else {"temperature": 1.0}
    thresholds = outputs_of(labels["kind"], labels["classes"]).fitted_thresholds(fitted) if fitted_thresholds else None
    if fitted_thresholds and thresholds is None:
        raise ModelFolderError(
            f"{path} has no fitted thresholds: it is a model of several classes, of which it predicts the most "
            "probable one. Ask for none."
        )
    temperature = float(fitted["temperature"])
    return Model(load_network(path, build), read_inputs(path), labels, chosen, temperature, thresholds)


def load_network(folder: Path, build: Callable[..., Any] | None = None) -> Any:
    """The network with its weights, on the CPU; the folder's hashes are not looked at.

    A `PaddedNetwork`, or what is called in the same way: a `PretrainedNetwork`, which needs transformers, or an
    `OwnNetwork`, whose module `build` makes.
    """
    described = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))
    weights = {name: tensor for file in described["weights"] for name, tensor in load_file(folder / file).items()}
    network = _make_network(described["architecture"], build)
    getattr(network, "own", network).load_state_dict(weights)
    return network.eval()


def _make_network(described: dict[str, Any], build: Callable[..., Any] | None) -> Any:
    """With weights of no meaning. What other models do not need is not imported at the top: their folders lack it."""
    kind, sizes = described["kind"], {name: value for name, value in described.items() if name != "kind"}
    if kind == "module":
        from training.export.standalone.holdfast_module import make_own_network

        if build is None:
            raise ModelFolderError(
                f"The model is a module of its owner's code, which is loaded from no folder by itself: the function "
                f"{sizes['function']!r} of {', '.join(sizes['files'])} builds it. Give it: load_model(FOLDER, "
                "build=FUNCTION), or --factory FILE.py:FUNCTION. Copies of the files are in the folder's own_code."
            )
        return make_own_network(sizes, build)
    sizes["category_counts"] = tuple(sizes["category_counts"])
    if kind == "pretrained":
        from training.export.standalone.holdfast_pretrained import PretrainedArchitecture, PretrainedNetwork

        return PretrainedNetwork(PretrainedArchitecture(**sizes))
    return PaddedNetwork(Architecture(**sizes))


def _read_calibration(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"reason": "it was not evaluated"}
    if CALIBRATION_FILE in _read_hashes(folder):  # any other file of that name is not this model's
        found = json.loads((folder / CALIBRATION_FILE).read_text(encoding="utf-8"))
    if found.get("temperature") is None:
        raise ModelFolderError(
            f"{folder} is not calibrated: {found.get('reason')}. Take the probabilities as they are, or evaluate the "
            "checkpoint with `holdfast evaluate` and export it again."
        )
    return found


def verify(folder: Path) -> None:
    """Hash every file of an exported folder. Raises `ModelFolderError` with the name of one that was changed."""
    for name, expected in _read_hashes(folder).items():
        try:
            found = _sha256(folder / name)
        except OSError as error:
            raise ModelFolderError(f"{folder / name} cannot be read: {error.strerror}. {ADVICE}") from error
        if found != expected:
            raise ModelFolderError(
                f"{folder / name} was changed after it was exported: expected SHA-256 {expected[:16]}..., found "
                f"{found[:16]}.... {ADVICE}"
            )


def passes(lengths: Sequence[int], most_tokens: int) -> Iterator[list[int]]:
    """Which rows go through the network together: of about one length, of at most so many tokens with padding.

    Few rows may be padded further: a pass of its own would take longer than the padding.
    """
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        shortest, longest = (lengths[rows[0]], lengths[row]) if rows else (lengths[row], lengths[row])
        is_full = (len(rows) + 1) * longest > most_tokens
        is_apart = longest - shortest > longest * PADDED_PART and len(rows) * longest > most_tokens // 8
        if rows and (is_full or is_apart):
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def padded(tokens: Sequence["array[int]"]) -> Tensor:
    """[B, T] int32, with zeros behind each row up to the longest; at least one."""
    width = max(1, max(map(len, tokens)))
    filler = memoryview(bytes(4 * width))
    parts = [part for ids in tokens for part in (ids, filler[4 * len(ids) :])]
    return torch.frombuffer(bytearray().join(parts), dtype=torch.int32).view(len(tokens), width)


def _read_hashes(folder: Path) -> dict[str, str]:
    path = folder / FILES_FILE
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        if stated["format"] != MODEL_FORMAT:
            raise ModelFolderError(
                f"{folder} has format {stated['format']}, this version reads {MODEL_FORMAT}. Use the holdfast_model.py "
                "in the folder itself, or the version of Holdfast that exported it."
            )
        return {str(name): str(sha256) for name, sha256 in stated["sha256"].items()}
    except FileNotFoundError as error:
        raise ModelFolderError(
            f"{folder} is no exported model: there is no {path}. Give a folder that `holdfast export` has written."
        ) from error
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ModelFolderError):
            raise
        raise ModelFolderError(f"{path} cannot be read: it was changed or cut off. {ADVICE}") from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
