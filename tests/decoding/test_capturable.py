"""The parts of a round can be captured in a CUDA graph: they never wait and never draw numbers.

On the device ``meta``, tensors have no values, so whatever would wait for a GPU raises an error,
and so does mixing devices. Two faults escape: index tensors and 0-dimensional tensors on the host.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafters.registry import DRAFTERS
from specbench.decoding.drafting import Drafter, State, draft_token
from specbench.decoding.heads.bind import bind
from specbench.decoding.heads.head import Head
from specbench.decoding.round import speculative_step
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import ROLES, Loading, get_pair
from specbench.engine.runner import Runner
from specbench.engine.sources import build_model, load_config
from specbench.errors import UsageError
from specbench.methods import Positions, Rule, Verdict
from specbench.methods.registry import METHODS
from specbench.methods.strict import sd

DUMMY = Loading(device="cpu", load_format="dummy")
PAIRS = ("llama", "qwen3", "gemma3")
# The target alone, both models, and both models with their hidden states.
BASIC_METHODS = ("autoregressive", "sd", "diversed")
N, CAPACITY = 2, 256
FILTERED = Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02)
SAMPLINGS = (Sampling(), Sampling(temperature=0), FILTERED)
META = torch.device("meta")


class RandomError(AssertionError):
    """A random operation ran."""


class Deterministic(TorchDispatchMode):
    """Raises ``RandomError`` at operations that draw random numbers."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            # Some operations, such as attention, are only random with dropout.
            names = [argument.name for argument in func._schema.arguments]
            values = dict(zip(names, args, strict=False)) | (kwargs or {})
            if "dropout_p" not in names or values.get("dropout_p"):
                raise RandomError(str(func))
        return func(*args, **(kwargs or {}))


@cache
def meta_pair(name: str) -> LoadedPair:
    """The pair's real widths and one layer of each kind, without values."""
    runners = []
    for role in ROLES:
        config: Any = load_config(get_pair(name), role, DUMMY)
        kinds = sorted(set(getattr(config, "layer_types", None) or ["full_attention"]))
        config.layer_types, config.num_hidden_layers = kinds, len(kinds)
        with META:
            runners.append(Runner(build_model(config, torch.bfloat16), config.vocab_size))
    target, draft = runners
    assert min(target.groups, draft.groups) > 1
    return LoadedPair(name, target, draft, None, frozenset())  # type: ignore[arg-type]


@torch.inference_mode()
def step(pair: LoadedPair, rule: Rule | None, rows: int, sampling: Sampling, drafter: Drafter):
    for model in pair.runners:
        model.reserve(rows, CAPACITY)
    with META:  # as a graph reads it: attending to the whole cache
        last, length = torch.zeros(rows, 2, dtype=torch.long), torch.ones(rows, dtype=torch.long)
        draws = torch.zeros(rows, 2 * (0 if rule is None else N) + 1, dtype=torch.float64)
        tokens = torch.zeros(rows, CAPACITY, dtype=torch.long) if drafter.reads_text else None
        state = State(last, length, draws, length > 0, None, tokens)
    with Deterministic():
        chosen, _ = speculative_step(pair, rule, state, sampling, drafter)
        assert chosen.last.shape == (rows, 2) and chosen.last.is_meta
        if rule is not None:  # as a control drafts
            draft_token(pair.draft, state, None, 0, sampling)


def rule_of(pair: LoadedPair, method: str) -> Rule | None:
    """The rule of a method with its defaults, and an untrained head for those that have one."""
    parameters = METHODS[method].resolve({})
    if "head" in parameters:
        with META:
            sizes = (pair.target.hidden_size, pair.draft.hidden_size)
            parameters["head"] = Head("linear", sizes)
    return bind(method, parameters, pair).rule


@pytest.mark.parametrize(("name", "rows"), [(PAIRS[0], 1), *((name, 4) for name in PAIRS)])
def test_no_part_of_a_round_waits_or_draws_random_numbers(name, rows):
    pair, drafter = meta_pair(name), ModelDrafter()
    # A rule sees the distributions but not the models, so one pair runs all of them.
    for method in METHODS if (name, rows) == (PAIRS[0], 4) else BASIC_METHODS:
        rule = rule_of(pair, method)
        for sampling in SAMPLINGS if method in BASIC_METHODS else SAMPLINGS[:2]:
            step(pair, rule, rows, sampling, drafter)
    for declared in DRAFTERS.values():
        step(pair, sd, rows, SAMPLINGS[0], declared.kind.parse(""))


# Negative controls.


def planted(fault: Callable[[Tensor], Any]) -> Rule:
    def rule(at: Positions, x: Tensor) -> Verdict:
        fault(at.p)
        return sd(at, x)

    return rule


WAITING: dict[str, Callable[[Tensor], Any]] = {
    **{"item": lambda p: p[0, 0].item(), "boolean index": lambda p: p[p > 0.5]},
    **{"nonzero": lambda p: p.nonzero(), "branch": lambda p: 1 if p.sum() > 0 else 0},
    "copy to the host": lambda p: p.cpu() + 1,
    "mixed devices": lambda p: p + torch.ones(p.shape[-1], device="cpu"),
}
RANDOM: dict[str, Callable[[Tensor], Any]] = {
    "uniform": torch.rand_like,
    "multinomial": lambda p: p.multinomial(1),
    "dropout": partial(torch.dropout, p=0.1, train=True),
    "attention with dropout": lambda p: torch.nn.functional.scaled_dot_product_attention(
        p[None], p[None], p[None], dropout_p=0.1
    ),
}


@pytest.mark.parametrize("fault", [*WAITING, *RANDOM])
def test_a_part_that_waits_or_draws_is_detected(fault):
    pair = meta_pair("llama")
    with pytest.raises(UsageError) as error:
        step(pair, planted((WAITING | RANDOM)[fault]), 1, SAMPLINGS[0], ModelDrafter())
    kinds = RandomError if fault in RANDOM else (RuntimeError, NotImplementedError)
    assert isinstance(error.value.__cause__, kinds)
