"""Attention of layers in bfloat16 against plain attention (the MATH backend) in float32.

Float32 models and short texts never reach the fast kernels of a GPU. Here heads are grouped and 128
or 256 wide, and there are more than 1,024 keys. ``small`` narrows all other sizes for a CPU.
"""

from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from specbench.engine import attention
from specbench.engine.loading import exclude_cudnn
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.runner import Runner
from specbench.engine.sources import build_model, load_config

PROMPT, CAPACITY, VOCABULARY = 1_100, 1_280, 512
# Relative error of an output; bfloat16 has 8 bits.
TOLERANCE = 2e-2
ATTENTION = attention.scaled_dot_product_attention
WIDTHS = {"llama": 128, "qwen3": 128, "gemma3": 256}
SMALL = {
    **{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4},
    "num_key_value_heads": 2,
}
CASES = [
    *(("small", name) for name in WIDTHS),
    *(pytest.param("real", name, marks=pytest.mark.gpu) for name in WIDTHS),
]


class Passes(NamedTuple):
    """The layers in several passes, in order."""

    inputs: list[Tensor]  # of the layers
    outputs: list[Tensor]  # of their attention


def model_of(size: str, name: str, device: str) -> PreTrainedModel:
    """Two layers of the pair's target, one of each kind if there are two kinds."""
    config: Any = load_config(get_pair(name), "target", Loading(load_format="dummy"))
    config.update({"num_hidden_layers": 2, "vocab_size": VOCABULARY})
    config.update(SMALL if size == "small" else {})
    # Queries and keys near 1 at any width: a saturated softmax would magnify rounding.
    config.initializer_range = 0.8 / config.hidden_size**0.5
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = (2 * sorted(set(kinds)))[:2]
    assert config.head_dim == WIDTHS[name]
    assert config.num_attention_heads > config.num_key_value_heads
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        return build_model(config, torch.bfloat16)


@torch.inference_mode()
def run(model: PreTrainedModel, given: list[Tensor] | None = None) -> Passes:
    """Read a prompt, one token, six tokens, and six tokens in two rows.

    With ``given``, these replace the inputs of the layers, so that errors do not accumulate.
    """
    runner = Runner(model, VOCABULARY)
    runner.fused = None  # see test_fused.py
    passes, waiting = Passes([], []), iter(given or ())

    def before(layer: Any, args: tuple[Any, ...]) -> Any:
        states = args[0] if given is None else next(waiting).to(args[0])
        passes.inputs.append(states)
        return states, *args[1:]

    def after(layer: Any, args: Any, out: tuple[Tensor, ...]) -> None:
        passes.outputs.append(out[0])

    layers = runner.base.layers
    handles = [layer.register_forward_pre_hook(before) for layer in layers]
    handles += [layer.self_attn.register_forward_hook(after) for layer in layers]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (2, PROMPT), generator=generator).to(model.device)
    for rows in (1, 2):
        runner.reserve(rows, CAPACITY)
        for row in range(rows):
            runner.prefill(tokens[row], row)
        at = torch.arange(PROMPT - 1, PROMPT + 5, device=model.device)
        starts = torch.tensor([[0], [-40]], device=model.device)[:rows] + at
        for length in (None, PROMPT + 5):  # as in a graph, and as in the eager engine
            for k in (1, 6):
                runner.forward(tokens[:rows, :k], starts[:, :k], length and length - 6 + k)
    for handle in handles:
        handle.remove()
    return passes


def errors(size: str, name: str) -> list[float]:
    """The relative error of the attention of every layer in every pass."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        exclude_cudnn()
    model = model_of(size, name, device)
    passes = run(model)
    wide: Any = deepcopy(model).float()
    with sdpa_kernel(SDPBackend.MATH), pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "scaled_dot_product_attention", ATTENTION)
        expected = run(wide, passes.inputs)
    pairs = zip(passes.outputs, expected.outputs, strict=True)
    return [float((ours.float() - exact).norm() / exact.norm()) for ours, exact in pairs]


@pytest.mark.parametrize(("size", "name"), CASES)
def test_layers_in_bfloat16_equal_plain_attention(size, name):
    relative_errors = errors(size, name)
    assert len(relative_errors) == 2 * (3 + 8) and max(relative_errors) < TOLERANCE


def test_attention_that_forgets_old_keys_is_detected(monkeypatch):
    """A negative control: a kernel that ignores all keys before the last 1,024."""

    def forgetful(query, key, value, mask, **options):
        mask = mask.clone()
        mask[..., : max(0, mask.shape[-1] - 1_024)] = False
        return ATTENTION(query, key, value, mask, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", forgetful)
    assert max(errors("small", "llama")) > 2 * TOLERANCE
