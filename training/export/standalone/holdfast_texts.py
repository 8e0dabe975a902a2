"""Texts on their way to the tokenizer, however long they are.

Invariant: what is left out of a text would have become none of the tokens that are kept. Of byte-level BPE alone; this
file imports Python's own library, since the preparation of the training data uses it too, without torch.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

# What the tokenizer gives for one text takes far more memory than its ids.
TEXTS_TOGETHER, CHARACTERS_TOGETHER = 1024, 2**23
END_OF_A_WORD = re.compile(r"\S(?= )")


def longest_token(tokenizer: Any) -> int:
    """The most characters that a token may stand for: no more than are in its name. It takes a look at all of them."""
    return max(map(len, tokenizer.get_vocab()))


def beginnings(texts: Sequence[str], token_characters: int, max_tokens: int) -> list[str]:
    """Of each text what its first `max_tokens` tokens are made of: of one that is far longer only the beginning.

    `token_characters` is that of `longest_token`.
    """
    most = max_tokens * token_characters
    return [_beginning(text, most) for text in texts]


def together(texts: Sequence[Any]) -> Iterator[list[Any]]:
    """All texts in their order, in parts of which the tokenizer's answers fit into memory; or all tuples of texts."""
    part: list[Any] = []
    num_characters = 0
    for text in texts:
        length = len(text) if isinstance(text, str) else sum(map(len, text))
        if part and (len(part) == TEXTS_TOGETHER or num_characters + length > CHARACTERS_TOGETHER):
            yield part
            part, num_characters = [], 0
        part.append(text)
        num_characters += length
    if part:
        yield part


def _beginning(text: str, num_characters: int) -> str:
    """The text up to the first end of a word behind so many characters.

    A token never reaches over the end of a word, so the tokens up to there are those that the whole text begins with.
    """
    found = END_OF_A_WORD.search(text, num_characters) if len(text) > num_characters else None
    return text[: found.end()] if found else text
