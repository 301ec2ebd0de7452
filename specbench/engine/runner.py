"""One causal language model, driven layer by layer over a cache of fixed size.

The decoder layers are Transformers' own modules. Driving them directly, with rotary tables made
once and one mask per kind of layer, leaves out what ``model.forward`` does anew at every step: on a
CPU that is a tenth of the time of a deep model and nearly half of a one-layer draft's.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.attention import MOST_TOKENS, group_heads, grouped_mask
from specbench.engine.cache import SlotCache
from specbench.errors import RunError, UsageError

# Capacities are multiples of this, so that requests of similar length share one allocation.
CAPACITY_STEP = 256
Rotary = Mapping[str, tuple[Tensor, Tensor]]

# Weights of each tensor that identify a model.
FINGERPRINT_WEIGHTS = 256
# Relative error allowed between this runner and the model's own forward pass, by dtype.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


def capacity_for(positions: int) -> int:
    """Return how many positions are allocated where so many are needed."""
    return -(-positions // CAPACITY_STEP) * CAPACITY_STEP


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

    Args:
        model: A Transformers causal language model in evaluation mode.
        vocabulary: Size that logits are cut to: the tokens shared with the other model.

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
        self.output = model.get_output_embeddings()
        # Where a configuration lists no layer types (Mistral, Phi), its window holds for all.
        kind = "sliding_attention" if self._window() else "full_attention"
        layers = self.config.num_hidden_layers
        self.kinds = getattr(self.config, "layer_types", None) or [kind] * layers
        self.groups = group_heads(model)
        self.cache: SlotCache | None = None
        self._check()

    @property
    def dtype(self) -> torch.dtype:
        """Number format of hidden states and cache."""
        return self.model.dtype

    @property
    def devices(self) -> list[torch.device]:
        """Where each layer is; a device map may spread them."""
        return [next(layer.parameters()).device for layer in self.base.layers]

    @property
    def context(self) -> int | None:
        """Number of positions the model was made for; None where its configuration is silent."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states that :meth:`read` returns."""
        return int(self.config.hidden_size)

    def fingerprint(self) -> str:
        """Hash of the signs of some weights, the same in every number format."""
        digest = hashlib.blake2b(digest_size=8)
        for weights in self.base.parameters():
            signs = weights.detach().flatten()[:FINGERPRINT_WEIGHTS].signbit()
            digest.update(signs.cpu().numpy().tobytes())
        return digest.hexdigest()

    @torch.no_grad()
    def reserve(self, rows: int, capacity: int) -> int:
        """Make room for so many sequences of so many tokens; what was read before is forgotten.

        Returns:
            The tokens there is room for.
        """
        if self.cache is None or self.cache.rows != rows or self.cache.capacity < capacity:
            capacity = capacity_for(capacity)
            self.cache = None  # its memory may be needed for the next one
            self.cache = SlotCache(self.config, capacity, self.devices, self.dtype, rows)
            self.rotary, self.windows = self.tables(capacity)
        return self.cache.capacity

    @torch.no_grad()
    def prefill(self, prompt: Tensor, row: int = 0) -> None:
        """Read all of a prompt but its last token into a row.

        The last token stays unread, as the newest token always does between two rounds.

        Args:
            prompt: ``[T]`` token ids, T >= 1.
            row: Where to.

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
        """Read k tokens of every row.

        Args:
            tokens: ``[B, k]``.
            at: ``[B, k]`` their positions; what a slot held is overwritten.
            seen: No position is beyond so many, and the tokens of one row are the last of them.
                None looks at the whole cache, whose size, unlike this number, never changes.

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
        self.cache.aim(places, slots, row)
        return self.through_layers(tokens, self.cache, angles_at(self.rotary, places), masks)

    def through_layers(
        self,
        tokens: Tensor,
        cache: SlotCache,
        angles: Mapping[str, tuple[Tensor, Tensor]],
        masks: Mapping[str, Tensor | None],
    ) -> Tensor:
        """Read tokens ``[B, k]``; return hidden states after the final norm.

        Args:
            tokens: As many for every row.
            cache: Gets their keys and values where it was aimed at.
            angles: Cosines and sines of their positions, by kind of layer.
            masks: What may be seen, ``[B or 1, 1, k, seen]``, by kind of layer; None for all.
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
        like = torch.zeros(1, device=self.device, dtype=self.dtype)
        rotary = self.base.rotary_emb
        per_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        tables = {}
        for kind in set(self.kinds):
            cos, sin = rotary(like, index[None], kind) if per_kind else rotary(like, index[None])
            tables[kind] = (cos[0].to(self.device), sin[0].to(self.device))
        windows = {"full_attention": None, "sliding_attention": self._window()}
        return tables, {kind: windows[kind] for kind in set(self.kinds)}

    def _window(self) -> int | None:
        return getattr(self.config, "sliding_window", None) or None

    @torch.no_grad()
    def _check(self) -> None:
        """Compare with the model's own forward pass on a few tokens."""
        tokens = torch.arange(6, device=self.device)[None] % self.vocabulary
        index = torch.arange(6, device=self.device)[None]
        try:
            self.reserve(1, CAPACITY_STEP)
            own = self.model(tokens, use_cache=False).logits[0, :, : self.vocabulary].float()
            parts = [
                self._read(tokens[:, at[0]], at, int(at[0, -1]) + 1)
                for at in index.split([3, 1, 2], dim=1)
            ]
            ours = self.logits(torch.cat(parts, dim=1))[0]
        except (TypeError, AttributeError, KeyError) as error:
            raise self._refusal(str(error)) from error
        difference = ((own - ours).norm() / own.norm()).item()
        if not difference < TOLERANCE.get(self.dtype, 0.1):
            raise self._refusal(f"logits differ by {difference:.0%}")

    def _refusal(self, reason: str) -> UsageError:
        return UsageError(
            f"{self.config.model_type} models cannot be driven layer by layer ({reason}): "
            "choose a Llama, Qwen or Gemma type of model"
        )
