"""Published GGUF files: prompts and greedy texts against llama.cpp's own server.

``make models FOLDER=...`` runs these tests with the files of that folder; ``TARGETS`` names them.
"""

import os
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

import httpx2
import pytest
import torch

from specbench.decoding.drafters.registry import parse_kind
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, custom_pair
from specbench.engine.prompts import encode
from specbench.methods.strict import sd
from specbench.validation.libraries import llamacpp_server
from tests.decoding.helpers import GREEDY, run

FOLDER = Path(os.environ.get("FOLDER", "."))
PROMPTS = int(os.environ.get("PROMPTS", "30"))
NEW_TOKENS = 48
# Targets and their drafts; the others draft by prompt lookup.
TARGETS = {
    "smollm2-135m-instruct-q4_1.gguf": None,
    "gemma-3-270m-q4_k_m.gguf": None,
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": None,
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}
FORMS = ("Explain {} in two sentences.", "Write a Python function for {}.", "Sur « {} » :")
SUBJECTS = (
    "prime numbers|the water cycle|naïve sorting, O(n²)|  two  spaces\tand a tab|日本語の助詞|"
    "[1, 2, 3]|the word 'don't'|12345 + 67890|emoji 🙂🚀|<b>bold</b>"
)
TEXTS = [form.format(subject) for subject in SUBJECTS.split("|") for form in FORMS][:PROMPTS]


def servers_prompt(url: str, text: str, chat: bool) -> list[int]:
    """Return the tokens of a prompt by the server's own template and tokenizer."""
    if chat:
        messages = {"messages": [{"role": "user", "content": text}]}
        text = httpx2.post(f"{url}/apply-template", json=messages).json()["prompt"]
    body = {"content": text, "add_special": True, "parse_special": True}
    return list(httpx2.post(f"{url}/tokenize", json=body).json()["tokens"])


def margin_and_rounding(
    pair: LoadedPair, prompt: list[int], texts: Sequence[list[int]]
) -> tuple[float, float]:
    """Return how far two tokens are apart where texts first differ, and the rounding there.

    The rounding is the greatest difference of a logit between reading the text token by token
    after the prompt, and reading its last 2, 4 or 6 tokens or all of it in one pass.
    """
    size = sum(takewhile(bool, (a == b for a, b in zip(*texts, strict=False))))
    # A text that is shorter ended there, by any of the end tokens.
    rivals = [text[size : size + 1] or sorted(pair.eos_ids) for text in texts]
    context = torch.tensor(prompt + texts[0][:size])
    by_token = last_logits(pair, context, [*range(len(prompt) - 1, len(context))])
    rounding = max(
        float((by_token - last_logits(pair, context, [start])).abs().max())
        for start in (len(context) - 6, len(context) - 4, len(context) - 2, 0)
    )
    first, second = (by_token[ids].max() for ids in rivals)
    return float((first - second).abs()), rounding


def last_logits(pair: LoadedPair, context: torch.Tensor, starts: Sequence[int]) -> torch.Tensor:
    """Return the target's logits after a text whose passes begin at ``starts``."""
    pair.target.reserve(1, len(context))
    pair.target.prefill(context[: starts[0] + 1])
    for start, end in pairwise([*starts, len(context)]):
        at = torch.arange(start, end)
        logits = pair.target.read(context[None, start:end], at[None])[1][0, -1]
    return logits


@pytest.mark.parametrize("name", TARGETS)
def test_prompts_and_greedy_texts_are_those_of_llamacpps_server(name: str) -> None:
    target, draft = FOLDER / name, TARGETS[name]
    if not target.exists():
        pytest.skip(f"there is no {target}: run make models FOLDER=...")
    spec = custom_pair(str(target), None if draft is None else str(FOLDER / draft))
    pair = load_pair(spec, Loading(device="cpu"))
    drafter = parse_kind("model" if draft else "prompt-lookup")
    chat = pair.tokenizer.chat_template is not None
    equal, close = 0, []
    with llamacpp_server(target, draft_length=5, threads=1) as server:
        for text in TEXTS:
            prompt = encode(pair.tokenizer, text).ids
            assert prompt == servers_prompt(server.url, text, chat), text
            (theirs,) = server.complete(prompt, 0.0, 1, NEW_TOKENS, 0)
            ours = run(
                pair, prompt, sd, sampling=GREEDY, max_new_tokens=NEW_TOKENS, drafter=drafter
            )
            if ours.token_ids == theirs.token_ids:
                equal += 1
                continue
            close.append(margin_and_rounding(pair, prompt, (ours.token_ids, theirs.token_ids)))
    apart = ", ".join(f"{margin:.2f} (rounding {rounding:.2f})" for margin, rounding in close)
    print(f"\n{name}: {equal} of {len(TEXTS)} texts are equal; logits where others differ: {apart}")
    assert all(margin <= 2 * rounding for margin, rounding in close)  # each of two logits
