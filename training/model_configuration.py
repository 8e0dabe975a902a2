"""What can be configured about a model: our own encoder, a pretrained one that the user names, or a module of his own.

Invariant: `kind` says which fields there are; what names no kind is our own encoder. What stands in `pinned` was read
once, when the run began: nothing that is asked of a model before it is built looks into its folder.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from training.configuration import FILLED_IN, ConfigModel, PinnedCode
from training.own_code import Reference, parse_reference

ENCODER, PRETRAINED, MODULE = "encoder", "pretrained", "module"


class EncoderConfig(ConfigModel):
    """A transformer encoder over the tokens, joined with the metadata before the head."""

    kind: Literal["encoder"] = Field(
        "encoder",
        description="Our own encoder, trained from nothing. The other kinds: model.kind = 'pretrained' with "
        "model.name, and model.kind = 'module' with model.factory.",
    )
    width: int = Field(128, ge=8, description="Size of the token vectors.")
    layers: int = Field(2, ge=1, description="Number of encoder blocks.")
    heads: int = Field(4, ge=1, description="Attention heads; must divide width, on a GPU into multiples of 8.")
    feedforward: int = Field(512, ge=8, description="Inner size of the feed-forward layers.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of activations zeroed in training.")
    metadata_width: int = Field(16, ge=1, description="Size of the vector of one categorical column.")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "EncoderConfig":
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width: {self.describe('width', 'heads')}. Set heads to a divisor of width"
            )
        return self


class PinnedModel(ConfigModel):
    """What a run keeps of a pretrained model as it was when the run began."""

    config: str = Field(description="Its config.json, as one line of JSON.")
    files: dict[str, str] = Field(description="SHA-256 of each file that was read, by its name in the folder.")
    tokenizer_config: str | None = Field(None, description="Its tokenizer_config.json without the tokens.")
    padding_index: int = Field(description="Id of the token that pads.")
    separator_index: int | None = Field(
        description="Id of the token after which a second text begins, where the model tells its two texts apart."
    )
    target_modules: str | list[str] | None = Field(
        None, description="Which layers peft adapts in this kind of model, where model.lora does not name them."
    )

    def read_config(self) -> dict[str, Any]:
        """Content of config.json."""
        content: dict[str, Any] = json.loads(self.config)
        return content


class LoraConfig(ConfigModel):
    """LoRA by peft: small matrices beside the encoder's own are trained, and the head, and nothing else."""

    rank: int = Field(8, ge=1, description="Size of the small matrices: peft's r.")
    alpha: int = Field(16, ge=1, description="What the adapters add is multiplied by alpha / rank: peft's lora_alpha.")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of an adapter's inputs that are zeroed in training: peft's lora_dropout."
    )
    target_modules: str | list[str] | None = Field(
        None,
        description="Which linear layers get an adapter: a list of the last parts of their names, as ['query', "
        "'value'], 'all-linear', or a regular expression for whole names. Default: those that peft knows for this kind "
        "of model, the attention's queries and values mostly; all linear ones where it knows of none. The pooling "
        "layer gets none: it is trained itself.",
    )
    rslora: bool = Field(
        False, description="Multiply by alpha / sqrt(rank) instead, for large ranks: peft's use_rslora."
    )

    @field_validator("target_modules")
    @classmethod
    def _names_something(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and not value:
            raise ValueError("must name layers, as ['query', 'value'], or be 'all-linear'")
        return value


class PretrainedConfig(ConfigModel):
    """A pretrained encoder, of those that AutoModel of transformers gives, joined with the metadata before a new head.

    Texts are read by its own tokenizer, and training begins with its weights. Needs the package transformers.
    """

    kind: Literal["pretrained"] = Field(description="A pretrained model, which model.name names.")
    name: str = Field(
        min_length=1,
        description="The model: a folder with config.json, tokenizer.json and its weights in .safetensors, or its name "
        "on the Hugging Face hub, as organisation/model. A relative path begins with ./ or is that of a folder that is "
        "there, taken from the configuration file's folder. Read once, when the run begins; the run keeps what it "
        "needs.",
    )
    pooling: Literal["mean", "cls"] = Field(
        "mean",
        description="What stands for a whole text: the mean over its tokens' vectors, or the first token's vector, "
        "after the model's own pooling layer where it has one.",
    )
    dropout: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of activations before the head that are zeroed in training; within the encoder its own "
        "config.json says how many.",
    )
    metadata_width: int = Field(16, ge=1, description="Size of the vector of one categorical column.")
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="What a layer's learning rate is of that of the layer above it; the head has train.learning_rate, "
        "the token vectors the lowest. 1: all layers learn at one rate.",
    )
    frozen_layers: int | None = Field(
        None,
        ge=0,
        description="How many of the encoder's lowest layers are not trained; the token vectors neither, also with 0. "
        "Default: everything is trained.",
    )
    lora: LoraConfig | None = Field(
        None,
        description="A section [model.lora]: train adapters and the head alone; an empty one will do. Needs the "
        "package peft. Default: no adapters.",
    )
    pinned: PinnedModel | None = Field(
        None, description="What the run keeps of the model; filled in when it begins.", json_schema_extra=FILLED_IN
    )

    @model_validator(mode="after")
    def _goes_with_lora(self) -> "PretrainedConfig":
        if self.lora is not None and self.frozen_layers is not None:
            raise ValueError(
                f"frozen_layers does not go with lora, with which none of the encoder's own weights are trained: "
                f"{self.describe('frozen_layers')}. Take frozen_layers out, or lora"
            )
        return self

    @property
    def pin(self) -> PinnedModel:
        """What was pinned; in a run's manifest, and in what its ranks are told, it is never open."""
        assert self.pinned is not None, "pinned when a run begins"
        return self.pinned


class ModuleConfig(ConfigModel):
    """A module of your own, which a function in a file or a package of yours builds."""

    kind: Literal["module"] = Field(description="A module of your own, which model.factory builds.")
    factory: str = Field(
        min_length=1,
        description="The function that builds it: './my_models.py:build' for one in a file, whose path is taken from "
        "the configuration file's folder, or 'my_package.models:build' for one in a package that is installed. It is "
        "called as build(inputs, **options) and returns a torch.nn.Module.",
    )
    options: dict[str, JsonValue] = Field({}, description="What the function is given besides, by its own names.")
    pinned: PinnedCode | None = Field(
        None, description="What the run keeps of the code; filled in when it begins.", json_schema_extra=FILLED_IN
    )

    @field_validator("factory")
    @classmethod
    def _names_a_function(cls, value: str) -> str:
        parse_reference(value, "factory")
        return value

    @property
    def reference(self) -> Reference:
        """The function that is named."""
        return parse_reference(self.factory, "model.factory")

    @property
    def pin(self) -> PinnedCode:
        """What was pinned; in a run's manifest, and in what its ranks are told, it is never open."""
        assert self.pinned is not None, "pinned when a run begins"
        return self.pinned


def _kind_of(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("kind", ENCODER)
    return getattr(value, "kind", ENCODER)  # which says what is wrong with a value that is no section


ModelConfig = Annotated[
    Annotated[EncoderConfig, Tag(ENCODER)]
    | Annotated[PretrainedConfig, Tag(PRETRAINED)]
    | Annotated[ModuleConfig, Tag(MODULE)],
    Discriminator(
        _kind_of,
        custom_error_type="model_kind",
        custom_error_message=f"kind must be '{ENCODER}', '{PRETRAINED}' or '{MODULE}'",
    ),
]
