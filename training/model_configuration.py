"""What can be configured about a model: our own encoder, or a pretrained one that the user names.

Invariant: `kind` says which fields there are; what names no kind is our own encoder. What stands in `pinned` was read
once, when the run began: nothing that is asked of a model before it is built looks into its folder.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from training.configuration import ConfigModel

ENCODER, PRETRAINED = "encoder", "pretrained"
# Fields that a run fills in when it begins, and that nobody sets.
FILLED_IN: dict[str, JsonValue] = {"filled_in": True}


class EncoderConfig(ConfigModel):
    """A transformer encoder over the tokens, joined with the metadata before the head."""

    kind: Literal["encoder"] = Field(
        "encoder",
        description="Our own encoder, trained from nothing. The other kind is pretrained: model.kind = 'pretrained' "
        "with model.name.",
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

    def read_config(self) -> dict[str, Any]:
        """Content of config.json."""
        content: dict[str, Any] = json.loads(self.config)
        return content


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
    pinned: PinnedModel | None = Field(
        None, description="What the run keeps of the model; filled in when it begins.", json_schema_extra=FILLED_IN
    )

    @property
    def pin(self) -> PinnedModel:
        """What was pinned; in a run's manifest, and in what its ranks are told, it is never open."""
        assert self.pinned is not None, "pinned when a run begins"
        return self.pinned


def _kind_of(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("kind", ENCODER)
    return getattr(value, "kind", ENCODER)  # which says what is wrong with a value that is no section


ModelConfig = Annotated[
    Annotated[EncoderConfig, Tag(ENCODER)] | Annotated[PretrainedConfig, Tag(PRETRAINED)],
    Discriminator(
        _kind_of,
        custom_error_type="model_kind",
        custom_error_message=f"kind must be '{ENCODER}' or '{PRETRAINED}'",
    ),
]
