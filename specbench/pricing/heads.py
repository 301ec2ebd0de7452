"""What drafts from a target's states, by shape: EAGLE heads, MTP layers, block drafters.

Their cost follows from the target's shape, so neither weights nor a configuration are needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specbench.decoding.drafters.kind import DrafterKind
from specbench.errors import require, shown
from specbench.pricing.shapes import CONFIG, Precision, ServedModel, known_shape, read_config

EAGLE3_ROWS = 32_000  # of the output head of a published EAGLE-3 head
BLOCK_LAYERS = 5  # of a published block drafter
HEADS = ("eagle3", "eagle", "mtp", "block")
DRAFT_MODEL, COPIES = "draft_model", "copies"
_CALLED = {
    r"eagle-?3": "eagle3",
    r"eagle": "eagle",
    r"mtp|nextn": "mtp",
    r"dflash|dspark|block|diffusion": "block",
    r"n-?gram|lookup|suffix": COPIES,
    r"draft|model|greedy|standalone|assist": DRAFT_MODEL,
}


class DraftPasses(NamedTuple):
    """What drafts, as its passes are priced."""

    model: ServedModel | None  # None copies tokens, which is free
    once: float = 0.0  # weights that a round reads once
    in_blocks: bool = False  # whether one pass drafts all tokens


def kind_called(name: str) -> str:
    """Return what drafts, one of ``HEADS``, ``DRAFT_MODEL``, ``COPIES``, by a name; else empty."""
    text = name.lower()
    return next((kind for pattern, kind in _CALLED.items() if re.search(pattern, text)), "")


def drafting_of(kind: str, target: ServedModel) -> DraftPasses:
    """Return what a head runs beside its target, by its kind, one of ``HEADS``.

    Source: EAGLE-3 (arXiv:2503.01840) reads three states once a round and has a layer whose
    attention reads state and embedding; EAGLE (arXiv:2401.15077) and MTP (arXiv:2412.19437) join
    both before an ordinary layer, and use the target's output head; a block drafter (DFlash,
    arXiv:2602.06036) has a few ordinary layers, which pass once over all drafts.
    """
    shape, width = target.shape, target.shape.width
    dense: dict[str, Any] = {
        **dict.fromkeys(("experts", "experts_per_token", "expert_width", "shared_width"), 0),
        "experts_only": False,
        "feed_forward": shape.feed_forward or shape.expert_width * shape.experts_per_token,
    }
    states = width * shape.head_size * (shape.heads + 2 * shape.kv_heads)
    joined = {"attention": shape.of_attention + 2 * width**2}
    change: dict[str, Any] = {
        "eagle3": {**dense, "attention": shape.of_attention + states, "vocabulary": EAGLE3_ROWS},
        "eagle": {**dense, **joined},
        "mtp": joined,
        "block": {**dense, "layers": BLOCK_LAYERS},
    }[kind]
    one = {"layers": 1, "dense_layers": 0, "cached_layers": None, "windowed_layers": 0}
    # An MTP layer has the target's format, as all in a file of llama.cpp; other heads have 16 bits.
    alike = kind == "mtp" or target.precision.head < 16
    precision = target.precision if alike else Precision(cache=target.precision.cache)
    head = ServedModel(kind, shape.model_copy(update={**one, **change}), precision)
    return DraftPasses(head, 3.0 * width**2 if kind == "eagle3" else 0.0, in_blocks=kind == "block")


def require_fits(target: ServedModel, name: str, draft: ServedModel | None = None) -> None:
    """Refuse a head of another model, by configuration or name, and a draft with other tokens."""
    shape, ours = target.shape, shown(target.name)
    if draft is not None:
        sizes = draft.shape.vocabulary, shape.vocabulary
        require(
            max(sizes) <= 1.01 * min(sizes),
            f"{shown(name)} has {sizes[0]} tokens and {ours} {sizes[1]}: name a draft with the "
            "target's vocabulary",
        )
        return
    if (file := Path(name) / CONFIG).is_file():
        config = read_config(file)
        layer = config.get("transformer_layer_config", config)
        width = config.get("target_hidden_size") or layer.get("hidden_size", shape.width)
    else:
        other = known_shape(name)
        width = shape.width if other is None else other.width
    require(
        width == shape.width,
        f"{shown(name)} is a head of another model (width {width}, not {shape.width}): name one "
        f"of {ours}",
    )


@dataclass(frozen=True)
class ShapedDrafter(DrafterKind):
    """What drafts from the target's states, priced by its shape alone."""

    kind: str  # of ``HEADS``

    def __str__(self) -> str:
        return self.kind

    def vllm(self, drafts: int, draft: str | None) -> dict[str, Any]:
        """Return the settings of a head, which MTP has within the target."""
        method = {"block": "dflash"}.get(self.kind, self.kind)
        model = {} if self.kind == "mtp" else {"model": draft}
        return {"method": method, **model, "num_speculative_tokens": drafts}

    def sglang(self, drafts: int, draft: str) -> list[str]:
        """Return the flags of a chain, which counts the token after the drafts as one of them."""
        algorithm = {"mtp": "NEXTN", "block": "DFLASH"}.get(self.kind, self.kind.upper())
        model = [] if self.kind == "mtp" else ["--speculative-draft-model-path", draft]
        number = ["--speculative-num-draft-tokens", f"{drafts + 1}"]
        chain = ["--speculative-num-steps", f"{drafts}", "--speculative-eagle-topk", "1"]
        steps = [] if self.kind == "block" else chain
        return ["--speculative-algorithm", algorithm, *model, *steps, *number]

    def tensorrt_llm(self, drafts: int, draft: str) -> dict[str, Any] | None:
        """Return the settings of EAGLE-3 or MTP; it has no other head."""
        if self.kind == "mtp":
            return {"decoding_type": "MTP", "num_nextn_predict_layers": drafts}
        model = {"speculative_model": draft, "max_draft_len": drafts}
        return {"decoding_type": "Eagle3", **model} if self.kind == "eagle3" else None

    def llamacpp(self, drafts: int, draft: str) -> list[str] | None:
        """Return the flags of a head; llama.cpp has no first EAGLE."""
        kinds = {"eagle3": "draft-eagle3", "mtp": "draft-mtp", "block": "draft-dflash"}
        if self.kind not in kinds:
            return None
        model = [] if self.kind == "mtp" else ["--model-draft", draft]
        return [*model, "--spec-type", kinds[self.kind], "--spec-draft-n-max", f"{drafts}"]
