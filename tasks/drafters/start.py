"""The weights with which the training of a module that drafts begins.

With random weights in place of the target's, 40 steps of an MTP module on the pair ``mini`` reach a
loss of 1.33 and not 1.19; with a projection that begins as the identity on the state, 2.06.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from drafters.recipe import DrafterRecipe
from drafters.texts import read_target
from specbench.decoding.modules.module import (
    MODULES,
    DraftModule,
    EagleModule,
    ModuleConfig,
    MtpModule,
    require_layers,
)
from specbench.engine.cache import head_sizes
from specbench.engine.runner import Runner
from specbench.errors import UsageError

GAIN, RESIDUAL_GAIN = 0.8, 0.3  # of initial weights, relative to 1 / sqrt(inputs)
STATE_GAIN = 0.1  # of those that read a state beside weights of a draft model, further
RIDGE = 0.01  # penalty of a linear start's squared weights, relative to the mean square of inputs
SHARP = 2.0  # gain of its queries and keys, so that a position attends to itself


def initial_module(target: Runner, draft: Runner, recipe: DrafterRecipe) -> DraftModule:
    """Return the module that a training begins with: random weights beside those of models.

    A module as wide as the target shares its embedding and output head, and begins with its norms;
    an MTP module also with the attention of its last layer. A narrower one has an embedding and an
    output head of its own, which begin as those of the draft model if that is as wide, beside the
    weights of the draft's last layer; else as the target's principal components.
    """
    like, kind = target.config, MODULES[recipe.kind]
    width = recipe.hidden_size or like.hidden_size
    narrow = width != like.hidden_size
    source = draft.config if width == draft.hidden_size and narrow else like
    _, head_dim = head_sizes(source)
    intermediate = source.intermediate_size if source is draft.config else 3 * width
    layer = LlamaConfig(
        vocab_size=like.vocab_size,
        hidden_size=width,
        intermediate_size=recipe.intermediate_size or intermediate,
        num_hidden_layers=1,
        num_attention_heads=max(1, width // head_dim),
        num_key_value_heads=max(1, width // head_dim),
        head_dim=head_dim,
        rms_norm_eps=like.rms_norm_eps,
        max_position_embeddings=like.max_position_embeddings,
        rope_parameters=like.rope_parameters,
    )
    layers = tuple(recipe.layers or kind.default_layers(like.num_hidden_layers))
    try:
        require_layers(layers, like.num_hidden_layers)
    except UsageError as error:
        raise UsageError(f"--layers: {error}") from error
    if recipe.start == "linear" and layers[-1] != like.num_hidden_layers:
        raise UsageError(
            "a linear start needs the state after the target's last layer: end --layers with "
            f"{like.num_hidden_layers}"
        )
    module = kind(ModuleConfig(layer, layers, like.hidden_size, like.vocab_size, narrow, narrow))
    for name, weights in module.named_parameters():
        if weights.ndim == 2:
            writes = any(part in name for part in ("o_proj", "down_proj"))
            gain = RESIDUAL_GAIN if writes else GAIN
            nn.init.normal_(weights, std=gain * weights.shape[1] ** -0.5)
    if isinstance(module, EagleModule) and narrow:
        module.embed_tokens.weight.data = narrowed(target.base.embed_tokens.weight, width)
        module.lm_head.weight.data = narrowed(target.output.weight, width)
    elif isinstance(module, EagleModule):
        module.norm.weight.data = target.base.norm.weight.detach().clone()
    if isinstance(module, MtpModule):
        start_from(module, target)
    elif source is draft.config:
        start_from(module, draft)
    module.share(target.base.embed_tokens, target.output)
    return module.to(target.device)


@torch.no_grad()
def start_from(module: DraftModule, runner: Runner) -> None:
    """Copy a model's embedding, last layer, last norm and output head, where they fit.

    Of the projections of an EAGLE-3 module to queries, keys and values, which also read the state,
    this is the half that reads the embedding.
    """
    model = runner.base
    last = dict(model.layers[-1].named_parameters())
    weights = {
        "embed_tokens.weight": model.embed_tokens.weight,
        "lm_head.weight": runner.output.weight,
        "norm.weight": model.norm.weight,
        "mtp_layers.0.final_layernorm.weight": model.norm.weight,
        **{f"{layer}.0.{name}": last[name] for layer in ("layers", "mtp_layers") for name in last},
    }
    for name, values in module.named_parameters():
        part = weights.get(name)
        if part is not None and len(part) == len(values) and part.shape[-1] <= values.shape[-1]:
            values[..., : part.shape[-1]] = part
            values[..., part.shape[-1] :] *= STATE_GAIN


def narrowed(weights: Tensor, width: int) -> Tensor:
    """Return the principal components ``[V, width]`` of rows ``[V, H]``, at the rows' scale."""
    left, scales, _ = torch.linalg.svd(weights.float(), full_matrices=False)
    components: Tensor = (left[:, :width] * scales[:width]).detach().contiguous()
    return components


@torch.no_grad()
def start_linearly(module: DraftModule, target: Runner, texts: Sequence[Sequence[int]]) -> None:
    """Let a module predict the target's state before its last layer, and go on as that layer.

    The prediction is linear in a token and the state before it, both normed, and the best one on
    ``texts`` of token ids. An MTP module makes it by its projection; the last attention and
    the strongest neurons of the last MLP follow. An EAGLE-3 module makes it by attention to the
    position itself, and only the neurons follow.
    """
    is_mtp = isinstance(module, MtpModule)
    untyped: Any = module
    layer = (untyped.mtp_layers if is_mtp else untyped.layers)[0]
    depth, width, last = len(target.base.layers), target.hidden_size, target.base.layers[-1]
    gram, moments, strength = (torch.zeros((), device=target.device) for _ in range(3))
    for text in texts:
        tokens = torch.tensor([text], device=target.device)
        _, before, after = read_target(target, tokens, (depth - 1, depth))[0].split(width, -1)
        read = layer.joined(target.base.embed_tokens(tokens[0, 1:]), after[:-1])
        # The layer of an EAGLE-3 module adds to the state that it reads.
        wanted = before[1:] if is_mtp else before[1:] - after[:-1]
        gram, moments = gram + read.T @ read, moments + read.T @ wanted
        normed = last.post_attention_layernorm(before)
        neurons = last.mlp.act_fn(last.mlp.gate_proj(normed)) * last.mlp.up_proj(normed)
        strength = strength + neurons.square().sum(0)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    linear = torch.linalg.solve(gram, moments).T
    if is_mtp:
        layer.input_proj.weight.copy_(linear)
    else:
        untyped.fc.weight.zero_()[:, -width:].fill_diagonal_(1)
        attention = layer.self_attn
        attention["q_proj"].weight.mul_(SHARP)
        attention["k_proj"].weight.copy_(attention["q_proj"].weight)
        attention["v_proj"].weight.copy_(linear)
        attention["o_proj"].weight.zero_().fill_diagonal_(1)
        layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    strength = strength.sqrt() * last.mlp.down_proj.weight.norm(dim=0)
    strongest = strength.argsort(descending=True)[: module.config.layer.intermediate_size]
    for name in ("gate_proj", "up_proj"):
        layer.mlp[name].weight[: len(strongest)] = getattr(last.mlp, name).weight[strongest]
    layer.mlp["down_proj"].weight[:, : len(strongest)] = last.mlp.down_proj.weight[:, strongest]
