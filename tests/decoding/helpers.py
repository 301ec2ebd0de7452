"""Decoding with defaults, tiny random modules, and the comparison of two engines' greedy texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple, cast

import torch
from transformers import LlamaConfig

from specbench.decoding.loop import DecodeOptions, Request, decode, decode_all
from specbench.decoding.modules.loaded import LoadedModule
from specbench.decoding.modules.module import MODULES, DraftModule, ModuleConfig
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.engine.passes import plain_pass
from specbench.methods import Positions, Rule, Verdict
from specbench.validation.greedy import TIE

GREEDY = Sampling(temperature=0)
OPTIONS = DecodeOptions(Sampling(), draft_length=5, max_new_tokens=16)


def run(
    pair: LoadedPair,
    prompt: list[int],
    rule: Rule | None = None,
    sample_key: str = "sample",
    **changes: Any,
) -> Generation:
    return decode(pair, rule, Request(prompt, sample_key), replace(OPTIONS, **changes))


def run_all(pair: LoadedPair, rule: Rule | None, requests: list[Request], **changes: Any):
    """Decode texts like ``run``, in the order of the requests."""
    generations = dict(decode_all(pair, rule, requests, replace(OPTIONS, **changes)))
    return [generations[number] for number in range(len(requests))]


def said(generation: Generation) -> tuple[Any, ...]:
    counts = [(r.proposed, r.accepted, r.emitted) for r in generation.rounds]
    return generation.token_ids, generation.text, generation.stopped_by, counts


def generate(pair: LoadedPair, prompt: list[int], limit: int) -> list[int]:
    """The output of Transformers' own greedy loop, including the end token."""
    model = cast(Any, pair.target.model)
    inputs = torch.tensor([prompt], device=model.device)
    output = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),  # without it, pad tokens would be masked
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=list(pair.eos_ids) or None,
        pad_token_id=0,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def with_eos(pair: LoadedPair, *eos: int) -> LoadedPair:
    return replace(pair, eos_ids=frozenset(eos))


def own_draft(pair: LoadedPair) -> LoadedPair:
    """The pair's target as its own draft, with a separate cache."""
    return replace(pair, draft=type(pair.target)(pair.target.model, pair.target.vocabulary))


def constantly(accept: float) -> Callable[[Positions, torch.Tensor], Verdict]:
    def verify(at: Positions, x: torch.Tensor) -> Verdict:
        chance = at.p.new_full(x.shape, accept)
        return Verdict(accept=chance, residual=at.p, expected=chance)

    return verify


SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim")


def random_module(pair: LoadedPair, kind: str = "eagle3", **changes: Any) -> DraftModule:
    runner: Any = pair.target
    layer = LlamaConfig(**{name: getattr(runner.config, name) for name in SHAPE})
    shape = {"draft_vocabulary": layer.vocab_size} | changes
    layers = (0, 1, 1) if kind == "eagle3" else (runner.config.num_hidden_layers,)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODULES[kind](ModuleConfig(layer, layers, layer.hidden_size, **shape))


def module_drafter(pair: LoadedPair, kind: str = "eagle3", **changes: Any) -> LoadedModule:
    runner: Any = pair.target
    return LoadedModule(random_module(pair, kind, **changes), runner)


class Divergence(NamedTuple):
    """The first round of two greedy texts that differs, which must be a tie.

    On a GPU the rounding of a pass depends on its shape and its kernels. Where the two largest
    logits of a model nearly coincide, two correct engines may choose different tokens, and
    everything after it differs.
    """

    position: int  # new tokens before it
    margin: float  # least margin between the two largest logits, of either model in that round


def divergence(pair: LoadedPair, prompt: Sequence[int], one: Generation, other: Generation):
    start = 0
    for mine, theirs in zip(one.rounds, other.rounds, strict=False):
        rounds = [
            (
                *(record.proposed, record.accepted, record.emitted),
                text.token_ids[start : start + record.emitted],
            )
            for record, text in ((mine, one), (theirs, other))
        ]
        if rounds[0] != rounds[1]:
            break
        start += mine.emitted
    else:
        return None
    both = zip(rounds[0][-1], rounds[1][-1], strict=False)
    common = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
    text = [*prompt, *one.token_ids[:start], *common, 0]
    best = [
        plain_pass(model, [text], last=len(common) + 1).logits[0].topk(2, -1).values
        for model in pair.runners
    ]
    return Divergence(start, min(float((two[:, 0] - two[:, 1]).min()) for two in best))


def require_equal_up_to_ties(
    pair: LoadedPair,
    requests: Sequence[Request],
    expected: Sequence[Generation],
    generations: Sequence[Generation],
) -> None:
    """Fail unless greedy texts are equal up to ties; print each tie (``pytest -rP``)."""
    for request, one, other in zip(requests, expected, generations, strict=True):
        if (first := divergence(pair, request.prompt, one, other)) is not None:
            print(f"{request.key}: {first}")
            assert first.margin <= TIE, f"{request.key} differs, and not by a tie: {first}"
