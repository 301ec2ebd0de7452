"""Kernels of a GPU: fused layers against Transformers' own, and draws against PyTorch's."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.sampling import draw
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.runner import Runner
from specbench.engine.sources import build_model, load_config

from .conftest import run_simulated

pytest.importorskip("triton")
PROMPT, CAPACITY, VOCABULARY = 300, 512, 512
SHAPES = [(1, 1), (1, 2), (1, 6), (4, 6), (8, 6)]  # rows and tokens; the last is for cuBLAS
PAIRS = ("llama", "qwen2.5-coder", "qwen3")
SMALL = {
    **{"hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 64},
}


def runner_of(name: str, role: str, device: str, **changes: Any) -> Runner:
    config: Any = load_config(get_pair(name), role, Loading(load_format="dummy"))
    config.update({"num_hidden_layers": 2, "vocab_size": VOCABULARY, **changes})
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = kinds[:2]
    config.initializer_range = 0.8 / config.hidden_size**0.5  # small weights would hide a layer
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model = build_model(config, dtype)
        for weight in model.parameters():  # gains of 1 and biases of 0 would hide a mistake
            if weight.ndim == 1:
                weight.data.uniform_(0.5, 1.5)
    return Runner(model, VOCABULARY)


@torch.inference_mode()
def states(runner: Runner, rows: int, k: int) -> Tensor:
    """Hidden states of tokens behind prompts of different lengths."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (rows, PROMPT + k), generator=generator)
    tokens = tokens.to(runner.device)
    runner.reserve(rows, CAPACITY)
    runner.forget_prompts()
    starts = PROMPT - 13 * torch.arange(rows)
    for row, start in enumerate(starts.tolist()):
        runner.prefill(tokens[row, : start + 1], row)
    at = starts[:, None] + torch.arange(k)
    return runner.forward(tokens[:, -k:], at.to(runner.device)).float()


def errors(runner: Runner, rows: int, k: int) -> tuple[float, float]:
    """The relative errors of the fused layers and of Transformers' own against float32."""
    wide = Runner(deepcopy(runner.model).float(), VOCABULARY)
    fused, runner.fused, wide.fused = runner.fused, None, None
    exact, plain = states(wide, rows, k), states(runner, rows, k)
    runner.fused = fused
    assert fused is not None
    ours = states(runner, rows, k)
    first, second = (float((one - exact).norm() / exact.norm()) for one in (ours, plain))
    return first, second


@pytest.mark.gpu
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("name", PAIRS)
def test_fused_layers_round_no_worse_than_transformers(name, role):
    runner = runner_of(name, role, "cuda")
    for rows, k in SHAPES:
        ours, plain = errors(runner, rows, k)
        print(f"{name} {role}, {rows} x {k}: {ours:.4f}, Transformers {plain:.4f}")
        assert ours < 1.5 * plain < 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 6, 20, 40])
def test_the_output_head_is_that_of_transformers(rows):
    runner = runner_of("llama", "draft", "cuda", vocab_size=40_000)
    hidden = torch.randn(rows, runner.hidden_size, device="cuda", dtype=runner.dtype)
    assert runner.fused is not None
    ours, theirs = runner.fused.logits(hidden), runner.output(hidden).float()
    exact = hidden.double() @ runner.output.weight.double().T
    errors = [float((logits - exact).norm() / exact.norm()) for logits in (ours, theirs)]
    assert errors[0] < 1.5 * errors[1] < 0.02


@pytest.mark.gpu
def test_gemma_keeps_the_layers_of_transformers():
    assert runner_of("gemma3", "target", "cuda").fused is None


def test_the_kernels_compute_what_the_layers_do_on_a_simulated_device():
    run_simulated(f"""
import torch
from specbench.engine.fused import FusedLayers
from {__name__} import PAIRS, SMALL, errors, runner_of

for name, shapes in zip(PAIRS, (((1, 1), (1, 36)), ((2, 3),), ((2, 3),)), strict=True):
    runner = runner_of(name, "target", "cpu", **SMALL)
    runner.fused = FusedLayers(runner.model)
    for shape in shapes:
        ours, _ = errors(runner, *shape)
        assert ours < 1e-5, (name, shape, ours)
    hidden = torch.randn(2, 3, runner.hidden_size)
    logits = runner.fused.logits(hidden)
    torch.testing.assert_close(logits, runner.output(hidden), rtol=1e-4, atol=1e-5)
    first, *others = runner.fused.layers  # a control
    runner.fused.layers = [first._replace(down=1.1 * first.down), *others]
    assert errors(runner, 1, 1)[0] > 1e-3
""")


SIZES = (20_001, 128_256, 151_936)


def require_same_numbers(device: str, vocabulary: int, rows: int) -> None:
    """Compare softmax and draws of random rows with PyTorch's on a CPU."""
    from specbench.engine import vocabulary_kernels as kernels

    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(2, rows, vocabulary, generator=generator)
    logits[0, 0, 7] = logits[1, :2, :3000] = -torch.inf
    exact = logits.double().softmax(-1)
    ours = kernels.softmax(logits.to(device)).cpu()
    assert ((ours - exact).abs() <= 1e-8 + 1e-5 * exact).all() and ours[0, 0, 7] == 0
    logits[1, -1, 5] = torch.nan
    assert kernels.softmax(logits.to(device)).cpu()[1, -1].isnan().all()

    p = ours[1]
    p[0, -2000:] = 0  # draws take neither these nor, at a uniform number of 0, the first 3,000
    uniforms = torch.rand(rows, 3, generator=generator, dtype=torch.float64)
    uniforms[0], uniforms[1] = 1 - 2**-53, 0
    for column in uniforms.unbind(1):
        moved = uniforms.to(device)[:, 0].copy_(column)
        assert kernels.draw(p.to(device), moved).tolist() == draw(p, column).tolist()
    without = torch.full((2, vocabulary), torch.nan)
    without[1] = 0
    zeros = torch.zeros(2, dtype=torch.float64)
    assert (kernels.draw(without.to(device), zeros.to(device)) < vocabulary).all()


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", SIZES)
def test_softmax_and_draws_are_those_of_a_cpu(vocabulary):
    require_same_numbers("cuda", vocabulary, 40)


def test_softmax_and_draws_are_those_of_a_cpu_on_a_simulated_device():
    run_simulated(f"from {__name__} import *; require_same_numbers('cpu', {SIZES[0]}, 4)")
