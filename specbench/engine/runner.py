"""One causal language model, driven layer by layer over a cache of fixed size.

The decoder layers are Transformers' own modules. Driving them directly, with rotary tables made
once and one mask per kind of layer, leaves out what ``model.forward`` does anew at every step: on a
CPU that is a tenth of the time of a deep model and nearly half of a one-layer draft's.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PretrainedConfig, PreTrainedModel

from specbench.engine.attention import MOST_TOKENS, group_heads, grouped_mask
from specbench.engine.cache import SlotCache
from specbench.engine.sources import cause
from specbench.errors import RunError, UsageError

# Capacities are multiples of this, so that requests of similar length share one allocation.
CAPACITY_STEP = 256
Rotary = Mapping[str, tuple[Tensor, Tensor]]

# Weights of each tensor that identify a model.
FINGERPRINT_WEIGHTS = 256
# Relative error allowed between this runner and the model's own forward pass: in float32, and where
# quantised weights keep it from being computed there.
TOLERANCE, QUANTISED_TOLERANCE = 1e-3, 0.1
CHECKED_TOKENS = 6
CHECKED_LOGITS = 4096  # whatever a model does after its last layer, it does to all of them alike


def capacity_for(positions: int) -> int:
    """Return how many positions are allocated where so many are needed."""
    return -(-positions // CAPACITY_STEP) * CAPACITY_STEP


def context_length(config: PretrainedConfig) -> int | None:
    """Return the number of positions a model was made for; None where its configuration is silent.

    A model with two rotary tables (`longrope`: Phi-3.5) has the length of its first one. A longer
    text needs the other table from its first token on, and the cached keys have the wrong angles.
    """
    positions: int | None = getattr(config, "max_position_embeddings", None)
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") == "longrope":
        positions = rotary["original_max_position_embeddings"]
    return positions


def require_context(context: int | None, prompt: int, new: int) -> None:
    """Raise ``RunError`` where ``prompt`` and ``new`` tokens exceed what models were made for."""
    if context is not None and prompt + new > context:
        raise RunError(
            f"a prompt of {prompt} tokens and {new} new ones exceed the context of {context}: "
            "shorten the prompt or lower --max-new-tokens"
        )


def angles_at(tables: Rotary, at: Tensor | slice) -> Rotary:
    """Return the cosines and sines ``[B, k, width]`` of positions ``[B, k]``, or of neighbours."""
    if isinstance(at, slice):
        return {kind: (cos[None, at], sin[None, at]) for kind, (cos, sin) in tables.items()}
    return {kind: (cos[at], sin[at]) for kind, (cos, sin) in tables.items()}


def visible(at: Tensor, seen: int, window: int | None) -> Tensor:
    """Return which of the first ``seen`` slots tokens at ``[B, k]`` see, ``[B, 1, k, seen]``."""
    slots = torch.arange(seen, device=at.device)
    mask = slots <= at[..., None]
    if window is not None:
        mask &= slots > at[..., None] - window
    return mask[:, None]


class Runner:
    """Runs a model over rows of text: read tokens at any positions, again where need be.

    Logits are cut to ``vocabulary``, the tokens shared with the other model.

    Raises:
        UsageError: The model is not a plain stack of decoder layers, so that driving its layers
            does not give what its own forward pass gives.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int) -> None:
        self.model = model
        self.base = model.get_decoder()
        self.config = model.config.get_text_config()
        self.vocabulary = vocabulary
        self.device = model.device  # of the embedding; what goes in and comes out is there
        self.dtype = model.dtype  # of hidden states and cache
        self.hidden_size: int = self.config.hidden_size
        self.context = context_length(self.config)
        self.output = model.get_output_embeddings()
        self.softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        # Where a configuration lists no layer types (Mistral, Phi), its window holds for all.
        kind = "sliding_attention" if self._window() else "full_attention"
        layers = self.config.num_hidden_layers
        self.kinds = getattr(self.config, "layer_types", None) or [kind] * layers
        self.groups = group_heads(model)
        self.cache: SlotCache | None = None
        self._check()

    @property
    def devices(self) -> list[torch.device]:
        """Where each layer is; a device map may spread them."""
        return [next(layer.parameters()).device for layer in self.base.layers]

    def fingerprint(self) -> str:
        """Hash of the signs of some weights, the same in every number format."""
        digest = hashlib.blake2b(digest_size=8)
        for weights in self.base.parameters():
            signs = weights.detach().flatten()[:FINGERPRINT_WEIGHTS].signbit()
            digest.update(signs.cpu().numpy().tobytes())
        return digest.hexdigest()

    # A cache made in inference mode could be written in no other mode.
    @torch.inference_mode(False)
    @torch.no_grad()
    def reserve(self, rows: int, capacity: int) -> int:
        """Make room for so many sequences of ``capacity`` tokens or more; return for how many.

        What was read before is forgotten.
        """
        if self.cache is None or self.cache.rows != rows or self.cache.capacity < capacity:
            capacity = capacity_for(capacity)
            self.cache = None  # its memory may be needed for the next one
            self.cache = SlotCache(self.config, capacity, self.devices, self.dtype, rows)
            self.rotary, self.windows = self.tables(capacity)
        return self.cache.capacity

    @torch.no_grad()
    def prefill(self, prompt: Tensor, row: int = 0) -> None:
        """Read all of a prompt ``[T]``, T >= 1, but its last token into a row.

        The last token stays unread, as the newest token always does between two rounds.

        Raises:
            RunError: The model does not know a token of the prompt.
        """
        known = self.base.embed_tokens.weight.shape[0]
        if (highest := int(prompt.max())) >= known:
            raise RunError(
                f"the prompt has token {highest}, which a model of {known} tokens does not know: "
                "choose a draft that has the target's marks, or a plain prompt"
            )
        read = len(prompt) - 1
        if read:
            at = torch.arange(read, device=self.device)[None]
            self._read(prompt[None, :-1], at, read, row)

    @torch.no_grad()
    def read(self, tokens: Tensor, at: Tensor, seen: int | None = None) -> Tensor:
        """Read ``tokens`` at positions ``at``, both ``[B, k]``; what a slot held is overwritten.

        No position is beyond ``seen``, and the tokens of one row are the last before it. None looks
        at the whole cache, whose size, unlike this number, never changes.

        Returns:
            Hidden states after the final norm ``[B, k, hidden]``.

        Raises:
            IndexError: A position is beyond the cache.
        """
        if self.cache is None or (seen is not None and seen > self.cache.capacity):
            raise IndexError(f"position {seen} is beyond the cache: reserve more")
        return self._read(tokens, at, seen)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits ``[..., V]`` of hidden states ``[..., hidden]``."""
        logits: Tensor = self.output(hidden)[..., : self.vocabulary].float().to(self.device)
        if self.softcap is not None:
            logits = self.softcap * (logits / self.softcap).tanh()
        return logits

    def _read(self, tokens: Tensor, at: Tensor, seen: int | None, row: int | None = None) -> Tensor:
        assert self.cache is not None
        slots = self.cache.capacity if seen is None else seen
        masks: dict[str, Tensor | None] = {}
        for kind, window in self.windows.items():
            # One new token sees all it may see: only a window still needs a mask.
            alone = tokens.numel() == 1 and window is None and seen is not None
            masks[kind] = None if alone else visible(at, slots, window)
        k = tokens.shape[1]
        last = seen is not None and len(tokens) == 1 and k <= seen
        places = slice(slots - k, slots) if last else at
        self.cache.set_positions(places, slots, row)
        return self.through_layers(tokens, self.cache, angles_at(self.rotary, places), masks)

    def through_layers(
        self, tokens: Tensor, cache: SlotCache, angles: Rotary, masks: Mapping[str, Tensor | None]
    ) -> Tensor:
        """Read tokens ``[B, k]`` into a cache; return hidden states after the final norm.

        By kind of layer, ``angles`` are those of the tokens' positions, and ``masks`` say what may
        be seen, ``[B or 1, 1, k, seen]``; None for all.
        """
        if self.groups > 1 and tokens.shape[1] <= MOST_TOKENS:
            masks = {
                kind: None if mask is None else grouped_mask(mask, self.groups)
                for kind, mask in masks.items()
            }
        hidden = self.base.embed_tokens(tokens)
        for layer, kind in zip(self.base.layers, self.kinds, strict=True):
            hidden = layer(
                hidden,
                attention_mask=masks[kind],
                position_embeddings=angles[kind],
                past_key_values=cache,
            )
        normed: Tensor = self.base.norm(hidden).to(self.device)
        return normed

    def tables(self, capacity: int) -> tuple[Rotary, dict[str, int | None]]:
        """Return the rotary tables of a number of positions and the windows, by kind of layer.

        A table is a pair of cosines and sines ``[capacity, width]``; a window is the number of
        tokens that a token sees, itself included, or None for all.
        """
        index = torch.arange(capacity, device=self.device)
        if self.context is not None:
            # Beyond it lie only drafts that are thrown away, and some tables depend on the length.
            index = index.clamp_max(self.context - 1)
        tables = {kind: self._angles(index, kind, self.dtype) for kind in set(self.kinds)}
        windows = {"full_attention": None, "sliding_attention": self._window()}
        return tables, {kind: windows[kind] for kind in set(self.kinds)}

    def _angles(self, index: Tensor, kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[T, width]`` of the positions of a text, for a kind of layer."""
        like = torch.zeros(1, device=self.device, dtype=dtype)
        rotary = self.base.rotary_emb
        per_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        cos, sin = rotary(like, index[None], *([kind] if per_kind else []))
        return cos[0].to(self.device), sin[0].to(self.device)

    def _window(self) -> int | None:
        return getattr(self.config, "sliding_window", None) or None

    @torch.no_grad()
    def _check(self) -> None:
        """Compare with the model's own forward pass on a few tokens, in float32 if it can."""
        quantised = getattr(self.model, "is_quantized", False)
        stored = self.dtype
        try:
            self._require_one_table()
            if quantised:
                difference = self._difference()
            else:
                self.dtype = torch.float32
                layers = [*self.base.layers, self.base.norm]
                with in_float32(self.base.embed_tokens, layers, self.output, CHECKED_LOGITS):
                    difference = self._difference()
            if not difference < (QUANTISED_TOLERANCE if quantised else TOLERANCE):
                raise ValueError(f"logits differ by {100 * difference:.2g}%")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise UsageError(
                f"{self.config.model_type} models cannot be driven layer by layer "
                f"({cause(error)}): choose a Llama, Qwen or Gemma type of model"
            ) from error
        self.dtype, self.cache = stored, None
        self.reserve(1, CAPACITY_STEP)

    def _require_one_table(self) -> None:
        """Refuse a model whose angles at a position depend on the length of the text."""
        if self.context is None:
            return
        few = torch.arange(CHECKED_TOKENS, device=self.device)
        whole = torch.cat((few, few.new_tensor([self.context - 1])))
        for kind in set(self.kinds):
            texts = (self._angles(index, kind, torch.float32) for index in (few, whole))
            short, long = (torch.stack(angles)[:, :CHECKED_TOKENS] for angles in texts)
            if not torch.allclose(short, long, atol=TOLERANCE):
                raise ValueError("its rotary angles depend on the length of the text")

    def _difference(self) -> float:
        """Relative error of the logits of a few tokens, read in pieces."""
        index = torch.arange(CHECKED_TOKENS, device=self.device)[None]
        tokens = index % self.vocabulary
        self.reserve(1, CAPACITY_STEP)
        own = self.model(tokens, use_cache=False).logits[0, :, : self.vocabulary].float()
        pieces = [
            self._read(tokens[:, at[0]], at, int(at[0, -1]) + 1)
            for at in index.split([3, 1, CHECKED_TOKENS - 4], dim=1)
        ]
        ours = self.logits(torch.cat(pieces, dim=1))[0]
        return float((own.to(self.device) - ours).norm() / own.norm())


@contextmanager
def in_float32(
    embedding: nn.Module, layers: Iterable[nn.Module], output: nn.Module, rows: int
) -> Iterator[None]:
    """Let a model compute in float32, and only the first ``rows`` logits, while the context lasts.

    The weights of a layer are float32 only while it runs, in memory that the next one uses again;
    of the embedding only the output is. No layer may hold another one.
    """
    spare: dict[tuple[Any, ...], Tensor] = {}
    handles = [embedding.register_forward_hook(lambda module, inputs, given: given.float())]
    for layer in layers:
        handles += _widened(layer, None, spare)
    handles += _widened(output, rows, spare)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _widened(
    module: nn.Module, rows: int | None, spare: dict[tuple[Any, ...], Tensor]
) -> list[RemovableHandle]:
    stored: list[tuple[Tensor, Tensor]] = []

    def widen(*_: Any) -> None:
        for number, weights in enumerate(chain(module.parameters(), module.buffers())):
            if weights.is_floating_point() and weights.dtype != torch.float32:
                data = weights.data[:rows]
                place = (number, data.shape, data.device)
                if place not in spare:
                    spare[place] = torch.empty_like(data, dtype=torch.float32)
                stored.append((weights, weights.data))
                weights.data = spare[place].copy_(data)

    def restore(*_: Any) -> None:
        for weights, data in stored:
            weights.data = data
        stored.clear()

    return [
        module.register_forward_pre_hook(widen),
        module.register_forward_hook(restore, always_call=True),
    ]
