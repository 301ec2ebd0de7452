"""Decoder layers of Llama's form with joined weights, for passes over few tokens on a GPU.

The sums are those of Transformers' layers; only the order of rounding differs. Before each run, but
not before a benchmark, the graph engine compares its parts with Transformers' own layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers import PreTrainedModel

from specbench.engine import kernels
from specbench.engine.cache import SlotCache, head_sizes

FORMS = ("llama", "qwen2", "qwen3")  # as configurations name them
WIDTHS = (64, 128)  # of a head
MOST_QUERIES = 128  # of a text and key head


class Layer(NamedTuple):
    """The weights of a layer, ``[out, in]``; those that read the same states are joined."""

    norm: Tensor
    qkv: Tensor
    bias: Tensor | None  # of qkv
    gains: tuple[Tensor, Tensor] | None  # of the norms of queries and keys
    output: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class FusedLayers:
    """The layers of a model; they read and write a cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.base: Any = model.get_decoder()
        self.layers = _layers_of(self.base)
        first = self.base.layers[0]
        self.epsilon: float = first.input_layernorm.variance_epsilon
        self.scale: float = first.self_attn.scaling
        self.head: Tensor = model.get_output_embeddings().weight
        config = model.config.get_text_config()
        self.key_heads: int = config.num_key_value_heads
        self.group: int = config.num_attention_heads // self.key_heads
        self.finished = torch.zeros(kernels.MOST_TEXT_HEADS, dtype=torch.int32, device=model.device)

    def takes(self, tokens: Tensor) -> bool:
        """Return whether the kernels serve a pass over tokens ``[B, k]``."""
        texts, k = tokens.shape
        fits = k * self.group <= MOST_QUERIES and texts * self.key_heads <= kernels.MOST_TEXT_HEADS
        return fits and not torch.compiler.is_compiling()

    def __call__(
        self,
        tokens: Tensor,
        at: Tensor,
        cache: SlotCache,
        angles: tuple[Tensor, Tensor],
        layers: Sequence[int] = (),
    ) -> Tensor:
        """Run tokens ``[B, k]`` at positions ``at``, as ``Runner.through_layers`` does.

        The positions of a text follow each other; all before the first are in the cache.
        """
        at, epsilon = at.expand(tokens.shape).contiguous(), self.epsilon
        gains = [layer.norm for layer in self.layers[1:]] + [self.base.norm.weight]
        table = self.base.embed_tokens.weight
        states = kernels.first_states(tokens.flatten().contiguous(), table, self.layers[0].norm)
        after = [states.hidden]
        for number, (layer, gain) in enumerate(zip(self.layers, gains, strict=True)):
            keys, values = cache.keys[number], cache.values[number]
            qkv = kernels.normed_product(states, epsilon, layer.qkv, layer.bias)
            attention = kernels.Attention(angles, layer.gains, epsilon, self.scale, self.finished)
            mixed = kernels.attend(qkv, at, keys, values, attention)
            states = kernels.added_product(mixed, layer.output, states, layer.norm_mlp)
            inner = kernels.normed_product(states, epsilon, layer.gate_up, gated=True)
            states = kernels.added_product(inner, layer.down, states, gain)
            after.append(states.hidden)
        result = rms_norm(states.hidden, states.hidden.shape[-1:], states.gain, epsilon)
        if layers:
            result = torch.cat([result, *(after[number] for number in layers)], -1)
        return result.unflatten(0, tokens.shape)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the float32 product of hidden states ``[..., hidden]`` with the output head."""
        rows = hidden.flatten(0, -2)
        logits = kernels.float_product(rows, self.head)
        return logits.unflatten(0, hidden.shape[:-1])  # type: ignore[no-any-return]


def fused_layers(model: PreTrainedModel, kinds: Sequence[str]) -> FusedLayers | None:
    """Return a model's layers of these kinds; None if they are not of Llama's form on a GPU."""
    config, output = model.config.get_text_config(), model.get_output_embeddings()
    base: Any = model.get_decoder()
    parts = [module for module in base.layers.modules() if isinstance(module, nn.Linear)]
    if (
        config.model_type not in FORMS
        or head_sizes(config)[1] not in WIDTHS
        or config.hidden_act != "silu"
        or set(kinds) != {"full_attention"}
        or {(w.device.type, w.dtype.itemsize) for w in base.parameters()} != {("cuda", 2)}
        or len({w.device for part in (base, output) for w in part.parameters()}) > 1
        or {type(part) for part in (*parts, output)} != {nn.Linear}
        or output.bias is not None
        or any(
            getattr(part, "bias", None) is not None
            for layer in base.layers
            for part in (layer.self_attn.o_proj, *layer.mlp.children())
        )
    ):
        return None
    return FusedLayers(model)


_JOINED: WeakKeyDictionary[nn.Module, list[Layer]] = WeakKeyDictionary()


@torch.inference_mode(False)  # the model's own passes may be outside it
@torch.no_grad()
def _layers_of(base: Any) -> list[Layer]:
    """Join the weights of a model's layers, once; its own weights become views of them."""
    if base not in _JOINED:
        _JOINED[base] = [_layer_of(layer) for layer in base.layers]
    return _JOINED[base]


def _layer_of(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    norms: list[Any] = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    biases = [part.bias for part in projections]
    return Layer(
        layer.input_layernorm.weight,
        _joined([part.weight for part in projections]),
        None if biases[0] is None else _joined(biases),
        None if norms[0] is None else (norms[0].weight, norms[1].weight),
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        _joined([mlp.gate_proj.weight, mlp.up_proj.weight]),
        mlp.down_proj.weight,
    )


def _joined(weights: Sequence[Tensor]) -> Tensor:
    joined = torch.cat([weight.data for weight in weights])
    parts = joined.split([len(weight) for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.data = part
    return joined
