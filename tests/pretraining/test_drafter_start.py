"""A linear start: the best linear prediction, and the strongest neurons of the last MLP."""

from typing import Any

import pytest
import torch
from drafters.recipe import DrafterRecipe
from drafters.start import initial_module, start_linearly
from drafters.texts import read_target

from specbench.decoding.modules.module import MODULES

from ..engine.tiny import random_prompt, tiny_pair

TEXTS = [random_prompt(n) for n in range(40, 80)]
LAYERS = {"eagle3": [0, 2], "mtp": None}


@pytest.mark.parametrize("kind", MODULES)
@torch.no_grad()
def test_a_linear_start_predicts_as_well_as_least_squares(kind: str) -> None:
    pair = tiny_pair("llama")
    target: Any = pair.runners[0]
    recipe = {"kind": kind, "intermediate_size": 64, "layers": LAYERS[kind]}
    module: Any = initial_module(*pair.runners, DrafterRecipe(**recipe))
    layer = module.mtp_layers[0] if kind == "mtp" else module.layers[0]

    def relative_error() -> float:
        """Squared error of the linear part, relative to the best one on these texts."""
        rows = []
        for text in TEXTS:
            tokens = torch.tensor([text])
            _, first, before, last = read_target(target, tokens, (0, 1, 2))[0].chunk(4, -1)
            states = module.fuse(last if kind == "mtp" else torch.cat((first, last), -1))[:-1]
            read = layer.joined(target.base.embed_tokens(tokens[0, 1:]), states)
            if kind == "mtp":
                rows.append((read, layer.input_proj(read), before[1:]))
            else:  # attention to the position itself, added to the state
                value = layer.self_attn["o_proj"](layer.self_attn["v_proj"](read))
                rows.append((read, value, before[1:] - states))
        inputs, linear, wanted = (torch.cat(part) for part in zip(*rows, strict=True))
        best = inputs @ torch.linalg.lstsq(inputs, wanted).solution
        return float((linear - wanted).square().sum() / (best - wanted).square().sum())

    assert relative_error() > 1.1
    start_linearly(module, target, TEXTS)
    assert relative_error() < 1.01
    gates = layer.mlp["gate_proj"], target.base.layers[1].mlp.gate_proj
    rows, neurons = (gate.weight for gate in gates)
    assert torch.equal(rows.sum(1).sort().values, neurons.sum(1).sort().values)
    assert not torch.equal(rows, neurons)  # the strongest first
