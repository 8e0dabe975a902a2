"""Byte-level BPE: learned on training texts, applied to all texts in constant memory.

Invariant: the same texts give the same `tokenizer.json`, byte for byte; no text has an unknown token; id 0 is padding
and no text contains it, not even one that spells its name.
"""

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.export.standalone.holdfast_texts import beginnings, longest_token

TOKENIZER_FILE = "tokenizer.json"
PADDING = "[PAD]"
PADDING_INDEX = 0

# Set explicitly, because the library otherwise warns, and stops using its threads, once the process has forked.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Learn at most `vocabulary_size` tokens: padding, the 256 bytes, and the most frequent merges of them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PADDING],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.token_to_id(PADDING) == PADDING_INDEX
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a prepared data set, ready for `encode_texts`."""
    return Tokenizer.from_file(str(path))


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> pa.ListArray:
    """Token ids as lists of int32, one for each text."""
    tokenizer.encode_special_tokens = True  # a text with [PAD] means these five characters
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    lengths = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    values = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def shortened(tokenizer: Tokenizer, texts: list[str], max_tokens: int) -> pa.ListArray:
    """The first `max_tokens` tokens of each text; of a text that is far longer only the beginning is encoded."""
    tokens = encode_texts(tokenizer, beginnings(texts, longest_token(tokenizer), max_tokens))
    return pc.list_slice(tokens, 0, max_tokens)
