"""One causal language model, run layer by layer over a cache of fixed size.

The decoder layers are Transformers' own modules. Calling them directly, with rotary tables computed
once and one mask per kind of layer, avoids the per-step overhead of ``model.forward``: on a CPU a
tenth of the time of a deep model and nearly half of that of a one-layer draft.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine import attention
from specbench.engine.cache import CAPACITY_STEP, SlotCache, capacity_for, context_length
from specbench.engine.device import now
from specbench.errors import RunError, UsageError, cause

if TYPE_CHECKING:
    from specbench.engine.fused import FusedLayers
    from specbench.engine.vocabulary import DraftTokens

# States of prompts that a model stores, or less if little memory is free.
MOST_PROMPT_BYTES = 2**30
# Largest relative error between a runner and the model's own forward pass: in float32, and for
# quantised weights, which cannot be computed in float32.
TOLERANCE, QUANTISED_TOLERANCE = 1e-3, 0.1
CHECKED_TOKENS = 6
CHECKED_LOGITS = 4096  # enough, as the output head treats all logits alike
# Weights of each tensor that enter a model's fingerprint.
FINGERPRINT_WEIGHTS = 256


class Runner:
    """Runs a model over rows of text: tokens at any positions, which later calls may overwrite.

    Logits are cut to ``vocabulary``, the number of the target's tokens; ``present`` says which of
    them a draft has. A drafter may read states after some ``layers``, from 0 for the embedding:
    then they follow the hidden states along the last dimension,
    ``[..., (1 + len(layers)) * hidden]``.

    Raises:
        UsageError: The model is not a plain stack of decoder layers, so running its layers does not
            reproduce its own forward pass.
    """

    def __init__(
        self, model: PreTrainedModel, vocabulary: int, present: DraftTokens | None = None
    ) -> None:
        self.model = model
        self.base = model.get_decoder()
        self.config = model.config.get_text_config()
        self.vocabulary = vocabulary
        self.device = model.device  # of the embedding, and of all inputs and outputs
        self.present = present and present._replace(present=present.present.to(self.device))
        self.dtype = model.dtype  # of hidden states and cache
        self.hidden_size: int = self.config.hidden_size
        self.context = context_length(self.config)
        self.output = model.get_output_embeddings()
        self.softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        self.window: int | None = getattr(self.config, "sliding_window", None) or None
        # Without a list of layer types (Mistral, Phi), the window applies to all layers.
        kind = "sliding_attention" if self.window else "full_attention"
        layers = self.config.num_hidden_layers
        self.kinds = getattr(self.config, "layer_types", None) or [kind] * layers
        self.groups = attention.group_heads(model)
        self.cache: SlotCache | None = None
        self.layers: Sequence[int] = ()
        self.saved_seconds = 0.0
        self.prompt_bytes = MOST_PROMPT_BYTES
        self.fused: FusedLayers | None = None
        if self.device.type == "cuda" and find_spec("triton"):
            from specbench.engine.fused import fused_layers

            self.fused = fused_layers(model, self.kinds)
        if self.device.type != "meta":  # no values to compare
            _require_same_logits(self)
            self.reserve(1, CAPACITY_STEP)

    @cached_property
    def cache_keyword(self) -> str:
        """The name by which a layer takes its cache: Transformers 5.24 renamed it."""
        taken = inspect.signature(self.base.layers[0].forward).parameters
        return "cache" if "cache" in taken else "past_key_values"

    @property
    def devices(self) -> list[torch.device]:
        """The device of each layer; a device map may spread them."""
        return [next(layer.parameters()).device for layer in self.base.layers]

    def fingerprint(self) -> str:
        """Hash of the signs of some weights, the same for every dtype."""
        digest = hashlib.blake2b(digest_size=8)
        for weights in self.base.parameters():
            signs = weights.detach().flatten()[:FINGERPRINT_WEIGHTS].signbit()
            digest.update(signs.cpu().numpy().tobytes())
        return digest.hexdigest()

    # A cache allocated in inference mode could not be written outside it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def reserve(self, rows: int, capacity: int) -> int:
        """Allocate a cache if it is too small; see ``Model.reserve``."""
        if self.cache is None or self.cache.rows != rows or self.cache.capacity < capacity:
            capacity = capacity_for(capacity)
            self.cache = None  # its memory may be needed for the next one
            self.cache = SlotCache(self.config, capacity, self.devices, self.dtype, rows)
            self.rotary, self.windows = self.tables(capacity)
        return self.cache.capacity

    def drop_cache(self) -> None:
        """Free the cache."""
        self.cache = None

    def forget_prompts(self) -> None:
        """Read the next prompts even if their states are stored."""
        if self.cache is not None:
            self.cache.prompts.clear()

    @torch.no_grad()
    def prefill(self, prompt: Tensor, row: int = 0) -> Tensor:
        """Read a prompt ``[T]`` into a row; see ``Model.prefill``.

        Without ``layers``, a prompt whose states are stored is not read again.
        """
        tokens = self.base.embed_tokens.weight.shape[0]
        if (highest := int(self._inputs(prompt).max())) >= tokens:
            raise RunError(
                f"the prompt has token {highest}, but the target has only {tokens} tokens: choose "
                "another target, or --prompt-format plain"
            )
        read, self.saved_seconds = len(prompt) - 1, 0.0
        if not read:
            width = len(self.layers) * self.hidden_size
            return torch.zeros(0, width, device=self.device, dtype=self.dtype)
        assert self.cache is not None
        if not self.layers:
            self.saved_seconds = self.cache.restore(prompt, row)
        if self.saved_seconds:
            return torch.empty(0, device=self.device)
        began, positions = now(self.device), torch.arange(read, device=self.device)[None]
        rows = slice(row, row + 1)
        states = self._forward(prompt[None, :-1], positions, read, rows)[0, :, self.hidden_size :]
        self.cache.store(prompt, row, now(self.device) - began, self.prompt_bytes)
        return states

    @torch.no_grad()
    def forward(self, tokens: Tensor, at: Tensor, kv_length: int | None = None) -> Tensor:
        """Run ``tokens`` at positions ``at``, both ``[B, k]``; their slots are overwritten.

        If ``kv_length`` is given, all positions are below it, and the tokens of a single row end
        there. None attends to the whole cache, which keeps the shapes constant. Return hidden
        states after the final norm ``[B, k, hidden]``.
        """
        if self.cache is None or (kv_length is not None and kv_length > self.cache.capacity):
            raise IndexError(f"position {kv_length} is beyond the cache: reserve more")
        return self._forward(tokens, at, kv_length)

    def read(
        self, tokens: Tensor, at: Tensor, kv_length: int | None = None, last: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run tokens ``[B, k]`` as ``forward`` does; see ``Model.read``."""
        hidden = self.forward(tokens, at, kv_length)
        hidden = hidden[:, -1:] if last else hidden
        return hidden, self.logits(hidden[..., : self.hidden_size], kv_length is None)

    def plain(self, tokens: Tensor, last: int, hidden: bool) -> tuple[Tensor, Tensor]:
        """Run whole texts ``[B, T]`` by the model's own forward pass; see ``Model.plain``."""
        model: Any = self.model
        tokens = self._inputs(tokens)
        logits = model(tokens, use_cache=False, logits_to_keep=last).logits
        states = torch.empty(0)
        if hidden:
            states = self.base(tokens, use_cache=False).last_hidden_state[:, -last:]
        return self._outputs(logits[..., : self.vocabulary].float().to(self.device)), states

    def logits(self, hidden: Tensor, fused: bool = False) -> Tensor:
        """Return float32 logits ``[..., V]`` of hidden states ``[..., hidden]``.

        With ``fused``, the head is a kernel of our own, if the model has ``fused`` layers.
        """
        if fused and self.fused is not None and not torch.compiler.is_compiling():
            logits = self.fused.logits(hidden)
        else:
            logits = self.output(hidden).float()
        logits = logits[..., : self.vocabulary].to(self.device)
        if self.softcap is not None:
            logits = self.softcap * (logits / self.softcap).tanh()
        return self._outputs(logits)

    def _inputs(self, tokens: Tensor) -> Tensor:
        return tokens if self.present is None else self.present.inputs(tokens)

    def _outputs(self, logits: Tensor) -> Tensor:
        return logits if self.present is None else self.present.outputs(logits)

    def twin(self) -> Runner:
        """Return the same weights with a cache of their own."""
        return Runner(self.model, self.vocabulary, self.present)

    def weight_bytes(self) -> int:
        """Return the bytes of layers, last norm and output head, which may be the embedding."""
        parts = (self.base.layers, self.base.norm, self.output)
        weights = {id(w): w for part in parts for w in part.parameters()}
        return sum(w.numel() * w.element_size() for w in weights.values())

    def cache_bytes(self, tokens: float) -> float:
        """Return the bytes of keys and values that a step reads for a text of so many tokens."""
        assert self.cache is not None
        total = 0.0
        for keys, values, kind in zip(self.cache.keys, self.cache.values, self.kinds, strict=True):
            window = self.windows[kind]
            width = (keys[0, :, 0].numel() + values[0, :, 0].numel()) * keys.element_size()
            total += width * (tokens if window is None else min(tokens, window))
        return total

    def _forward(
        self, tokens: Tensor, at: Tensor, kv_length: int | None, rows: slice | None = None
    ) -> Tensor:
        assert self.cache is not None
        if kv_length is None and self.fused is not None and self.fused.takes(tokens):
            table = self.rotary["full_attention"]
            return self.fused(self._inputs(tokens), at, self.cache, table, self.layers)
        slots, places = self.cache.place(at, kv_length, rows)
        masks: dict[str, Tensor | None] = {}
        for kind, window in self.windows.items():
            # A single new token attends to all slots; only a window or grouping needs a mask.
            alone = tokens.numel() == self.groups == 1 and window is None and kv_length is not None
            masks[kind] = None if alone else attention.visible(at, slots, window)
        angles = attention.angles_at(self.rotary, places)
        return self.through_layers(tokens, self.cache, angles, masks, self.layers)

    def through_layers(
        self,
        tokens: Tensor,
        cache: SlotCache | None,
        angles: attention.Rotary,
        masks: Mapping[str, Tensor | None],
        layers: Sequence[int] = (),
    ) -> Tensor:
        """Run tokens ``[B, k]`` into a cache, if any; return hidden states after the final norm.

        The states after ``layers`` follow along the last dimension.

        By kind of layer, ``angles`` are those of the tokens' positions, and ``masks`` are attention
        masks ``[B or 1, 1, k, kv_length]``, or None to attend to all slots.
        """
        if self.groups > 1 and tokens.shape[1] <= attention.MOST_TOKENS:
            masks = {
                kind: None if mask is None else attention.grouped_mask(mask, self.groups)
                for kind, mask in masks.items()
            }
        hidden = self.base.embed_tokens(self._inputs(tokens))
        states = {0: hidden}
        for number, (layer, kind) in enumerate(zip(self.base.layers, self.kinds, strict=True), 1):
            hidden = layer(
                hidden,
                attention_mask=masks[kind],
                position_embeddings=angles[kind],
                **{self.cache_keyword: cache},
            )
            if number in layers:
                states[number] = hidden
        normed: Tensor = self.base.norm(hidden)
        if layers:
            normed = torch.cat([normed, *(states[number].to(normed) for number in layers)], -1)
        return normed.to(self.device)

    def tables(self, capacity: int) -> tuple[attention.Rotary, dict[str, int | None]]:
        """Return the rotary tables for ``capacity`` positions and the windows, by kind of layer.

        A table is a pair of cosines and sines ``[capacity, width]``; a window is the number of
        tokens attended to, including the token itself, or None for all.
        """
        index = torch.arange(capacity, device=self.device)
        if self.context is not None:
            # Beyond it are only drafts that get discarded, and some tables depend on the length.
            index = index.clamp_max(self.context - 1)
        tables = {kind: self.angles(index, kind, self.dtype) for kind in set(self.kinds)}
        windows = {"full_attention": None, "sliding_attention": self.window}
        return tables, {kind: windows[kind] for kind in set(self.kinds)}

    def angles(self, index: Tensor, kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[T, width]`` of positions ``index`` for a kind of layer."""
        like = torch.zeros(1, device=self.device, dtype=dtype)
        rotary = self.base.rotary_emb
        per_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        cos, sin = rotary(like, index[None], *([kind] if per_kind else []))
        return cos[0].to(self.device), sin[0].to(self.device)


@torch.no_grad()
def _require_same_logits(runner: Runner) -> None:
    """Compare a runner with the model's own forward pass on a few tokens, and drop its cache."""
    from specbench.engine.precision import in_float32

    quantised = getattr(runner.model, "is_quantized", False)
    stored = runner.dtype
    try:
        _require_one_table(runner)
        if quantised:
            difference = _difference(runner)
        else:
            runner.dtype = torch.float32
            layers = [*runner.base.layers, runner.base.norm]
            with in_float32(runner.base.embed_tokens, layers, runner.output, CHECKED_LOGITS):
                difference = _difference(runner)
        if not difference < (QUANTISED_TOLERANCE if quantised else TOLERANCE):
            raise ValueError(f"logits differ by {100 * difference:.2g} %")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise UsageError(
            f"{runner.config.model_type} models cannot be run layer by layer "
            f"({cause(error)}): choose a Llama, Qwen or Gemma type of model"
        ) from error
    runner.dtype = stored
    runner.drop_cache()


def _require_one_table(runner: Runner) -> None:
    """Raise ``ValueError`` if the angles at a position depend on the text length."""
    if runner.context is None:
        return
    few = torch.arange(CHECKED_TOKENS, device=runner.device)
    whole = torch.cat((few, few.new_tensor([runner.context - 1])))
    for kind in set(runner.kinds):
        short = torch.stack(runner.angles(few, kind, torch.float32))
        long = torch.stack(runner.angles(whole, kind, torch.float32))[:, :CHECKED_TOKENS]
        if not torch.allclose(short, long, atol=TOLERANCE):
            raise ValueError("its rotary angles depend on the length of the text")


def _difference(runner: Runner) -> float:
    """Relative error of the logits of a few tokens, run in several pieces."""
    index = torch.arange(CHECKED_TOKENS, device=runner.device)[None]
    tokens = index % min(runner.vocabulary, runner.base.embed_tokens.weight.shape[0])
    runner.reserve(1, CHECKED_TOKENS)
    expected = runner.plain(tokens, CHECKED_TOKENS, hidden=False)[0][0]
    pieces = [
        runner._forward(tokens[:, positions[0]], positions, int(positions[0, -1]) + 1)
        for positions in index.split([3, 1, CHECKED_TOKENS - 4], dim=1)
    ]
    ours = runner.logits(torch.cat(pieces, dim=1))[0]
    present = ~expected.isneginf()  # where a draft has the token
    expected, ours = expected[present], ours[present]
    return float((expected - ours).norm() / expected.norm())
