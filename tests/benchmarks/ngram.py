"""Held-out loss of a 5-gram model, to compare with the learning curve of the pair ``python``.

Interpolated Kneser-Ney smoothing over the same training tokens and the same held-out blocks.

    python tasks/make_pair.py python
    PYTHONPATH=tasks python tests/benchmarks/ngram.py results/pairs/python
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from make_pair import WORK
from numpy.typing import NDArray
from pretraining.corpus import BLOCK, TOKENS, Corpus
from transformers import PreTrainedTokenizerFast

from specbench.pairs.registry import PAIRS_FILE
from specbench.validation import load_toml

BITS = 12  # of a token; five of them fit into one integer
LONGEST = 5
DISCOUNT = 0.75

Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]


class Order:
    """The n-grams of one length: their counts, and those of their contexts.

    Of the longest, occurrences are counted, of others the distinct tokens before them.
    """

    def __init__(self, occurrences: Keys) -> None:
        self.grams, self.counts = np.unique(occurrences, return_counts=True)
        self.contexts, first = np.unique(self.grams >> BITS, return_index=True)
        self.totals = np.add.reduceat(self.counts, first)
        self.kinds = np.diff(np.append(first, len(self.grams)))

    def probability(self, grams: Keys, shorter: Floats) -> Floats:
        """Return the probability of the last token of each n-gram, given that of a shorter one."""
        counts = looked_up(self.grams, self.counts, grams)
        totals = looked_up(self.contexts, self.totals, grams >> BITS)
        kinds = looked_up(self.contexts, self.kinds, grams >> BITS)
        seen = totals > 0
        safe = np.where(seen, totals, 1)
        found = (np.maximum(counts - DISCOUNT, 0) + DISCOUNT * kinds * shorter) / safe
        return np.where(seen, found, shorter)


def keys(stream: Keys, length: int) -> Keys:
    """Return all n-grams of a stream as integers."""
    found = np.zeros(len(stream) - length + 1, dtype=np.uint64)
    for place in range(length):
        found = (found << BITS) | stream[place : place + len(found)]
    return found


def looked_up(known: Keys, values: NDArray[np.int64], wanted: Keys) -> NDArray[np.int64]:
    """Return the values of keys, 0 for unknown ones."""
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, values[place], 0)


def main() -> None:
    """Print the loss of every order on both held-out splits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    tables = load_toml(PAIRS_FILE.parent / "python" / "recipe.toml", "recipe")
    corpus = Corpus(tables["packages"], 0, folder / WORK, rows_per_step=1)
    corpus.encode(PreTrainedTokenizerFast.from_pretrained(folder / WORK / "tokenizer"))
    trained = np.load(folder / WORK / TOKENS).astype(np.uint64)
    names = list(corpus.held_out)
    blocks = [
        np.concatenate([batch.labels.numpy() for batch in corpus.held_out[name].batches])
        for name in names
    ]
    size = len(corpus.tokenizer)
    likely = [np.full(block.size, 1 / size) for block in blocks]
    orders = [Order(keys(trained, LONGEST))]
    for length in reversed(range(1, LONGEST)):
        mask = np.uint64((1 << BITS * length) - 1)
        orders.append(Order(orders[-1].grams & mask))
    for length, order in enumerate(reversed(orders), 1):
        for number, (name, block) in enumerate(zip(names, blocks, strict=True)):
            # The first tokens of a block have shorter contexts, as for the models.
            for place in range(length - 1, BLOCK):
                window = block[:, place - length + 1 : place + 1].astype(np.uint64)
                grams = np.zeros(len(window), dtype=np.uint64)
                for column in window.T:
                    grams = (grams << BITS) | column
                at = np.arange(len(window)) * BLOCK + place
                likely[number][at] = order.probability(grams, likely[number][at])
            loss = -np.log(likely[number])
            per_character = loss.sum() / corpus.held_out[name].characters
            print(
                f"{length}-gram {name}: {loss.mean():.3f} nats per token, {per_character:.3f}"
                " per character",
                flush=True,
            )


if __name__ == "__main__":
    main()
