"""One causal language model, driven layer by layer over a rewindable cache.

The decoder layers are Transformers' own modules. Driving them directly, with rotary tables and
masks made once, leaves out what ``model.forward`` does anew at every step: on a CPU that is a tenth
of the time of a deep model and nearly half of a one-layer draft's.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.cache import RewindableCache
from specbench.errors import RunError, UsageError

# Capacities are multiples of this, so that requests of similar length share one allocation.
CAPACITY_STEP = 256
# Weights of each tensor that identify a model.
FINGERPRINT_WEIGHTS = 256
# Relative error allowed between this runner and the model's own forward pass, by dtype.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


def capacity_for(positions: int) -> int:
    """Return how many positions are allocated where so many are needed."""
    return -(-positions // CAPACITY_STEP) * CAPACITY_STEP


class Runner:
    """Runs a model over one sequence: forward k tokens, rewind, forward again.

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
        kind = "sliding_attention" if self._window(0) else "full_attention"
        layers = self.config.num_hidden_layers
        self.kinds = getattr(self.config, "layer_types", None) or [kind] * layers
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
    def length(self) -> int:
        """Number of tokens in the cache."""
        return self.cache.position

    @property
    def context(self) -> int | None:
        """Number of positions the model was made for; None where its configuration is silent."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states that :meth:`forward` returns."""
        return int(self.config.hidden_size)

    def fingerprint(self) -> str:
        """Hash of the signs of some weights, the same in every number format."""
        digest = hashlib.blake2b(digest_size=8)
        for weights in self.base.parameters():
            signs = weights.detach().flatten()[:FINGERPRINT_WEIGHTS].signbit()
            digest.update(signs.cpu().numpy().tobytes())
        return digest.hexdigest()

    @torch.inference_mode()
    def start(self, prompt: Tensor, capacity: int) -> None:
        """Forget everything and read all of a prompt but its last token.

        The last token stays unread, as the newest token always does between two rounds.

        Args:
            prompt: ``[T]`` token ids, T >= 1.
            capacity: Positions the whole request may need.

        Raises:
            RunError: The model does not know a token of the prompt.
        """
        rows = self.base.embed_tokens.weight.shape[0]
        if (highest := int(prompt.max())) >= rows:
            raise RunError(
                f"the prompt has token {highest}, which a model of {rows} tokens does not know: "
                "choose a draft that has the target's marks, or a plain prompt"
            )
        if capacity > self.cache.capacity:
            self._reserve(capacity)
        self.cache.position = 0
        if len(prompt) > 1:
            self._hidden(prompt[:-1])

    def rewind(self, length: int) -> None:
        """Forget every token after the first ``length``; fewer held tokens stay as they are."""
        self.cache.position = min(self.cache.position, length)

    @torch.inference_mode()
    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read k tokens ``[k]`` after those in the cache.

        Returns:
            Float32 logits ``[k, V]`` for the token after each, and the last hidden states
            ``[k, hidden]`` after the final norm that they come from.
        """
        hidden = self._hidden(tokens)[0]
        return self.logits(hidden), hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits ``[K, V]`` of hidden states ``[K, hidden]``."""
        logits: Tensor = self.output(hidden)[:, : self.vocabulary].float().to(self.device)
        return logits

    def _hidden(self, tokens: Tensor) -> Tensor:
        start, end = self.cache.position, self.cache.position + len(tokens)
        if end > self.cache.capacity:
            raise IndexError(f"position {end} is beyond the cache's {self.cache.capacity}")
        masks = {
            # One new token sees all it may see: only a window still needs a mask.
            k: None if len(tokens) == 1 and k == "full_attention" else mask[:, :, start:end, :end]
            for k, mask in self.masks.items()
        }
        return self.through_layers(tokens[None], self.cache, self.rotary, masks)

    def through_layers(
        self,
        tokens: Tensor,
        cache: RewindableCache,
        rotary: Mapping[str, tuple[Tensor, Tensor]],
        masks: Mapping[str, Tensor | None],
    ) -> Tensor:
        """Read tokens ``[B, k]`` after those in a cache; return hidden states after the final norm.

        Args:
            tokens: The same number of tokens for every row of the cache.
            cache: Gets their keys and values, and its position moved on.
            rotary: Cosines and sines of all positions, by kind of layer.
            masks: What may be seen, ``[B or 1, 1, k, position + k]``, by kind of layer; None for
                all.
        """
        start, end = cache.position, cache.position + tokens.shape[1]
        angles = {k: (cos[:, start:end], sin[:, start:end]) for k, (cos, sin) in rotary.items()}
        hidden = self.base.embed_tokens(tokens)
        for layer, kind in zip(self.base.layers, self.kinds, strict=True):
            hidden = layer(
                hidden,
                attention_mask=masks[kind],
                position_embeddings=angles[kind],
                past_key_values=cache,
            )
        cache.position = end
        normed: Tensor = self.base.norm(hidden).to(self.device)
        return normed

    def tables(self, capacity: int) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        """Return rotary tables and causal masks for a number of positions, by kind of layer.

        A mask is ``[1, 1, capacity, capacity]``: row i sees columns i - window + 1 to i.
        """
        index = torch.arange(capacity, device=self.device)
        like = torch.zeros(1, device=self.device, dtype=self.dtype)
        rotary = self.base.rotary_emb
        per_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        angles = {}
        for kind in set(self.kinds):
            cos, sin = rotary(like, index[None], kind) if per_kind else rotary(like, index[None])
            angles[kind] = (cos.to(self.device), sin.to(self.device))
        windows = {"full_attention": capacity, "sliding_attention": self._window(capacity)}
        masks = {
            kind: torch.ones(capacity, capacity, dtype=torch.bool, device=self.device)
            .tril()
            .triu(1 - windows[kind])[None, None]
            for kind in set(self.kinds)
        }
        return angles, masks

    @torch.inference_mode()
    def _reserve(self, positions: int) -> None:
        """Allocate cache, rotary tables and masks for a number of positions, rounded up."""
        capacity = capacity_for(positions)
        self.cache = RewindableCache(self.config, capacity, self.devices, self.dtype)
        self.rotary, self.masks = self.tables(capacity)

    def _window(self, without: int) -> int:
        return getattr(self.config, "sliding_window", None) or without

    @torch.inference_mode()
    def _check(self) -> None:
        """Compare with the model's own forward pass on a few tokens."""
        tokens = torch.arange(6, device=self.device) % self.vocabulary
        try:
            self._reserve(CAPACITY_STEP)
            own = self.model(tokens[None], use_cache=False).logits[0, :, : self.vocabulary].float()
            ours = torch.cat([self.forward(part)[0] for part in tokens.split([3, 1, 2])])
        except (TypeError, AttributeError, KeyError) as error:
            raise self._refusal(str(error)) from error
        self.cache.position = 0
        difference = ((own - ours).norm() / own.norm()).item()
        if not difference < TOLERANCE.get(self.dtype, 0.1):
            raise self._refusal(f"logits differ by {difference:.0%}")

    def _refusal(self, reason: str) -> UsageError:
        return UsageError(
            f"{self.config.model_type} models cannot be driven layer by layer ({reason}): "
            "choose a Llama, Qwen or Gemma type of model"
        )
