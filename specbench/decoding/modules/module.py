"""Modules that draft: one layer that reads hidden states of the target.

A module joins the target's states at a position to one vector g. Its only layer reads g and the
embedding of the token that follows, attends to earlier positions through a cache of its own, and
returns a state h from which the token after that is drawn. For the next draft of the same round h
takes the place of g, which the target has not computed yet. A block drafter reads learned values
there instead, so that all drafts of a round take one pass.

Each kind is a subclass of ``DraftModule``: how it joins the states, reads a token and returns
logits, and what its files are called. Tensors are named as in its files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specbench.errors import UsageError

# Mixes values under queries, keys and values, all ``[B, heads, k, width]``.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Angles = tuple[Tensor, Tensor]
SLOT = -1  # stands for the token before a draft that a block drafter does not read
SLOTS = 7  # states that it learns; drafts beyond read the last one
EAGLE_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True)
class ModuleConfig:
    """The shape of a module; what follows ``draft_vocabulary`` is of EAGLE-3 modules only."""

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


class DraftModule(nn.Module, ABC):
    """The weights of a module and what it computes."""

    kind: ClassVar[str]  # in ``config.json`` and in recipes
    is_block: ClassVar[bool] = False  # whether no draft reads an earlier one of its round

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__()
        self.config = config

    @staticmethod
    @abstractmethod
    def default_layers(layers: int) -> tuple[int, ...]:
        """Return the layers whose states it reads by default, of a target with so many."""

    def share(self, embedding: nn.Module, output: nn.Module) -> None:
        """Use the target's embedding and output head where the module has none of its own."""
        module: Any = self
        # Functions, since a module would be registered and saved as a part of the module.
        self.embed = (module.embed_tokens if self.config.own_embedding else embedding).forward
        self.project = (module.lm_head if self.config.own_output else output).forward

    @classmethod
    def configured(
        cls, values: Mapping[str, Any], layer: LlamaConfig, depth: int, stored: Collection[str]
    ) -> ModuleConfig:
        """Return the shape of a module from ``config.json`` and the names of its tensors.

        ``depth`` is the number of the target's layers.
        """
        return ModuleConfig(layer, cls.default_layers(depth), layer.hidden_size, layer.vocab_size)

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Return the values of ``config.json`` that only this kind has."""

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """Join the target's states ``[..., layers * hidden]`` to g ``[..., H]``."""

    @abstractmethod
    def forward(self, tokens: Tensor, hidden: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """Read tokens ``[B, k]`` after g or the last outputs ``[B, k, H]``, to h ``[B, k, H]``."""

    def at_depth(self, depth: int, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the draft of a depth from 1 on reads: the token before it, and its h."""
        return tokens, hidden

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits ``[..., draft vocabulary]`` of the states h ``[..., H]``."""


class LlamaLayer(nn.Module):
    """A Llama layer without its first norm, whose attention may read more than the residual."""

    def __init__(self, config: ModuleConfig, reads: int) -> None:
        super().__init__()
        layer: Any = config.layer
        width = config.width
        self.input_layernorm = _norm(layer, width)
        self.post_attention_layernorm = _norm(layer, width)
        self.head_dim: int = layer.head_dim
        queries = layer.num_attention_heads * self.head_dim
        keys = layer.num_key_value_heads * self.head_dim
        self.self_attn = _projections(
            q_proj=(reads, queries),
            k_proj=(reads, keys),
            v_proj=(reads, keys),
            o_proj=(queries, width),
        )
        self.mlp = _projections(
            gate_proj=(width, layer.intermediate_size),
            up_proj=(width, layer.intermediate_size),
            down_proj=(layer.intermediate_size, width),
        )

    def attended(self, read: Tensor, residual: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """Return the states ``[B, k, H]`` after attention and MLP."""
        attention, mlp = self.self_attn, self.mlp
        query, key, value = (
            attention[name](read).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        query, key = apply_rotary_pos_emb(query, key, *angles)
        mixed = attend(query, key, value).transpose(1, 2).flatten(2)
        hidden = residual + attention["o_proj"](mixed)
        normed = self.post_attention_layernorm(hidden)
        gated = silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed)
        output: Tensor = hidden + mlp["down_proj"](gated)
        return output


class EagleLayer(LlamaLayer):
    """A layer whose attention reads an embedding and a state side by side."""

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__(config, 2 * config.width)
        self.hidden_norm = _norm(config.layer, config.width)
        self.norm_before_residual = config.norm_before_residual

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return embeddings and states side by side ``[..., 2 H]``, both normed."""
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)

    def forward(self, embedded: Tensor, hidden: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """Return the states ``[B, k, H]`` after the layer."""
        read = self.joined(embedded, hidden)
        residual = read[..., embedded.shape[-1] :] if self.norm_before_residual else hidden
        return self.attended(read, residual, angles, attend)


class EagleModule(DraftModule):
    """EAGLE-3: states after several layers, and possibly a width and a vocabulary of its own.

    Source: Li et al. 2025, arXiv:2503.01840; files as `speculators` and vLLM read them.
    """

    kind = "eagle3"

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__(config)
        layer, inputs = config.layer, len(config.layers) * config.target_hidden
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

    @staticmethod
    def default_layers(layers: int) -> tuple[int, ...]:
        """Return an early, the middle and a late layer."""
        return min(2, layers), layers // 2, max(layers - 3, 0)

    @classmethod
    def configured(
        cls, values: Mapping[str, Any], layer: LlamaConfig, depth: int, stored: Collection[str]
    ) -> ModuleConfig:
        """Read vocabulary, layers and norms; layers in the flat form are nested."""
        layers: Any = values.get("eagle_aux_hidden_state_layer_ids")
        nested = (values.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        return ModuleConfig(
            layer,
            tuple(layers or nested or cls.default_layers(depth)),
            values.get("target_hidden_size") or layer.hidden_size,
            values.get("draft_vocab_size") or layer.vocab_size,
            own_embedding="embed_tokens.weight" in stored,
            own_output="lm_head.weight" in stored,
            **{name: bool(values.get(name, False)) for name in EAGLE_OPTIONS},
        )

    def values(self) -> dict[str, Any]:
        """Return vocabulary, layers and norms."""
        return {
            "draft_vocab_size": self.config.draft_vocabulary,
            "target_hidden_size": self.config.target_hidden,
            "eagle_aux_hidden_state_layer_ids": list(self.config.layers),
            **{name: getattr(self.config, name) for name in EAGLE_OPTIONS},
        }

    def fuse(self, states: Tensor) -> Tensor:
        """Project the states of all layers together."""
        if self.config.norm_before_fc:
            states = self.input_norm(states)
        if self.config.fc_norm:
            parts = states.chunk(len(self.config.layers), -1)
            states = torch.cat([n(p) for n, p in zip(self.fc_norm, parts, strict=True)], -1)
        fused: Tensor = self.fc(states)
        return fused

    def forward(self, tokens: Tensor, hidden: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """Read tokens after states."""
        hidden = self.layers[0](self.embed(tokens), hidden, angles, attend)
        return self.norm(hidden) if self.config.norm_output else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of the normed states."""
        logits: Tensor = self.project(hidden if self.config.norm_output else self.norm(hidden))
        return logits


class MtpLayer(LlamaLayer):
    """A layer that reads the projection of an embedding and a state, both normed."""

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__(config, config.width)
        self.token_layernorm = _norm(config.layer, config.width)
        self.hidden_layernorm = _norm(config.layer, config.width)
        self.input_proj = nn.Linear(2 * config.width, config.width, bias=False)
        self.final_layernorm = _norm(config.layer, config.width)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return embeddings and states side by side ``[..., 2 H]``, both normed."""
        return torch.cat((self.token_layernorm(embedded), self.hidden_layernorm(hidden)), -1)

    def forward(self, embedded: Tensor, hidden: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """Return the normed states ``[B, k, H]`` after the layer."""
        projected = self.input_proj(self.joined(embedded, hidden))
        hidden = self.attended(self.input_layernorm(projected), projected, angles, attend)
        normed: Tensor = self.final_layernorm(hidden)
        return normed


class MtpModule(DraftModule):
    """Multi-token prediction: the last layer's states, embedding and output head of the target.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.2; files as `speculators` reads them.
    """

    kind = "mtp"

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__(config)
        self.mtp_layers = nn.ModuleList([MtpLayer(config)])

    @staticmethod
    def default_layers(layers: int) -> tuple[int, ...]:
        """Return the last layer."""
        return (layers,)

    def values(self) -> dict[str, Any]:
        """Return the number of modules."""
        return {"num_nextn_predict_layers": 1}

    def fuse(self, states: Tensor) -> Tensor:
        """Return the states of the only layer."""
        return states

    def forward(self, tokens: Tensor, hidden: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """Read tokens after states."""
        output: Tensor = self.mtp_layers[0](self.embed(tokens), hidden, angles, attend)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of states, which are normed."""
        logits: Tensor = self.project(hidden)
        return logits


class BlockModule(MtpModule):
    """A block drafter: an MTP module whose drafts after the first read learned tokens and states.

    Each of these slots attends to the text and to the slots before it. So every q is fixed before
    the first token of the round is drawn, and rules keep their laws with these q.

    Source: the one pass of DFlash and P-EAGLE, here with the layer of an MTP module.
    """

    kind, is_block = "block", True

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__(config)
        self.slot_token = nn.Parameter(torch.randn(1, config.width))
        self.slot_states = nn.Parameter(torch.randn(SLOTS, config.width))

    def at_depth(self, depth: int, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slot of a depth."""
        state = self.slot_states[min(depth, SLOTS) - 1]
        return torch.full_like(tokens, SLOT), state.expand(*tokens.shape, -1)

    def forward(self, tokens: Tensor, hidden: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """Read tokens and slots after states."""
        is_slot = (tokens == SLOT)[..., None]
        embedded = torch.where(is_slot, self.slot_token, self.embed(tokens.clamp_min(0)))
        output: Tensor = self.mtp_layers[0](embedded, hidden, angles, attend)
        return output


MODULES: dict[str, type[DraftModule]] = {
    kind.kind: kind for kind in (EagleModule, MtpModule, BlockModule)
}
"""Every kind of module by name."""


def require_layers(layers: Sequence[object], depth: int) -> None:
    """Check that a target of this depth has the states after these layers; 0 is its embedding.

    Raises:
        UsageError: It has not.
    """
    if not layers or any(type(number) is not int or not 0 <= number <= depth for number in layers):
        raise UsageError(
            f"it reads states after the layers {', '.join(map(str, layers))}, and the target has "
            f"layers 0 to {depth}: choose whole numbers among these"
        )


def _projections(**sizes: tuple[int, int]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*size, False) for name, size in sizes.items()})


def _norm(layer: LlamaConfig, width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=layer.rms_norm_eps)


def rotary_tables(layer: LlamaConfig, positions: Tensor) -> Angles:
    """Return cosines and sines ``[T, width]`` of positions ``[T]``."""
    like = torch.zeros(1, device=positions.device)
    cos, sin = LlamaRotaryEmbedding(layer).to(positions.device)(like, positions[None])
    return cos[0], sin[0]
