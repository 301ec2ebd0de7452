"""EAGLE-3 heads: drafters of one layer that read hidden states of the target.

``fc`` joins the target's states after some of its layers to one vector g per position. The head's
only layer reads g and the embedding of the token that follows, attends to earlier positions through
a cache of its own, and returns a state h from which the token after that is drawn. For the next
draft of the same round h takes the place of g, which the target has not computed yet.

Source: Li et al. 2025, arXiv:2503.01840; files as `speculators` and vLLM read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specbench.engine.cache import SlotCache
from specbench.engine.runner import Runner, capacity_for, visible

# Mixes values under queries, keys and values, all ``[B, heads, k, width]``.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class EagleConfig:
    """The shape of a head."""

    layer: LlamaConfig  # of its one layer; with the target's vocabulary
    layers: tuple[int, ...]  # the target's layers after which it reads states; 0 is the embedding
    target_hidden: int  # width of these states
    draft_vocabulary: int  # tokens that it can draft
    own_embedding: bool = False  # whether the file has an embedding; else it is the target's
    own_output: bool = False  # whether the file has an output head; else it is the target's
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @property
    def width(self) -> int:
        """Return the hidden size."""
        return int(self.layer.hidden_size)


class EagleHead(nn.Module):
    """The weights of a head, named as in its file."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        layer, inputs = config.layer, len(config.layers) * config.target_hidden
        self.config = config
        if config.norm_before_fc:
            self.input_norm = _norm(layer, inputs)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(_norm(layer, config.target_hidden) for _ in config.layers)
        self.fc = nn.Linear(inputs, config.width, bias=False)
        self.layers = nn.ModuleList([EagleLayer(config)])
        self.norm = _norm(layer, config.width)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(layer.vocab_size, config.width)
        if config.own_output:
            self.lm_head = nn.Linear(config.width, config.draft_vocabulary, bias=False)
        if config.draft_vocabulary < layer.vocab_size:
            self.d2t = nn.Buffer(torch.zeros(config.draft_vocabulary, dtype=torch.long))

    def share(self, embedding: nn.Module, output: nn.Module) -> None:
        """Use the target's embedding and output head where the head has none of its own."""
        own = self.config
        # Functions, since a module would be registered and saved as a part of the head.
        self.embed = self.embed_tokens.forward if own.own_embedding else embedding.forward
        self.project = self.lm_head.forward if own.own_output else output.forward

    def fuse(self, states: Tensor) -> Tensor:
        """Join the target's states ``[..., layers * hidden]`` to g ``[..., H]``."""
        if self.config.norm_before_fc:
            states = self.input_norm(states)
        if self.config.fc_norm:
            parts = states.chunk(len(self.config.layers), -1)
            states = torch.cat([n(p) for n, p in zip(self.fc_norm, parts, strict=True)], -1)
        fused: Tensor = self.fc(states)
        return fused

    def forward(
        self, tokens: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Read tokens ``[B, k]`` after states ``[B, k, H]``: g, or the last output.

        Returns:
            The states h after the layer ``[B, k, H]``.
        """
        hidden = self.layers[0](self.embed(tokens), hidden, angles, attend)
        return self.norm(hidden) if self.config.norm_output else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits ``[..., draft vocabulary]`` of the states h ``[..., H]``."""
        logits: Tensor = self.project(hidden if self.config.norm_output else self.norm(hidden))
        return logits


class EagleLayer(nn.Module):
    """A Llama layer whose attention reads an embedding and a state side by side."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        layer: Any = config.layer
        width = config.width
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm, self.input_layernorm = _norm(layer, width), _norm(layer, width)
        self.post_attention_layernorm = _norm(layer, width)
        self.head_dim: int = layer.head_dim
        queries = layer.num_attention_heads * self.head_dim
        keys = layer.num_key_value_heads * self.head_dim
        self.self_attn = _projections(
            q_proj=(2 * width, queries),
            k_proj=(2 * width, keys),
            v_proj=(2 * width, keys),
            o_proj=(queries, width),
        )
        self.mlp = _projections(
            gate_proj=(width, layer.intermediate_size),
            up_proj=(width, layer.intermediate_size),
            down_proj=(layer.intermediate_size, width),
        )

    def forward(
        self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Return the states ``[B, k, H]`` after the layer."""
        normed = self.hidden_norm(hidden)
        both = torch.cat((self.input_layernorm(embedded), normed), -1)
        attention, mlp = self.self_attn, self.mlp
        query, key, value = (
            attention[name](both).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        query, key = apply_rotary_pos_emb(query, key, *angles)
        mixed = attend(query, key, value).transpose(1, 2).flatten(2)
        hidden = (normed if self.norm_before_residual else hidden) + attention["o_proj"](mixed)
        normed = self.post_attention_layernorm(hidden)
        gated = silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed)
        output: Tensor = hidden + mlp["down_proj"](gated)
        return output


def _projections(**sizes: tuple[int, int]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*size, False) for name, size in sizes.items()})


def _norm(layer: LlamaConfig, width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=layer.rms_norm_eps)


def rotary_tables(layer: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines ``[T, width]`` of positions ``[T]``."""
    like = torch.zeros(1, device=positions.device)
    cos, sin = LlamaRotaryEmbedding(layer).to(positions.device)(like, positions[None])
    return cos[0], sin[0]


class EagleRunner:
    """Runs a head over rows of text beside the target, with a cache like its ``Runner``.

    Position t has the target's states at t and the token t + 1.
    """

    def __init__(self, head: EagleHead, target: Runner) -> None:
        """Prepare a head for decoding; it takes the target's dtype, device and vocabulary."""
        self.head = head.to(target.device, target.dtype).requires_grad_(False)
        head.share(target.base.embed_tokens, target.output)
        self.device, self.dtype, self.vocabulary = target.device, target.dtype, target.vocabulary
        self.cache: SlotCache | None = None
        self.drafted: Tensor | None = None  # the tokens of a reduced vocabulary
        if head.config.draft_vocabulary < head.config.layer.vocab_size:
            self.drafted = head.d2t + torch.arange(len(head.d2t), device=self.device)

    # A cache allocated in inference mode could not be written outside it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def reserve(self, rows: int, capacity: int) -> int:
        """Allocate at least ``rows`` x ``capacity`` tokens and return the capacity of a row."""
        if self.cache is None or self.cache.rows != rows or self.cache.capacity < capacity:
            capacity, layer = capacity_for(capacity), self.head.config.layer
            self.cache = None  # its memory may be needed for the next one
            self.cache = SlotCache(layer, capacity, [self.device], self.dtype, rows)
            tables = rotary_tables(layer, torch.arange(capacity, device=self.device))
            self.cos, self.sin = (table.to(self.dtype) for table in tables)
        return self.cache.capacity

    def drop_cache(self) -> None:
        """Free the cache."""
        self.cache = None

    @torch.no_grad()
    def prefill(self, prompt: Tensor, row: int, states: Tensor) -> None:
        """Read a prompt ``[T]`` with the target's states ``[T - 1, layers * hidden]``."""
        read = len(states)
        if read:
            at = torch.arange(read, device=self.device)[None]
            self._forward(prompt[None, 1:], self.head.fuse(states[None]), at, read, row)

    @torch.no_grad()
    def read(
        self, tokens: Tensor, hidden: Tensor, at: Tensor, kv_length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read tokens ``[B, k]`` after states ``[B, k, H]`` at positions ``at`` ``[B, k]``.

        The head attends to the first ``kv_length`` slots of its cache, by default to all.

        Returns:
            The state of the last token ``[B, 1, H]`` and its next-token logits ``[B, V]``.
        """
        hidden = self._forward(tokens, hidden, at, kv_length)[:, -1:]
        return hidden, self.logits(hidden[:, 0])

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits ``[B, V]`` of states ``[B, H]``; -inf where it never drafts."""
        logits = self.head.logits(hidden).float()
        if self.drafted is not None:
            spread = logits.new_full((len(logits), self.head.config.layer.vocab_size), -torch.inf)
            logits = spread.index_copy(1, self.drafted, logits)
        return logits[:, : self.vocabulary]

    def _forward(
        self,
        tokens: Tensor,
        hidden: Tensor,
        at: Tensor,
        kv_length: int | None,
        row: int | None = None,
    ) -> Tensor:
        cache, k = self.cache, tokens.shape[1]
        assert cache is not None
        slots = cache.capacity if kv_length is None else kv_length
        alone = tokens.numel() == 1 and kv_length is not None
        mask = None if alone else visible(at, slots, None)
        last = kv_length is not None and len(tokens) == 1 and k <= kv_length
        places = slice(slots - k, slots) if last else at
        cache.set_positions(places, slots, row)
        angles = (self.cos[places], self.sin[places])
        if last:
            angles = angles[0][None], angles[1][None]

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            key, value = cache.update(key, value, 0)
            shared = key.shape[1] < query.shape[1]
            return scaled_dot_product_attention(query, key, value, mask, enable_gqa=shared)

        states: Tensor = self.head(tokens, hidden, angles, attend)
        return states
