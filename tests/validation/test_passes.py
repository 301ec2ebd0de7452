"""Plain passes and their processing, compared with the engine's."""

import pytest
import torch

from specbench.decoding.modules.module import MODULES
from specbench.decoding.sampling import Sampling
from specbench.engine import passes
from specbench.engine.passes import plain_pass
from specbench.validation.texts import processed

from ..decoding.modules.modules import module_drafter
from ..engine.tiny import random_prompt, read, tiny_pair

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(temperature=2.0, top_k=3),
    Sampling(top_p=0.6),
    Sampling(temperature=0.7, top_k=20, top_p=0.9),
]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_plain_passes_match_the_engine(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_pair(family).target
    texts = [random_prompt(14), random_prompt(15)[:14]]
    monkeypatch.setattr(passes, "MAX_NUMBERS", 1)  # one text at a time
    said = plain_pass(target, texts, last=5, hidden=True)
    for row, text in enumerate(texts):
        target.reserve(1, 32)
        logits, hidden = read(target, text[:-1])
        torch.testing.assert_close(said.logits[row], logits[-5:], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(said.hidden[row], hidden[-5:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_logits_are_processed_like_the_engines(sampling: Sampling) -> None:
    logits = 3 * torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    ours, theirs = processed(logits, sampling), sampling.distributions(logits)[0]
    torch.testing.assert_close(ours.float(), theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", MODULES)
def test_one_pass_of_a_module_along_a_text_has_the_drafts_of_all_rounds(kind: str) -> None:
    pair = tiny_pair("llama")
    drafter, text = module_drafter(pair, kind), random_prompt(14)
    for depth, along in enumerate(drafter.along(pair, text, 6, depths=3)):
        position = torch.full((1, 6), depth)
        rounds = drafter.plain(pair, [text], position, hidden=False).logits[0]
        torch.testing.assert_close(along[: 6 - depth], rounds[depth:], atol=1e-4, rtol=1e-4)
