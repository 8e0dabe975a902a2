"""Byte-level BPE, learned on training texts, or the tokenizer of a pretrained model; applied in constant memory.

Invariant: the same texts give the same `tokenizer.json`, byte for byte; in what is learned no text has an unknown
token, and id 0 is padding. No text contains a special token, not even one that spells its name: those of a pretrained
model are added around it.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from storage.errors import ConfigurationError
from storage.objects.digests import sha256_of_file
from tasks.configuration.run import GivenTokenizer
from training.export.standalone.holdfast_texts import beginnings, longest_token

TOKENIZER_FILE = "tokenizer.json"
PADDING = "[PAD]"
PADDING_INDEX = 0
Text = str | tuple[str, ...]  # one, or two that belong together

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
    tokenizer = Tokenizer.from_file(str(path))
    # A pretrained model's may come with lengths of its own.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_texts(tokenizer: Tokenizer, texts: Sequence[Text], with_special_tokens: bool = False) -> pa.ListArray:
    """Token ids as lists of int32, one for each text, or for each pair of texts, which special tokens part."""
    tokenizer.encode_special_tokens = True  # a text with [PAD] means these five characters
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=with_special_tokens)]
    lengths = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    values = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def shortened(
    tokenizer: Tokenizer, texts: Sequence[Text], max_tokens: int, with_special_tokens: bool = False
) -> pa.ListArray:
    """The first `max_tokens` tokens of each text, special tokens included, all of which are kept.

    Of a text that is far longer only the beginning is encoded, where no special tokens are added.
    """
    if with_special_tokens:
        tokenizer.enable_truncation(max_tokens)
        return encode_texts(tokenizer, texts, with_special_tokens)
    whole = [text for text in texts if isinstance(text, str)]
    if len(whole) != len(texts):
        raise TypeError("two texts are read together by the tokenizer of a pretrained model alone")
    tokens = encode_texts(tokenizer, beginnings(whole, longest_token(tokenizer), max_tokens))
    return pc.list_slice(tokens, 0, max_tokens)


def copy_given(given: GivenTokenizer, folder: Path) -> Path:
    """A copy in `folder` of the tokenizer that is given. Raises `ConfigurationError` if it is not there as it was."""
    copied = folder / TOKENIZER_FILE
    try:
        shutil.copyfile(given.path, copied)
    except OSError as error:
        raise ConfigurationError(
            f"The tokenizer of the pretrained model, {given.path}, cannot be read: {error.strerror}. The data set has "
            "to be prepared with it. Restore the file."
        ) from error
    if sha256_of_file(copied) != given.sha256:
        raise ConfigurationError(
            f"The tokenizer of the pretrained model, {given.path}, is not what it was when the run began. The data set "
            "has to be prepared with it. Restore the file, or give another run name to start a new run."
        )
    return copied
