"""Tokens sampled with a head, with their weights, names and kinds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specbench.analysis.learned import END, kind_of, readable
from specbench.decoding.heads.head import Head
from specbench.engine.pair import LoadedPair
from specbench.training.rollouts import roll_out


@torch.no_grad()
def sample_tokens(
    pair: LoadedPair, head: Head, prompts: Sequence[list[int]], max_new_tokens: int, seed: int
) -> pd.DataFrame:
    """Sample one text per prompt with a head, from the distribution used in training.

    Returns:
        One row per token, in the order of the texts: ``text`` (its number), ``name`` (readable),
        ``kind``, ``weight`` and ``tv`` (total variation between p and q there).
    """
    generator = torch.Generator(pair.target.device).manual_seed(seed)
    rollouts = roll_out(pair, [head], prompts, max_new_tokens, generator)
    # Roll-outs are ordered by step; a stable sort groups them by text.
    order = rollouts.row.argsort(stable=True)
    columns = (rollouts.row, rollouts.token, head(rollouts.inputs), rollouts.tv)
    text, token, weight, tv = (column[order].cpu() for column in columns)
    return pd.DataFrame(
        {
            "text": text.numpy(),
            **_names_and_kinds(pair, text, token),
            "weight": weight.double().numpy(),
            "tv": tv.double().numpy(),
        }
    )


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text of a token in mid-sentence, including a leading space."""
    anchor = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    alone, after = str(tokenizer.decode(anchor)), str(tokenizer.decode([*anchor, token]))
    text = after.removeprefix(alone) if after.startswith(alone) else str(tokenizer.decode([token]))
    if not text or "\N{REPLACEMENT CHARACTER}" in text:  # part of a character
        return str(tokenizer.convert_ids_to_tokens(token))
    return text


def _names_and_kinds(pair: LoadedPair, text: Tensor, token: Tensor) -> dict[str, list[str]]:
    """Columns ``name`` and ``kind`` of tokens ``[M]`` in the order of their texts."""
    ids = token.tolist()
    name_of = {i: token_text(pair.tokenizer, i) for i in set(ids)}
    names = [name_of[i] for i in ids]
    same_text = [False, *(text[1:] == text[:-1]).tolist()]
    before = [last if same else "" for last, same in zip(["", *names[:-1]], same_text, strict=True)]
    return {
        "name": [readable(name) for name in names],
        "kind": [
            END if i in pair.eos_ids else kind_of(name, last)
            for i, name, last in zip(ids, names, before, strict=True)
        ],
    }
