"""Random weights of the real architectures: full size, and decodable when shrunk."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specbench.decoding.heads.bind import BoundMethod, bind
from specbench.decoding.heads.head import Head
from specbench.engine import sources
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec, custom_pair, get_pair
from specbench.engine.prompts import encode
from specbench.engine.sources import build_model, load_config
from specbench.errors import UsageError
from specbench.methods.registry import METHODS
from specbench.methods.strict import sd

from ..decoding.helpers import GREEDY, run

DUMMY = Loading(device="cpu", load_format="dummy")
PAIRS = ("llama", "qwen3", "gemma3")
WINDOW = 16
# Parameters of the published models; Gemma's are those of its text model, with the 64 rows
# of embedding that its checkpoints have beyond the vocabulary.
PUBLISHED = {
    **{("llama", "target"): 8_030_261_248, ("llama", "draft"): 1_235_814_400},
    **{("qwen3", "target"): 8_190_735_360, ("qwen3", "draft"): 596_049_920},
    ("gemma3", "target"): 11_765_788_416 + 64 * 3840,
    ("gemma3", "draft"): 3_880_099_328 + 64 * 2560,
}


def test_the_architectures_are_those_of_the_published_models():
    for (name, role), published in PUBLISHED.items():
        config = load_config(get_pair(name), role, DUMMY)
        with torch.device("meta"):
            model = build_model(config, torch.bfloat16)
        assert sum(weights.numel() for weights in model.parameters()) == published
        assert {weights.dtype for weights in model.parameters()} == {torch.bfloat16}


def shrunken(name: str) -> PairSpec:
    """The pair with two narrow layers per model; vocabularies and layer types are unchanged."""

    def shrink(values: Mapping[str, Any], width: int) -> dict[str, Any]:
        sizes = {
            **{"hidden_size": width, "intermediate_size": 48, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
            "initializer_range": 0.3,  # far from uniform, so that the models disagree
        }
        if "sliding_window" in values:
            sizes |= {"sliding_window": WINDOW, "sliding_window_pattern": 2}
        return {**values, **sizes}

    pair, widths = get_pair(name), {"target": 32, "draft": 16}
    sizes = {role: shrink(pair.architecture[role], width) for role, width in widths.items()}
    return replace(pair, architecture=sizes)


@pytest.fixture(scope="module", params=PAIRS)
def pair(request) -> LoadedPair:
    return load_pair(shrunken(request.param), DUMMY)


@pytest.fixture(scope="module")
def prompt(pair) -> list[int]:
    return encode(pair.tokenizer, "How many apples are left of the seven after lunch?").ids


def bound(pair: LoadedPair, name: str, parameters: Mapping[str, Any]) -> BoundMethod:
    if "head" in parameters:
        with torch.random.fork_rng():
            head = Head("linear", (pair.target.hidden_size, pair.draft.hidden_size))
        parameters = {**parameters, "head": head.requires_grad_(False)}
    return bind(name, parameters, pair)


def test_every_method_decodes_and_lossless_text_is_the_targets_own(pair, prompt):
    # Draws cover the whole vocabulary, of which the tokenizer knows only a small part.
    assert pair.target.vocabulary == pair.target.config.vocab_size > 50 * len(pair.tokenizer)
    assert len(prompt) + 16 > WINDOW
    # Rules are independent of the architecture, so one pair is enough for all rules.
    for name in METHODS if pair.name == "llama" else ("sd",):
        bound_method = bound(pair, name, METHODS[name].resolve({}))
        settings = {"draft_length": 2, "max_new_tokens": 4, "control": bound_method.control}
        output = run(pair, prompt, bound_method.rule, **settings)
        # Random weights have no end tokens: every answer has the requested length.
        assert (output.stopped_by, output.output_tokens) == ("length", 4)
        assert len(pair.tokenizer) < max(output.token_ids) < pair.target.vocabulary
    greedy = partial(run, pair, prompt, sampling=GREEDY, max_new_tokens=16)
    drafted = greedy(sd)
    assert drafted.token_ids == greedy().token_ids
    assert any(r.accepted < r.proposed for r in drafted.rounds)


def test_the_same_weights_every_time_without_the_hub(pair, monkeypatch):
    loader = Mock(side_effect=sources.load_pretrained)
    monkeypatch.setattr(sources, "load_pretrained", loader)
    again = load_pair(shrunken(pair.name), DUMMY)
    assert {call.args[1] for call in loader.mock_calls} == {get_pair("mini").target}
    for role in ("target", "draft"):
        assert getattr(again, role).fingerprint() == getattr(pair, role).fingerprint()
    assert pair.target.fingerprint() != pair.draft.fingerprint()
    assert pair.facts["load_format"] == "dummy"
    assert pair.facts["shared_vocabulary"] == pair.target.config.vocab_size


def test_an_invalid_entry_is_located():
    for values, told in (
        ({"model_type": "lama"}, "lama"),
        ({"model_type": "clip"}, "CLIPConfig"),
        ({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}, "multiple"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "odd"}}, "odd"),
    ):
        spec = replace(custom_pair("a/b", "a/c"), name="mine", architecture={"target": values})
        with pytest.raises(UsageError, match=r"\[mine\.architecture\.target\] is not a valid") as e:
            load_pair(spec, DUMMY)
        assert told in str(e.value) and "\n" not in str(e.value)
        assert len(str(e.value)) < 400  # Transformers' own message lists hundreds of types
