"""Folders of tiny pretrained models, as transformers and `tokenizers` write them, with random weights."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = ("the", "card", "bill", "book", "flight", "plan", "meeting", "pay", "again", "next")
CONFIG: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64, "type_vocab_size": 2, "pad_token_id": 0, "architectures": ["BertModel"],
}  # fmt: skip


def write_pretrained_files(folder: Path, weights: bytes | None = b"none", **config: Any) -> Path:
    """A folder for what does not load the model: its weights are no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    # As many come: with lengths that are not ours.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = CONFIG | {"vocab_size": tokenizer.get_vocab_size()} | config
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", "do_lower_case": True}))
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    return folder


def write_tiny_bert(folder: Path, seed: int = 0) -> Path:
    """A BERT of two layers, whose vocabulary has the words of `tests.helpers.parquet` and all letters."""
    import torch  # here, as the next: those who write no weights need neither
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    write_pretrained_files(folder, None)
    logging.disable_progress_bar()
    torch.manual_seed(seed)
    content = json.loads((folder / "config.json").read_text())
    BertModel(BertConfig(**content)).save_pretrained(folder)
    return folder


def make_tokenizer(words: Iterable[str] = WORDS) -> Tokenizer:
    """A WordPiece tokenizer with a template for one text and for two."""
    tokens = [*SPECIAL, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
