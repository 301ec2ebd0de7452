"""The texts of the pair ``python``: source code of installed packages, in blocks of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from pretraining.sources import SPLITS, CorpusSource, documents, read_splits
from pretraining.texts import Batch, HeldOut
from specbench.files import replacing

BLOCK = 512  # tokens of a row
HELD_OUT_BLOCKS = 96  # of each split that no model is trained on
SEED = 1  # of the order of the files
AT_ONCE = 200  # files that are encoded together
TOKENS = "tokens.npy"

Tokens = NDArray[np.uint16]


class Corpus:
    """Packages in splits, as a stream of tokens cut into blocks.

    Args:
        packages: The version and digest of each package, by split; see ``sources``.
        for_merges: Characters of text that the tokenizer is trained on.
        folder: Where the tokens are stored, since encoding takes minutes.
        packed: A file of ``sources.pack_sources`` to read instead of installed packages.
        rows_per_step: Blocks in one training step.
        rows_per_pass: Blocks that go through the model together.
    """

    one_shape = True

    def __init__(
        self,
        packages: Mapping[str, Mapping[str, str]],
        for_merges: int,
        folder: Path,
        packed: Path | None = None,
        *,
        rows_per_step: int,
        rows_per_pass: int = 8,
    ) -> None:
        self.packages, self.folder, self.packed = packages, folder, packed
        self.rows_per_step, self.rows_per_pass = rows_per_step, rows_per_pass
        self.for_merges = for_merges

    @cached_property
    def splits(self) -> dict[str, list[CorpusSource]]:
        """The files of each split."""
        return read_splits(self.packages, self.packed)

    def for_tokenizer(self) -> Iterator[str]:
        """Yield training texts up to the asked number of characters."""
        left = self.for_merges
        for text in documents(self.splits["train"], SEED):
            if left <= 0:
                return
            left -= len(text)
            yield text

    def encode(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Encode all training texts, or read their tokens from the folder."""
        self.tokenizer = tokenizer
        splits = self.splits  # also refuses another environment
        path = self.folder / TOKENS
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                np.save(file, np.concatenate(list(self._encoded(splits["train"]))))
        self.blocks = _blocks(np.load(path, mmap_mode="r"))
        self.order = np.random.default_rng(SEED).permutation(len(self.blocks))

    def batches(self, step: int, style: str | None) -> Iterator[Batch]:
        """Yield the blocks of a step; after the last block the first one follows."""
        first = step * self.rows_per_step
        rows = self.rows_per_pass
        for start in range(first, first + self.rows_per_step, rows):
            chosen = self.order[np.arange(start, start + rows) % len(self.order)]
            yield self._batch(self.blocks[chosen], rows / self.rows_per_step)

    @cached_property
    def held_out(self) -> dict[str, HeldOut]:
        """The first blocks of both splits that no model is trained on."""
        return {split: self._unseen(split) for split in SPLITS if split != "train"}

    def _unseen(self, split: str) -> HeldOut:
        tokens = np.concatenate(list(self._encoded(self.splits[split])))
        blocks = _blocks(tokens)[:HELD_OUT_BLOCKS]
        characters = len(self.tokenizer.decode(blocks.flatten(), skip_special_tokens=True))
        rows = self.rows_per_pass
        starts = range(0, len(blocks), rows)
        return HeldOut([self._batch(blocks[s : s + rows], 1.0) for s in starts], characters)

    def _encoded(self, sources: list[CorpusSource]) -> Iterator[Tokens]:
        """Yield the tokens of some texts at a time, each text followed by the end token."""
        texts = list(documents(sources, SEED))
        for start in range(0, len(texts), AT_ONCE):
            encoded = self.tokenizer(
                texts[start : start + AT_ONCE], add_special_tokens=False, verbose=False
            )
            ends = [self.tokenizer.eos_token_id]
            rows = [np.array(ids + ends, dtype=np.uint16) for ids in encoded["input_ids"]]
            yield np.concatenate(rows)

    def _batch(self, blocks: Tokens, share: float) -> Batch:
        """Return the batch that predicts every token of the blocks, the first after BOS."""
        labels: Tensor = torch.from_numpy(blocks.astype(np.int64))
        start = torch.full((len(labels), 1), self.tokenizer.bos_token_id)
        return Batch("train", share, torch.cat([start, labels[:, :-1]], 1), labels)


def _blocks(tokens: Tokens) -> Tokens:
    return tokens[: len(tokens) // BLOCK * BLOCK].reshape(-1, BLOCK)
