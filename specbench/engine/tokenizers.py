"""Which tokens two models share, and which end an answer."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.errors import UsageError


def shared_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> int:
    """Return how many ids, from 0, mean the same token to both tokenizers.

    Tokens are compared one by one. Added tokens beyond the last id of the other tokenizer are left
    out: they are marks that only one of the two models knows.

    Raises:
        UsageError: An id means two tokens, or a word of the language is known to one model only;
            the message names the first.
    """
    ours, theirs = _by_id(target), _by_id(draft)
    size = min(max(ours), max(theirs)) + 1
    added = {*target.added_tokens_decoder, *draft.added_tokens_decoder}
    different = [
        index
        for index in sorted(ours.keys() | theirs.keys())
        if ours.get(index) != theirs.get(index) and (index < size or index not in added)
    ]
    if different:
        first = different[0]
        raise UsageError(
            f"the models do not share a vocabulary: token {first} is {_shown(ours.get(first))} to "
            f"the target and {_shown(theirs.get(first))} to the draft ({len(different)} ids "
            "differ); choose a draft of the target's family"
        )
    return size


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Collect end tokens from the generation settings, the configuration and the tokenizer."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
    return frozenset(found)


def _by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}


def _shown(token: str | None) -> str:
    return "nothing" if token is None else repr(token)
