"""Text for the experiments: inflection tables, parallel sentences, vocabularies, batches."""

from __future__ import annotations

import gzip
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
Pair = tuple[list[str], list[str]]
"""Source words and target words."""


@dataclass(frozen=True)
class Inflection:
    """``form`` is the word ``lemma`` of ``language`` with the morphological ``tags``."""

    language: str
    lemma: str
    form: str
    tags: tuple[str, ...]

    @property
    def source(self) -> list[str]:
        """Language, tags, characters (Peters et al. 2019, §4.1); words in <> are one symbol."""
        return [f"<{self.language}>", *(f"<{tag}>" for tag in self.tags), *self.lemma]

    @property
    def target(self) -> list[str]:
        """The form's characters."""
        return list(self.form)


def inflections(path: Path, split: str) -> dict[str, list[Inflection]]:
    """The CoNLL–SIGMORPHON 2018 task 1 tables of a split, by language, in alphabetical order.

    ``path``: a folder with files ``LANGUAGE-SPLIT`` at any depth, or a tar archive of one.
    ``split``: "train-medium", "train-high" or "dev". A line is ``lemma TAB form TAB tag;tag``.
    """
    found = {}
    for name, text in _files(path, f"-{split}"):
        language = name.removesuffix(f"-{split}")
        found[language] = [_inflection(language, line) for line in text.splitlines() if line]
    if not found:
        raise ValueError(f"data: no files LANGUAGE-{split} in {path}")
    return dict(sorted(found.items()))


def _inflection(language: str, line: str) -> Inflection:
    lemma, form, tags = line.split("\t")
    return Inflection(language, lemma, form, tuple(tags.split(";")))


def _files(path: Path, suffix: str) -> Iterator[tuple[str, str]]:
    """Name and text of the files whose name ends with ``suffix``."""
    if path.is_dir():
        for file in path.rglob(f"*{suffix}"):
            yield file.name, file.read_text(encoding="utf-8")
        return
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith(suffix) else None
            if content is not None:
                yield Path(member.name).name, content.read().decode("utf-8")


def parallel(path: Path, split: str, source: str, target: str) -> list[Pair]:
    """Sentence pairs of a split ("train", "val"), words separated by blanks.

    ``path``: a folder with a file ``SPLIT.*.LANGUAGE`` for each language, or the same with
    ``.gz``, as Multi30k's ``train.lc.norm.tok.fr.gz``; line k of one translates line k of the
    other. Pairs with an empty side are left out.
    """
    sides = [_lines(path, split, language) for language in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"data: {split} has {len(sides[0])} lines in {source}, {len(sides[1])} in {target}"
        )
    pairs = ((s.split(), t.split()) for s, t in zip(*sides, strict=True))
    return [(s, t) for s, t in pairs if s and t]


def _lines(path: Path, split: str, language: str) -> list[str]:
    for pattern in (f"{split}*.{language}", f"{split}*.{language}.gz"):
        for file in sorted(path.glob(pattern)):
            raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            # only a line feed ends a line: sentences contain other Unicode separators
            return raw.decode("utf-8").rstrip("\n").split("\n")
    raise ValueError(f"data: no file {split}*.{language} or {split}*.{language}.gz in {path}")


class Vocabulary:
    """Symbols and their numbers: the special ones first, then the others by frequency."""

    def __init__(
        self, sequences: Iterable[Iterable[str]], min_count: int = 1, size: int | None = None
    ) -> None:
        """``size``: the greatest number of symbols, without the special ones."""
        counts = Counter(symbol for sequence in sequences for symbol in sequence)
        order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        kept = [symbol for symbol, count in order if count >= min_count][:size]
        self.symbols = [*SPECIAL, *kept]
        self.index = {symbol: k for k, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """Numbers of symbols, UNK for the unknown."""
        return [self.index.get(symbol, UNK) for symbol in symbols]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Symbols of numbers up to the first EOS, without padding and BOS."""
        symbols = []
        for number in numbers:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                symbols.append(self.symbols[number])
        return symbols


def pad(sequences: Sequence[Sequence[int]], device: torch.device | None = None) -> Tensor:
    """(n, longest) int64, PAD behind each sequence."""
    longest = max(map(len, sequences))
    rows = [[*sequence, *[PAD] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64, device=device)


def shifted(
    targets: Sequence[Sequence[int]], device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """The decoder's inputs and targets: BOS y₁ … yₙ and y₁ … yₙ EOS, padded."""
    given = pad([[BOS, *target] for target in targets], device)
    wanted = pad([[*target, EOS] for target in targets], device)
    return given, wanted


def bucketed(
    lengths: Sequence[int], batch: int, generator: torch.Generator | None = None
) -> list[list[int]]:
    """Batches of indices of similar lengths.

    With a generator, in random order: random pools of 50 batches are sorted by length and cut into
    batches, and the batches are shuffled. Without one, sorted by length, the longest first.
    """
    if generator is None:
        order = sorted(range(len(lengths)), key=lambda k: -lengths[k])
        return _cut(order, batch)
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    pools = (sorted(pool, key=lambda k: lengths[k]) for pool in _cut(shuffled, 50 * batch))
    batches = [part for pool in pools for part in _cut(pool, batch)]
    return [batches[k] for k in torch.randperm(len(batches), generator=generator).tolist()]


def _cut(items: list[int], size: int) -> list[list[int]]:
    return [items[k : k + size] for k in range(0, len(items), size)]
