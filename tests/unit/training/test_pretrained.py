"""A pretrained model as training has it: its weights, its answers whatever it is padded to, its gradients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError
from tests.helpers import pretrained_modules as modules
from tests.helpers.microbatches import microbatch_with
from tests.helpers.pretrained import CONFIG, write_tiny_bert
from training.batches.seeds import seed_everything
from training.configuration import TrainConfig
from training.data.samples import Samples
from training.model_configuration import PinnedModel, PretrainedConfig
from training.models.frozen import frozen_names, tensors_to_save
from training.models.pretrained.layers import freeze, layers_of
from training.models.source import source_of
from training.optim.optimization import Optimization

if TYPE_CHECKING:
    from training.export.standalone.holdfast_pretrained import PretrainedNetwork

pytestmark = pytest.mark.usefixtures("transformers")
SIZES: dict[str, Any] = {name: value for name, value in CONFIG.items() if name != "architectures"} | {"vocab_size": 87}
# Kinds of models, each with what it calls its sizes, and positions, types and attention of its own.
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 66},
    "xlm-roberta": {"pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 66},
    "distilbert": {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2},
    "electra": {"embedding_size": 16},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "modernbert": {"pad_token_id": 3, "local_attention": 8, "global_attn_every_n_layers": 2},
}


def pinned(**changes: Any) -> PretrainedConfig:

    content = SIZES | changes
    pin = PinnedModel(config=json.dumps(content), files={}, padding_index=content["pad_token_id"], separator_index=None)
    return PretrainedConfig(kind="pretrained", name="/model", pinned=pin)


def network_of(pooling: str = "mean", **changes: Any) -> "PretrainedNetwork":
    content = SIZES | changes
    torch.manual_seed(3)
    sizes = content, pooling, 0.1, 4, content["pad_token_id"], None, 0, (), 3
    architecture = modules.holdfast_pretrained.PretrainedArchitecture(*sizes)
    return modules.holdfast_pretrained.PretrainedNetwork(architecture)


def random_tokens(num_texts: int, length: int) -> torch.Tensor:
    """Ids without those of padding and of special tokens."""
    return torch.randint(5, 87, (num_texts, length), generator=torch.Generator().manual_seed(1))


def no_metadata(num_texts: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(num_texts, 0), torch.zeros(num_texts, 0, dtype=torch.int64)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_weights_are_those_that_transformers_reads_under_the_names_of_our_network(
    pooling: str, tmp_path: Path, transformers: Any
) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    config = pinned().model_copy(update={"pooling": pooling})
    first = modules.weights.write_first_weights(folder, config, 64, tmp_path)
    (path,) = first.files
    found = load_file(path)
    network = network_of(pooling)
    own = network.state_dict()
    assert set(first.names) == set(found) == {name for name in own if name.startswith("bert.")}
    network.load_state_dict(own | found)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = random_tokens(3, 9)
    expected = theirs(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    pooled = network.eval().pool(tokens, torch.full((3,), 9))
    wanted = expected.last_hidden_state.mean(dim=1) if pooling == "mean" else expected.pooler_output
    torch.testing.assert_close(pooled, wanted, atol=1e-5, rtol=1e-5)


def test_weights_that_are_not_trained_stand_in_files_of_their_own(dataset: DatasetManifest, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    config = pinned().model_copy(update={"frozen_layers": 1})
    first = modules.weights.write_first_weights(folder, config, 64, tmp_path)
    trained, frozen = (load_file(path) for path in first.files)
    model = source_of(config).build(dataset, 3)
    assert [path.name for path in first.frozen] == ["frozen.safetensors"]
    assert set(frozen) == frozen_names(model) and set(trained) | set(frozen) == set(first.names)
    saved = tensors_to_save(model, leaves_out_frozen=True)
    assert set(saved) == set(model.state_dict()) - set(frozen) and set(trained) < set(saved)
    assert set(tensors_to_save(model, leaves_out_frozen=False)) == set(model.state_dict())


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"not finite, in embeddings\.LayerNorm\.bias"):
        modules.weights.write_first_weights(folder, pinned(), 64, tmp_path)


def test_weights_that_are_not_those_of_the_configuration_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    for changes, message in (({"num_hidden_layers": 3}, "tensors are not there"), ({"model_type": "new"}, "'new'")):
        with pytest.raises(ConfigurationError, match=message):
            modules.weights.write_first_weights(folder, pinned(**changes), 64, tmp_path)
    with pytest.raises(ConfigurationError, match="has 64 positions, and texts may have 65 tokens"):
        modules.weights.write_first_weights(folder, pinned(), 65, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_text_has_the_answer_that_it_has_alone_whatever_stands_behind_it(kind: str, pooling: str) -> None:
    network = network_of(pooling, model_type=kind, **KINDS[kind]).eval()
    tokens, lengths = random_tokens(3, 16), torch.tensor([16, 7, 2])
    together = network(tokens, lengths, *no_metadata(3))
    alone = [
        network.of_one_length(row[None, :length], *no_metadata(1))
        for row, length in zip(tokens, lengths.tolist(), strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_has_a_gradient_and_every_pass_the_same_bits(kind: str) -> None:
    network = network_of("mean", model_type=kind, **KINDS[kind]).train()
    tokens, lengths = random_tokens(4, 16), torch.tensor([16, 7, 2, 9])
    found = []
    for _ in range(2):
        network.zero_grad(set_to_none=True)
        seed_everything(1, 2, 3)
        network(tokens, lengths, *no_metadata(4)).square().sum().backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        assert [name for name, gradient in gradients.items() if gradient is None] == []
        found.append([gradient.clone() for gradient in gradients.values() if gradient is not None])
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))


def test_metadata_are_joined_and_recomputed_layers_change_no_bit(dataset: DatasetManifest, samples: Samples) -> None:
    config = pinned()
    source, microbatch = source_of(config), microbatch_with(samples, 0.0)
    torch.manual_seed(0)
    model = source.build(dataset, 3).train()
    gradients = []
    for is_on in (False, True, False):
        source.set_activation_checkpointing(model, is_on)
        model.zero_grad(set_to_none=True)
        seed_everything(1, 2, 3)
        logits = model(microbatch)
        assert logits.shape == (len(samples), 3)
        logits.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for other in gradients[1:]:
        assert all(torch.equal(first, second) for first, second in zip(gradients[0], other, strict=True))
    model.eval()
    changed = replace(microbatch, numeric=microbatch.numeric + 1)
    assert not torch.allclose(model(microbatch), model(changed))


def test_a_second_text_begins_behind_the_first_separator() -> None:
    tokens = torch.tensor([[2, 7, 3, 8, 3, 0], [2, 3, 3, 0, 0, 0]])
    found = modules.holdfast_pretrained.token_types(tokens, tokens != 0, separator_index=3)
    assert found.tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0]]


def test_a_head_size_without_fused_attention_is_refused_on_a_gpu_alone() -> None:
    source_of(pinned()).require_device("cuda")
    with pytest.raises(ConfigurationError, match="attention heads of size 4"):
        source_of(pinned(num_attention_heads=4)).require_device("cuda")
    source_of(pinned(num_attention_heads=4)).require_device("cpu")


def test_layers_learn_at_rates_that_fall_from_the_head_to_the_token_vectors(dataset: DatasetManifest) -> None:
    config = pinned().model_copy(update={"layer_decay": 0.5})
    source = source_of(config)
    model = source.build(dataset, 3)
    factors = source.rate_factors(model)
    by_part = {
        "bert.embeddings.word_embeddings.weight": 0.125,
        "bert.encoder.layer.0.attention.self.query.weight": 0.25,
        "bert.encoder.layer.1.output.dense.bias": 0.5,
    }
    assert {name: factors[name] for name in by_part} == by_part
    assert not {"classifier.weight", "hidden.weight", "metadata.embeddings.0.weight"} & set(factors)
    train = TrainConfig(
        steps=10,
        warmup_fraction=0,
        schedule="constant",
        learning_rate=0.1,
        momentum=0,
        optimizer="sgd",
        clip_norm=1e9,
        weight_decay=0,
    )
    optimization = Optimization(model, train, torch.device("cpu"), rate_factors=factors)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimization.step(0)
    for name, parameter in model.named_parameters():
        expected = before[name] - 0.1 * factors.get(name, 1.0)
        torch.testing.assert_close(parameter, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_layers_have_no_gradient_and_those_above_have(kind: str) -> None:
    network = network_of("mean", model_type=kind, **KINDS[kind])
    layers = layers_of(network)
    assert set(layers.values()) == {0, 1, 2, 3}
    freeze(network, 1)
    network(random_tokens(2, 8), torch.tensor([8, 5]), *no_metadata(2)).sum().backward()
    for name, parameter in network.named_parameters():
        assert (parameter.grad is None) == (layers[name] <= 1), name
    freeze(network, 2)
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {
        name for name, layer in layers.items() if layer == 3
    }
