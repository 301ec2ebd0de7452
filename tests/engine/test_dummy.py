"""Random weights of the real architectures: the right size in full, and decodable when shrunken."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.sampling import Sampling
from specbench.engine import sources
from specbench.engine.loading import LoadedPair, load_pair
from specbench.engine.prompts import encode
from specbench.engine.settings import Loading
from specbench.engine.sources import build_model, load_config
from specbench.errors import UsageError
from specbench.experiment.variants import method_variants
from specbench.heads.head import Head
from specbench.methods.registry import METHODS, get_method
from specbench.pairs.registry import PairSpec, custom_pair, get_pair

from ..decoding.helpers import GREEDY, run

DUMMY = Loading("cpu", load_format="dummy")
PAIRS = ("llama", "qwen3", "gemma3")
WINDOW = 16
# Parameters of the published models; Gemma's are those of its text model alone, with the 64 rows
# of embedding by which its checkpoints are longer than its vocabulary.
PUBLISHED = {
    ("llama", "target"): 8_030_261_248,
    ("llama", "draft"): 1_235_814_400,
    ("qwen3", "target"): 8_190_735_360,
    ("qwen3", "draft"): 596_049_920,
    ("gemma3", "target"): 11_765_788_416 + 64 * 3840,
    ("gemma3", "draft"): 3_880_099_328 + 64 * 2560,
}


@pytest.mark.parametrize(("name", "role"), PUBLISHED)
def test_the_architectures_are_those_of_the_published_models(name: str, role: str) -> None:
    config = load_config(get_pair(name), role, DUMMY)
    with torch.device("meta"):
        model = build_model(config, torch.bfloat16)
    assert sum(weights.numel() for weights in model.parameters()) == PUBLISHED[name, role]
    assert {weights.dtype for weights in model.parameters()} == {torch.bfloat16}


def test_what_does_not_show_in_the_sizes_is_there_as_well() -> None:
    llama = load_config(get_pair("llama"), "draft", DUMMY)
    assert llama.rope_parameters["rope_type"] == "llama3"
    assert (llama.rope_parameters["factor"], llama.rope_parameters["rope_theta"]) == (32, 500_000)
    gemma = load_config(get_pair("gemma3"), "target", DUMMY)
    assert gemma.layer_types.count("full_attention") == 8
    assert gemma.layer_types[5] == "full_attention"
    assert gemma.sliding_window == 1024
    rope = gemma.rope_parameters
    assert rope["full_attention"] == {"rope_type": "linear", "factor": 8, "rope_theta": 1_000_000}
    assert rope["sliding_attention"]["rope_theta"] == 10_000


def shrunken(name: str) -> PairSpec:
    """The pair with two narrow layers a model; vocabularies and kinds of layer as they are."""

    def shrink(values: Mapping[str, Any], width: int) -> dict[str, Any]:
        sizes = {
            "hidden_size": width,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "initializer_range": 0.3,  # far from uniform, so that the models disagree
        }
        if "sliding_window" in values:
            sizes |= {"sliding_window": WINDOW, "sliding_window_pattern": 2}
        return {**values, **sizes}

    pair = get_pair(name)
    return replace(
        pair,
        architecture={
            role: shrink(pair.architecture[role], width)
            for role, width in {"target": 32, "draft": 16}.items()
        },
    )


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> LoadedPair:
    return load_pair(shrunken(request.param), DUMMY)


@pytest.fixture(scope="module")
def prompt(pair: LoadedPair) -> list[int]:
    return encode(pair.tokenizer, "How many apples are left of the seven after lunch?").ids


def bound(pair: LoadedPair, name: str, parameters: Mapping[str, Any]) -> Any:
    """The rule of a method, and what controls its drafting."""
    if "head" in parameters:
        with torch.random.fork_rng():
            head = Head("linear", (pair.target.hidden_size, pair.draft.hidden_size))
        parameters = {**parameters, "head": head.requires_grad_(False).weigh}
    return get_method(name).bind(parameters)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_decodes(pair: LoadedPair, prompt: list[int], method: str) -> None:
    ((_, parameters),) = method_variants([method], {})
    verify, control = bound(pair, method, parameters)
    output = run(
        *(pair, prompt, verify),
        sampling=Sampling(),
        max_new_tokens=16,
        draft_length=3,
        control=control,
    )
    # Random weights end nowhere: every answer has the length that was asked for.
    assert (output.stopped_by, output.output_tokens) == ("length", 16)
    # Draws are from the whole vocabulary, of which the tokenizer knows hardly any.
    assert pair.target.vocabulary == pair.target.config.vocab_size > 50 * len(pair.tokenizer)
    assert len(pair.tokenizer) < max(output.token_ids) < pair.target.vocabulary
    assert len(prompt) + 16 > WINDOW


def test_lossless_text_is_the_targets_own(pair: LoadedPair, prompt: list[int]) -> None:
    greedy = partial(run, pair, prompt, sampling=GREEDY, max_new_tokens=40)
    ((_, parameters),) = method_variants(["sd"], {})
    drafted = greedy(bound(pair, "sd", parameters)[0])
    assert drafted.token_ids == greedy().token_ids
    assert any(r.accepted < r.proposed for r in drafted.rounds)


def test_the_same_weights_every_time(pair: LoadedPair) -> None:
    again = load_pair(shrunken(pair.name), DUMMY)
    for role in ("target", "draft"):
        assert getattr(again, role).fingerprint() == getattr(pair, role).fingerprint()
    assert pair.target.fingerprint() != pair.draft.fingerprint()
    assert pair.facts["load_format"] == "dummy"


def test_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    own = sources.load_pretrained

    def load_pretrained(factory: Any, name: str, **options: Any) -> Any:
        asked.append(name)
        return own(factory, name, **options)

    monkeypatch.setattr(sources, "load_pretrained", load_pretrained)
    assert load_pair(shrunken("qwen3"), DUMMY).facts["shared_vocabulary"] == 151936
    assert set(asked) == {get_pair("mini").target}


def test_a_pair_without_an_entry_takes_its_models_configurations() -> None:
    mini = get_pair("mini")
    dummy, real = load_pair(mini, DUMMY), load_pair(mini, Loading("cpu"))
    assert dummy.target.config.hidden_size == real.target.config.hidden_size
    assert dummy.target.fingerprint() != real.target.fingerprint()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"model_type": "lama"}, "lama"),
        ({"model_type": "clip"}, "CLIPConfig"),
        ({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}, "multiple"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "odd"}}, "odd"),
    ],
)
def test_an_entry_that_describes_no_model_is_located(values: dict[str, Any], told: str) -> None:
    spec = replace(custom_pair("a/b", "a/c"), name="mine", architecture={"target": values})
    with pytest.raises(UsageError, match=r"\[mine\.architecture\.target\] describes no model") as e:
        load_pair(spec, DUMMY)
    assert told in str(e.value) and "\n" not in str(e.value)
    assert len(str(e.value)) < 400  # Transformers' own message names hundreds of types


def test_an_entry_of_a_file_that_describes_no_model_is_told_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        "[m]\ntarget = 'a/b'\ndraft = 'a/c'\n[m.architecture.target]\nmodel_type = 'lama'\n"
    )
    with pytest.raises(UsageError, match=r"p\.toml: \[m\.architecture\.target\] describes"):
        load_pair(get_pair(str(tmp_path / "p.toml")), DUMMY)
