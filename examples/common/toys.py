"""Generated data with rules that a small model learns in seconds."""

from __future__ import annotations

import random

from .text import Inflection, Pair

VOWELS, CONSONANTS = "aeiou", "bdgklmnprst"


def inflections(count: int, seed: int = 0) -> dict[str, list[Inflection]]:
    """Verbs of two languages. The past has an affix with the stem's last vowel; the plural doubles
    the first syllable. One language has prefixes, the other suffixes."""
    draw = random.Random(f"inflection {seed}")
    return {name: [_verb(name, draw) for _ in range(count)] for name in ("prefixing", "suffixing")}


def _verb(language: str, draw: random.Random) -> Inflection:
    syllables = [draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(draw.randint(2, 3))]
    lemma = "".join(syllables)
    tense, number = draw.choice(("PRS", "PST")), draw.choice(("SG", "PL"))
    stem = syllables[0] + lemma if number == "PL" else lemma
    ending = f"t{lemma[-1]}" if tense == "PST" else ""
    form = ending + stem if language == "prefixing" else stem + ending
    return Inflection(language, lemma, form, ("V", tense, number))


ARTICLES = {"lo": "the", "un": "a"}
ADJECTIVES = {"ruj": "red", "vert": "green", "gran": "big", "petit": "small", "vell": "old"}
NOUNS = {
    "gat": "cat", "can": "dog", "ome": "man", "dona": "woman", "ostal": "house", "arbre": "tree",
    "libre": "book", "auto": "car", "flor": "flower", "pont": "bridge",
}  # fmt: skip
VERBS = {"vei": "sees", "pren": "takes", "ten": "holds", "vol": "wants", "porta": "carries"}


def translations(count: int, seed: int = 0) -> list[Pair]:
    """Sentences such as "the red cat sees a dog". In the source the adjective follows the noun, and
    "the" joins a noun that starts with a vowel: l'arbre."""
    draw = random.Random(f"translation {seed}")
    return [_sentence(draw) for _ in range(count)]


def _sentence(draw: random.Random) -> Pair:
    verb = draw.choice(sorted(VERBS))
    (before, one), (after, other) = _phrase(draw), _phrase(draw)
    return [*before, verb, *after], [*one, VERBS[verb], *other]


def _phrase(draw: random.Random) -> Pair:
    article, noun = draw.choice(sorted(ARTICLES)), draw.choice(sorted(NOUNS))
    adjectives = draw.sample(sorted(ADJECTIVES), draw.randint(0, 2))
    elided = article == "lo" and noun[0] in VOWELS
    source = [f"l'{noun}"] if elided else [article, noun]
    target = [ARTICLES[article], *(ADJECTIVES[a] for a in adjectives), NOUNS[noun]]
    return [*source, *adjectives], target
