"""What is asked of a model's source before there is a model: how its microbatches are cut and laid out."""

import subprocess
import sys
from typing import Literal

import numpy as np
import pytest
import torch

from storage.datasets import DatasetManifest
from tests.helpers.small_models import make_encoder
from training.batches.assembled import assemble_samples
from training.batches.tensors import to_microbatches
from training.configuration import TrainConfig
from training.data.samples import Samples
from training.model_configuration import EncoderConfig
from training.models import source as sources
from training.models.compilation import example_microbatch
from training.models.encoder.source import EncoderSource
from training.models.source import microbatch_cut

MODEL = EncoderConfig(width=16, layers=1, heads=2, feedforward=32, dropout=0.0)


class PaddedEncoder(EncoderSource):
    layout: Literal["flat", "padded"] = "padded"


def test_how_microbatches_are_cut_is_known_without_loading_torch() -> None:
    code = (
        "import sys; from training.configuration import TrainConfig; "
        "from training.model_configuration import EncoderConfig; "
        "from training.models.source import microbatch_cut; "
        "cut = microbatch_cut(EncoderConfig(width=16, feedforward=32), TrainConfig()); "
        "print(cut.dense_length, 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["64", "False"]


def test_a_model_that_takes_no_groups_gets_each_microbatch_in_one_whatever_is_configured(
    monkeypatch: pytest.MonkeyPatch, samples: Samples
) -> None:
    train = TrainConfig(padding_efficiency=0.97)
    flat = microbatch_cut(MODEL, train)
    monkeypatch.setattr(sources, "source_of", PaddedEncoder)
    padded = microbatch_cut(MODEL, train)
    found = []
    for cut in (flat, padded):
        (groups,) = cut.groups([samples.lengths])
        assembled = assemble_samples(samples, [0], [groups], [0])
        found.append(next(to_microbatches(assembled, 0, 1, is_flat=cut.padding_efficiency > 0)))
    assert found[0].is_flat and len(found[0].groups) > 1
    assert not found[1].is_flat and len(found[1].groups) == 1
    assert padded.dense_length == flat.dense_length
    lengths = np.array([3, 50, 7, 9])
    assert [part.tolist() for part in padded.cut(lengths, 2)] == [part.tolist() for part in flat.cut(lengths, 2)]


def test_the_example_that_is_compiled_is_laid_out_as_the_model_takes_it(dataset: DatasetManifest) -> None:
    model = make_encoder(MODEL, dataset).eval()
    flat, padded = (example_microbatch(dataset, 5, is_flat) for is_flat in (True, False))
    assert (flat.is_flat, padded.is_flat) == (True, False)
    assert torch.allclose(model(flat), model(padded), atol=1e-6)
