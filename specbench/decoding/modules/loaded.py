"""A module that is loaded beside a target, and drafts from its states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafting import Drafts, State, Step, drawn, joined, kv_length
from specbench.decoding.modules.files import load_module
from specbench.decoding.modules.module import DraftModule, rotary_tables
from specbench.decoding.sampling import Sampling
from specbench.engine.attention import angles_at, visible
from specbench.engine.cache import SlotCache, capacity_for, context_length
from specbench.engine.pair import LoadedPair
from specbench.engine.passes import Pass, states_after
from specbench.engine.runner import Runner
from specbench.methods.control import DraftControl

#: The modules of each target, as long as the target is in use.
_LOADED: WeakKeyDictionary[Runner, dict[Path, LoadedModule]] = WeakKeyDictionary()


def load(folder: Path, target: Runner) -> LoadedModule:
    """Return the module of a folder, ready to draft for a target.

    Raises:
        UsageError: The folder has no such module, or one for another target.
    """
    modules = _LOADED.setdefault(target, {})
    if folder not in modules:
        modules[folder] = LoadedModule(load_module(folder, target.config), target)
    return modules[folder]


class LoadedModule(DrafterKind):
    """Draws tokens from the q of a module, which runs beside the target with a cache of its own.

    A position t of the cache has the target's states at t and the token t + 1.
    """

    name = "module"
    reads_text = True
    saved_seconds = 0.0  # it reads every prompt

    def __init__(self, module: DraftModule, target: Runner) -> None:
        """Prepare a module for decoding; it takes the target's dtype, device and vocabulary."""
        self.module = module.to(target.device, target.dtype).requires_grad_(False)
        module.share(target.base.embed_tokens, target.output)
        self.device, self.dtype, self.vocabulary = target.device, target.dtype, target.vocabulary
        self.layers = module.config.layers
        self.context = context_length(module.config.layer)
        self.cache: SlotCache | None = None
        self.drafted: Tensor | None = None  # the tokens of a reduced vocabulary
        if isinstance(offsets := getattr(module, "d2t", None), Tensor):
            self.drafted = offsets + torch.arange(len(offsets), device=self.device)

    def fingerprint(self) -> str:
        """Return a hash of the configuration, the weights and the buffers."""
        shape = {**self.module.values(), "layer": self.module.config.layer.to_dict()}
        digest = hashlib.blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=8)
        for tensor in self.module.state_dict().values():
            digest.update(tensor.float().cpu().numpy().tobytes())
        return digest.hexdigest()

    def forget_prompts(self) -> None:
        """Do nothing: no prompt is remembered."""

    def runners(self, pair: LoadedPair) -> Sequence[LoadedModule]:
        """Return the drafter, which has the cache."""
        return [self]

    @property
    def step(self) -> Step:
        """The function that drafts a token from the states."""
        return draft_from_states

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Draft up to N tokens of every text; a block drafter without a control in one pass."""
        if control is None and self.module.is_block:
            return pair.engine(draft_block)(self, state, sampling)
        return super().__call__(pair, state, sampling, control)

    def twin(self, pair: LoadedPair) -> LoadedModule:
        """Return the same module with another cache, beside another target."""
        return LoadedModule(self.module, pair.runners[0])

    @torch.inference_mode()
    def plain(
        self, pair: LoadedPair, texts: Sequence[Sequence[int]], position: Tensor, hidden: bool
    ) -> Pass:
        """Draft each token from where its round began, with the target's states in its own pass."""
        target = pair.runners[0]
        tokens = torch.tensor([list(text)[:-1] for text in texts], device=target.device)
        states = states_after(target, tokens, self.layers)
        last = tokens.shape[1] + 1 - position.shape[1] + torch.arange(position.shape[1])
        starts = (last.to(position.device) - 2 - position).clamp_min(0)  # the target's last state
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        drafts = states.new_zeros(*position.shape, self.module.config.width)
        depths = int(position.max()) + 1
        for depth, state in enumerate(unrolled(self.module, tokens, states, depths)):
            drafts = torch.where((position == depth)[..., None], state[rows, starts], drafts)
        logits = self.logits(drafts.flatten(0, 1)).unflatten(0, position.shape)
        return Pass(logits, drafts if hidden else torch.empty(0))

    @torch.inference_mode()
    def along(
        self, pair: LoadedPair, text: Sequence[int], last: int, depths: int
    ) -> Iterator[Tensor]:
        """Yield the logits of each depth, which depend on where the round started."""
        target = pair.runners[0]
        tokens = torch.tensor([list(text)], device=target.device)
        states = states_after(target, tokens, self.layers)
        read = (len(text) - last - 2 + torch.arange(last, device=target.device)).clamp_min(0)
        for hidden in unrolled(self.module, tokens, states, depths):
            yield self.logits(hidden[0, read])

    # A cache allocated in inference mode could not be written outside it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def reserve(self, rows: int, capacity: int) -> int:
        """Allocate at least ``rows`` x ``capacity`` tokens and return the capacity of a row."""
        if self.cache is None or self.cache.rows != rows or self.cache.capacity < capacity:
            capacity, layer = capacity_for(capacity), self.module.config.layer
            self.cache = None  # its memory may be needed for the next one
            self.cache = SlotCache(layer, capacity, [self.device], self.dtype, rows)
            tables = rotary_tables(layer, torch.arange(capacity, device=self.device))
            self.rotary = {"": (tables[0].to(self.dtype), tables[1].to(self.dtype))}
        return self.cache.capacity

    @torch.no_grad()
    def prefill(self, pair: LoadedPair, prompt: Tensor, row: int, states: Tensor | None) -> None:
        """Read a prompt ``[T]`` with the target's states ``[T - 1, layers * hidden]``."""
        assert states is not None
        if read := len(states):
            at = torch.arange(read, device=self.device)[None]
            states = self.module.fuse(states[None])
            self.states(prompt[None, 1:], states, at, read, slice(row, row + 1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits ``[B, V]`` of states ``[B, H]``; -inf where it never drafts."""
        logits = self.module.logits(hidden).float()
        if self.drafted is not None:
            spread = logits.new_full((len(logits), self.module.config.layer.vocab_size), -torch.inf)
            logits = spread.index_copy(1, self.drafted, logits)
        return logits[:, : self.vocabulary]

    def states(
        self,
        tokens: Tensor,
        hidden: Tensor,
        at: Tensor,
        kv_length: int | None,
        rows: slice | None = None,
    ) -> Tensor:
        """Read tokens ``[B, k]`` after states ``[B, k, H]`` at positions ``at`` ``[B, k]``.

        The module attends to the first ``kv_length`` slots of its cache, by default to all.

        Returns:
            The states h ``[B, k, H]`` after all tokens.
        """
        cache = self.cache
        assert cache is not None
        slots, places = cache.place(at, kv_length, rows)
        alone = tokens.numel() == 1 and kv_length is not None
        mask = None if alone else visible(at, slots, None)
        (angles,) = angles_at(self.rotary, places).values()

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            key, value = cache.update(key, value, 0)
            shared = key.shape[1] < query.shape[1]
            return scaled_dot_product_attention(query, key, value, mask, enable_gqa=shared)

        states: Tensor = self.module(tokens, hidden, angles, attend)
        return states


def draft_from_states(
    drafter: LoadedModule, state: State, previous: Drafts | None, i: int, sampling: Sampling
) -> Drafts:
    """Draft the i-th token of the round, from 0, with a module on the target's states."""
    if previous is None:
        tokens, hidden, positions = after_round(drafter, state)
    else:
        tokens, hidden = drafter.module.at_depth(i, previous.x, previous.hidden)
        positions = (state.length[:, None] - 2 + i).clamp_min(0)
    hidden = drafter.states(tokens, hidden, positions, slots_until(state, i))[:, -1:]
    return drawn(drafter.logits(hidden[:, 0]), hidden, state.uniforms[:, i], sampling)


def draft_block(drafter: LoadedModule, state: State, sampling: Sampling) -> Drafts:
    """Draft all N tokens of the round in one pass, with a block drafter."""
    drafts = state.uniforms.shape[1] // 2
    tokens, hidden, positions = after_round(drafter, state)
    last = tokens[:, -1:], hidden[:, -1:]
    slots = [drafter.module.at_depth(depth, *last) for depth in range(1, drafts)]
    behind = state.length[:, None] - 2 + torch.arange(1, drafts, device=tokens.device)
    hidden = drafter.states(
        torch.cat((tokens, *(token for token, _ in slots)), 1),
        torch.cat((hidden, *(slot for _, slot in slots)), 1),
        torch.cat((positions, behind.clamp_min(0)), 1),
        slots_until(state, drafts - 1),
    )[:, -drafts:]
    logits = drafter.logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
    each = range(drafts)
    parts = [(logits[:, i], hidden[:, i : i + 1], state.uniforms[:, i]) for i in each]
    return joined([drawn(*part, sampling) for part in parts])


def after_round(drafter: LoadedModule, state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens, states g and positions ``[B, W]`` that the target has just read.

    They replace the module's own of the last round. A position holds the target's state there and
    the token after it.
    """
    assert state.tokens is not None and state.states is not None
    end = state.length[:, None] - 1
    behind = torch.arange(-state.states.shape[1], 0, device=end.device)
    positions = (end + behind).clamp_min(0)
    tokens = state.tokens.gather(1, (positions + 1).minimum(end))
    return tokens, drafter.module.fuse(state.states), positions


def slots_until(state: State, i: int) -> int | None:
    """Return how many slots of the cache the i-th draft of a round attends to; None for all."""
    read = kv_length(state, i - 1)
    return None if read is None else max(1, read)


def unrolled(
    module: DraftModule, tokens: Tensor, states: Tensor, depths: int, start: int = 0
) -> Iterator[Tensor]:
    """Yield the module's states ``[B, T - start, H]`` of each depth after texts ``[B, T]``.

    ``states`` are the target's ``[B, T, layers * hidden]``. The module's at position t and depth i
    belong to the draft after token t + 1 + i of a round before which the target has read t + 1
    tokens, if the first i drafts are the text's own tokens. Rounds begin at positions from
    ``start`` on. Positions whose tokens are beyond the text's end have no meaning.
    """
    length = tokens.shape[1]
    positions = torch.arange(length + depths, device=tokens.device)
    cos, sin = (table.to(states.dtype) for table in rotary_tables(module.config.layer, positions))
    hidden, attend = module.fuse(states), _UnrolledAttention()
    for depth in range(depths):
        first = start if depth else 0  # every state of the target is attended to
        angles = (
            cos[None, depth + first : depth + length],
            sin[None, depth + first : depth + length],
        )
        following = tokens.roll(-1 - depth, 1)[:, first:]
        if depth:
            following, hidden = module.at_depth(depth, following, hidden)
        hidden = module(following, hidden, angles, attend)
        hidden = hidden if depth else hidden[:, start:]
        yield hidden


class _UnrolledAttention:
    """Attention of a draft at every position at once, depth by depth.

    At depth 0 a position attends to itself and earlier ones; at depth i also to its own drafts of
    depths 1 to i, but not to those of other positions.
    """

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the mixed values of the next depth; all are ``[B, heads, k, width]``.

        k is T at depth 0, and then the number of positions at which rounds begin.
        """
        groups = query.shape[1] // key.shape[1]
        self.keys.append(key.repeat_interleave(groups, 1))
        self.values.append(value.repeat_interleave(groups, 1))
        first, *later_keys = self.keys
        if not later_keys:
            return scaled_dot_product_attention(query, first, self.values[0], is_causal=True)
        rows, length = query.shape[2], first.shape[2]
        query = query * query.shape[-1] ** -0.5
        later = torch.ones(rows, length, dtype=torch.bool, device=query.device)
        later = later.triu(1 + length - rows)
        scores = (query @ first.mT).masked_fill(later, -torch.inf)
        later_scores = torch.stack([(query * key).sum(-1) for key in later_keys], -1)
        weights = torch.cat((scores, later_scores), -1).softmax(-1)
        mixed = weights[..., :length] @ self.values[0]
        for depth, value in enumerate(self.values[1:]):
            mixed = mixed + weights[..., length + depth, None] * value
        return mixed
