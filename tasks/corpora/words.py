"""The made-up languages of a policy corpus: pronounceable words, common ones and ones that give a class away.

Invariant: the words depend on nothing, not even on the corpus's seed. A model trained on one corpus can read another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from tasks.corpora.draws import Integers, choices

NUM_COMMON_WORDS = 1500
NUM_STEMS = 24
_WORDS_KEY = 0x776F726473
_ENDS = ("", ",", ".", "!", "?")
_SENTENCE_ENDS = np.array([2, 2, 2, 2, 3, 4])


@dataclass(frozen=True)
class Language:
    """What syllables are made of, and the endings that a language gives to words borrowed from all the world."""

    code: str
    onsets: str
    vowels: str
    codas: str
    endings: tuple[str, str, str]


LANGUAGES = (
    Language("en", "b c d f g h l m n p r s t w st th br", "a e i o u ea ou", ". . n r t s nd ck", ("", "s", "ing")),
    Language("es", "b c d f g j l m n p r s t v ll ñ", "a e i o u ía ue", ". . . n r s l", ("a", "os", "ar")),
    Language("de", "b d f g h k l m n r s t w z sch kl", "a e i o u ä ö ü ei", ". n r t ß cht ng", ("e", "en", "ung")),
    Language("ru", "б в г д ж з к л м н п р с т ч ш", "а е и о у я ы", ". . . н р т сть", ("", "ы", "ить")),  # noqa: RUF001
    Language("ja", "カ サ タ ナ ハ マ ラ ガ ザ ダ キ シ チ", "ー イ ウ ン ッカ ョウ", ". . ン ス ト", ("", "ル", "サ")),
)


class Lexicon:
    """Every surface form of every word, so that a text is a list of integers until the very end.

    A form is (word, capitalised or not, one of five endings of punctuation); words are laid out language by language,
    in each the common ones by falling frequency, then class by class the telling ones.
    """

    def __init__(self, num_classes: int) -> None:
        self._words_per_language = NUM_COMMON_WORDS + num_classes * NUM_STEMS
        self._forms = pa.array(list(_forms(num_classes)), pa.string())
        # Zipf's law, flattened at the top as in real text, where the commonest word is some 5 % of all.
        self._common_shares = 1 / (np.arange(NUM_COMMON_WORDS) + 5.0)
        self._stem_shares = 1 / (np.arange(NUM_STEMS) + 3.0)

    def draw_common(self, generator: np.random.Generator, languages: Integers) -> Integers:
        """A common word for each entry of `languages`."""
        return languages * self._words_per_language + choices(generator.random(len(languages)), self._common_shares)

    def draw_telling(self, generator: np.random.Generator, languages: Integers, classes: Integers) -> Integers:
        """A word of the class for each entry of `languages` and `classes`."""
        stems = choices(generator.random(len(classes)), self._stem_shares)
        return languages * self._words_per_language + NUM_COMMON_WORDS + classes * NUM_STEMS + stems

    def write_texts(self, generator: np.random.Generator, words: Integers, lengths: Integers) -> pa.Array:
        """Texts of `lengths` words each, cut into sentences of some ten words, from words laid end to end."""
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        draws = generator.random(len(words))
        is_last = draws < 0.1
        is_last[offsets[1:] - 1] = True
        is_first = np.roll(is_last, 1)
        ends = (draws > 0.93).astype(np.int64)
        ends[is_last] = generator.choice(_SENTENCE_ENDS, int(is_last.sum()))
        forms = self._forms.take(pa.array((words * 2 + is_first) * len(_ENDS) + ends))
        return pa.compute.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), forms), " ")


@cache
def load_lexicon(num_classes: int) -> Lexicon:
    """The lexicon for so many classes; made once per process, in some tens of milliseconds."""
    return Lexicon(num_classes)


def _forms(num_classes: int) -> Iterator[str]:
    generator = np.random.Generator(np.random.Philox(key=_WORDS_KEY))
    stems = _distinct_words(generator, LANGUAGES[0], num_classes * NUM_STEMS, [2])
    for language in LANGUAGES:
        common = _distinct_words(generator, language, NUM_COMMON_WORDS, [1] * 60 + [2] * 500 + [3])
        endings = generator.choice(language.endings, len(stems))
        for word in common + [f"{stem}{ending}" for stem, ending in zip(stems, endings, strict=True)]:
            for case in (word, word.capitalize()):
                yield from (f"{case}{end}" for end in _ENDS)


def _distinct_words(
    generator: np.random.Generator, language: Language, num_words: int, num_syllables: list[int]
) -> list[str]:
    """Words that differ from each other; `num_syllables` of the first, the second, ..., its last entry for the rest.

    A language runs out of short words; after a few draws in vain a word becomes longer by a syllable.
    """
    words: dict[str, None] = {}
    for index in range(num_words):
        num, attempts = num_syllables[min(index, len(num_syllables) - 1)], 0
        while (word := _draw_word(generator, language, num + attempts // 8)) in words:
            attempts += 1
        words[word] = None
    return list(words)


def _draw_word(generator: np.random.Generator, language: Language, num_syllables: int) -> str:
    parts = [language.onsets.split(), language.vowels.split()] * num_syllables + [language.codas.split()]
    picked = [part[int(draw * len(part))] for part, draw in zip(parts, generator.random(len(parts)), strict=True)]
    return "".join(picked).removesuffix(".")
