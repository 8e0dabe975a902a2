"""`model.kind = "pretrained"`: the model's folder, and what of it a new run pins.

Invariant: the folder is read when a run begins; what is pinned decides all that follows but the weights, of which the
run takes a copy. Neither torch nor transformers is needed here, but for what peft knows of a kind of model.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from storage.errors import ConfigurationError, IncompatibleRunError
from storage.lazy_imports import lazy_imports
from storage.objects.digests import canonical_json, sha256_of_file
from tasks.configuration.run import GivenTokenizer, RunConfig
from tasks.console.announce import warn
from tasks.data.tokenizer import TOKENIZER_FILE, load_tokenizer
from training.data.samples import PADDING_MULTIPLE
from training.model_configuration import PinnedModel, PretrainedConfig
from training.models.pretrained.source import LAYERS_NAMES, find_size

# It loads torch and peft, for model.lora alone.
with lazy_imports():
    import training.models.pretrained.lora as lora

CONFIG_FILE, TOKENIZER_CONFIG_FILE = "config.json", "tokenizer_config.json"
WEIGHTS_FILE, WEIGHTS_INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
# Of a config.json what is about a head, about how the file was made, or of no meaning for an encoder in fp32.
NOT_OF_THE_ENCODER = (
    "_name_or_path", "architectures", "auto_map", "dtype", "finetuning_task", "id2label", "label2id", "num_labels",
    "problem_type", "torch_dtype", "transformers_version",
)  # fmt: skip
# Of a tokenizer_config.json what is long: the tokens, which tokenizer.json has too, and what is about a chat.
LONG_IN_TOKENIZER_CONFIG = ("added_tokens_decoder", "chat_template")
POSITIONS = ("max_position_embeddings", "n_positions")
# Models that count a text's positions from behind the id of their padding.
POSITIONS_BEHIND_PADDING = (
    "camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
)  # fmt: skip


def pin_model(config: RunConfig) -> RunConfig:
    """The configuration of a new run with what it keeps of its pretrained model; another kind of model as it is.

    Raises `ConfigurationError` for a folder that is none, or a model that is not one that can be trained.
    """
    if not isinstance(config.model, PretrainedConfig):
        return config
    folder = find_folder(config.model)
    content, tokenizer = _read_json(folder / CONFIG_FILE, config.model), _load_tokenizer(folder, config.model)
    _require_an_encoder(content, config.model)
    padding_index = _find_padding(content, tokenizer, folder, config.model)
    _require_agreement(content, tokenizer, padding_index, config)
    pinned = PinnedModel(
        config=canonical_json({k: v for k, v in content.items() if k not in NOT_OF_THE_ENCODER}).decode(),
        files={name: sha256_of_file(folder / name) for name in _files_of(folder, config.model)},
        tokenizer_config=_find_tokenizer_config(folder, config.model),
        padding_index=padding_index,
        separator_index=_find_separator(content, tokenizer, config),
        target_modules=_find_targets(content, config.model),
    )
    given = GivenTokenizer(path=str(folder / TOKENIZER_FILE), sha256=pinned.files[TOKENIZER_FILE])
    model = config.model.model_copy(update={"pinned": pinned})
    data = config.data.model_copy(update={"tokenizer": given})
    return config.model_copy(update={"model": model, "data": data})


def require_files(config: PretrainedConfig) -> None:
    """Raise `ConfigurationError` for a folder that is not there, or has not the files of a model. No hub is asked."""
    if _is_path(config.name):
        folder = find_folder(config)
        _read_json(folder / CONFIG_FILE, config)
        _require_tokenizer(folder, config)
        _files_of(folder, config)


def require_same_model(config: RunConfig) -> None:
    """Raise `IncompatibleRunError` if the folder of a begun run's model has other files now.

    A folder that is gone, which the run does not need, is reported. What a hub has now is not asked.
    """
    if not isinstance(config.model, PretrainedConfig) or not _is_path(config.model.name):
        return
    folder = Path(config.model.name).expanduser()
    try:
        found = {name: sha256_of_file(folder / name) for name in config.model.pin.files}
    except OSError as error:
        warn(
            f"The folder of the run's pretrained model, {folder}, cannot be read ({error.strerror}), so whether it was "
            "changed is not known. The run does not need it: what it was begun with is in the store."
        )
        return
    changed = [name for name, sha256 in config.model.pin.files.items() if found[name] != sha256]
    if changed:
        raise IncompatibleRunError(
            f"The folder of the run's pretrained model, {folder}, was changed since the run began: "
            f"{', '.join(changed)}. The run goes on with what it was begun with, and with no other model: restore the "
            "folder, or give another run name to start a new run with what is there now."
        )


def find_folder(config: PretrainedConfig) -> Path:
    """The folder of the model that is named; from the hub, that of its copy here. Raises `ConfigurationError`."""
    if not _is_path(config.name):
        return _fetch(config.name)
    folder = Path(config.name).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(
            f"model.name is {config.name!r}, expected a folder with {CONFIG_FILE}, {TOKENIZER_FILE} and "
            f"{WEIGHTS_FILE}: there is no such folder."
        )
    return folder


def _is_path(name: str) -> bool:
    return name.startswith(("/", "~", "."))


def _fetch(name: str) -> Path:
    expected = "Give the path of a folder, which begins with / or ./, or a name that the hub has."
    try:
        from huggingface_hub import snapshot_download  # here: an optional package
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigurationError(
            f"model.name is {name!r}, which is no folder here; to fetch it from the Hugging Face hub takes the package "
            f"huggingface_hub: pip install 'holdfast[pretrained]'. {expected}"
        ) from error
    wanted = [CONFIG_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, WEIGHTS_INDEX_FILE, "model*.safetensors"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"model.name is {name!r}: there is no such folder here, and the Hugging Face hub did not give a model of "
            f"this name: {str(error).splitlines()[0]} {expected}"
        ) from error


def _files_of(folder: Path, config: PretrainedConfig) -> list[str]:
    """The names of all files that the model is made of."""
    names = [CONFIG_FILE, TOKENIZER_FILE]
    names += [TOKENIZER_CONFIG_FILE] if (folder / TOKENIZER_CONFIG_FILE).exists() else []
    if (folder / WEIGHTS_FILE).exists():
        return [*names, WEIGHTS_FILE]
    if not (folder / WEIGHTS_INDEX_FILE).exists():
        raise ConfigurationError(
            f"The model {config.name!r} has no weights in the safetensors format: expected {WEIGHTS_FILE} or "
            f"{WEIGHTS_INDEX_FILE} in {folder}. Files of other formats, such as pytorch_model.bin, can run code when "
            "they are read, and are not: load the model once with transformers and save it with save_pretrained."
        )
    parts = sorted(set(_read_json(folder / WEIGHTS_INDEX_FILE, config)["weight_map"].values()))
    return [*names, WEIGHTS_INDEX_FILE, *parts]


def _read_json(path: Path, config: PretrainedConfig) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"The model {config.name!r} cannot be read: {path}: {error.strerror}. Give a folder with {CONFIG_FILE}, "
            f"{TOKENIZER_FILE} and {WEIGHTS_FILE}, as save_pretrained of transformers writes it."
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"The model {config.name!r} cannot be read: {path}: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"The model {config.name!r} cannot be read: {path} has no object in it.")
    return content


def _find_tokenizer_config(folder: Path, config: PretrainedConfig) -> str | None:
    if not (folder / TOKENIZER_CONFIG_FILE).exists():
        return None
    content = _read_json(folder / TOKENIZER_CONFIG_FILE, config)
    return canonical_json({k: v for k, v in content.items() if k not in LONG_IN_TOKENIZER_CONFIG}).decode()


def _require_tokenizer(folder: Path, config: PretrainedConfig) -> None:
    if not (folder / TOKENIZER_FILE).exists():
        raise ConfigurationError(
            f"The model {config.name!r} has no {TOKENIZER_FILE}, the file of a fast tokenizer: make one with "
            f"transformers, AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )


def _load_tokenizer(folder: Path, config: PretrainedConfig) -> Tokenizer:
    _require_tokenizer(folder, config)
    try:
        return load_tokenizer(folder / TOKENIZER_FILE)
    except Exception as error:  # the library raises no narrower one
        raise ConfigurationError(
            f"The tokenizer of the model {config.name!r} cannot be read: {folder / TOKENIZER_FILE}: {error}."
        ) from error


def _require_an_encoder(content: dict[str, Any], config: PretrainedConfig) -> None:
    if not isinstance(content.get("model_type"), str):
        raise ConfigurationError(f"The model {config.name!r} has no model_type in its {CONFIG_FILE}.")
    if content.get("is_encoder_decoder"):
        raise ConfigurationError(
            f"The model {config.name!r} ({content['model_type']}) has an encoder and a decoder, expected an encoder "
            "alone, such as BERT, RoBERTa or DeBERTa."
        )
    if content.get("quantization_config"):
        raise ConfigurationError(
            f"The weights of the model {config.name!r} are quantised, expected floating-point numbers."
        )


def _find_padding(content: dict[str, Any], tokenizer: Tokenizer, folder: Path, config: PretrainedConfig) -> int:
    found = content.get("pad_token_id")
    if isinstance(found, int):
        return found
    path = folder / TOKENIZER_CONFIG_FILE
    token = _read_json(path, config).get("pad_token") if path.exists() else None
    name = token.get("content") if isinstance(token, dict) else token
    index = tokenizer.token_to_id(name) if isinstance(name, str) else None
    if index is None:
        raise ConfigurationError(
            f"The model {config.name!r} has no token for padding: neither pad_token_id in {CONFIG_FILE} nor pad_token "
            f"in {TOKENIZER_CONFIG_FILE}. Set one there."
        )
    return int(index)


def _find_separator(content: dict[str, Any], tokenizer: Tokenizer, config: RunConfig) -> int | None:
    """The token behind which a second text begins; None where rows have one, or the model does not tell them apart.

    Raises `ConfigurationError` for a tokenizer that marks two texts in another way.
    """
    assert isinstance(config.model, PretrainedConfig)
    if len(config.data.text_columns) == 1 or content.get("type_vocab_size", 0) < 2:
        return None
    found = tokenizer.encode("a", "b")
    if not any(found.type_ids):
        return None
    separator: int = found.ids[found.type_ids.index(1) - 1]
    first = found.ids.index(separator)
    if found.type_ids != [int(place > first) for place in range(len(found.ids))]:
        raise ConfigurationError(
            f"The tokenizer of the model {config.model.name!r} marks two texts in a way that is not known here: types "
            f"{found.type_ids} of the tokens {found.tokens}. Name another model, or join the texts into one column."
        )
    return separator


def _find_targets(content: dict[str, Any], config: PretrainedConfig) -> str | list[str] | None:
    """What peft adapts in this kind of model, where that is left to it: another version may know otherwise."""
    if config.lora is None or config.lora.target_modules is not None:
        return None
    try:
        return lora.known_targets(content["model_type"])
    except ImportError as error:
        raise ConfigurationError(f"{error}. It is not installed here.") from error


def _require_agreement(content: dict[str, Any], tokenizer: Tokenizer, padding_index: int, config: RunConfig) -> None:
    """Raise `ConfigurationError` for a tokenizer with more tokens than the model, and texts longer than it takes."""
    assert isinstance(config.model, PretrainedConfig)
    num_layers, frozen = find_size(content, LAYERS_NAMES), config.model.frozen_layers
    if num_layers and frozen is not None and frozen > num_layers:
        raise ConfigurationError(
            f"The model {config.model.name!r} has {num_layers} layers, and model.frozen_layers is {frozen}. Set it to "
            f"at most {num_layers}, with which the head alone is trained."
        )
    name, num_tokens, num_known = config.model.name, tokenizer.get_vocab_size(), content.get("vocab_size")
    if isinstance(num_known, int) and num_tokens > num_known:
        raise ConfigurationError(
            f"The tokenizer of the model {name!r} has {num_tokens:,} tokens, and the model knows {num_known:,}. Give a "
            "folder whose files belong together."
        )
    positions = next((content[key] for key in POSITIONS if isinstance(content.get(key), int)), None)
    if positions is None:
        return
    first = padding_index + 1 if content["model_type"] in POSITIONS_BEHIND_PADDING else 0
    most = (positions - first) // PADDING_MULTIPLE * PADDING_MULTIPLE  # to which microbatches are padded
    if config.data.max_tokens > most:
        raise ConfigurationError(
            f"The model {name!r} takes at most {most} tokens, and data.max_tokens is {config.data.max_tokens}. Set "
            f"data.max_tokens to at most {most}, and data.too_long = 'truncate' to keep the beginning of longer texts."
        )
