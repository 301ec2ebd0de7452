"""Training a head that drafts on the target's own texts.

The target samples texts at temperature 1, and its states and distributions p on them are the only
data. A step drafts from every position of some texts at once, several tokens deep. Depth 0 reads
the target's states, and depth i the head's own states of depth i - 1, so that the head learns to go
on from these. The loss is the cross-entropy of p and the head's q, averaged over all depths.

Source: Li et al. 2025, arXiv:2503.01840 ("training-time test"); `speculators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig

from specbench.drafters.heads import KINDS, DraftHead, EagleHead, HeadConfig, MtpHead
from specbench.drafters.unrolled import unrolled
from specbench.engine.lockstep import LockstepBatch
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner, angles_at, visible
from specbench.errors import UsageError
from specbench.files import clear_errors, make_folder, write_atomically
from specbench.tasks.task import Task
from specbench.training.folder import CHECKPOINT
from specbench.training.material import split_material
from specbench.training.objective import descend
from specbench.training.recipe import DrafterRecipe
from specbench.training.rollouts import AT_ONCE, COMPACT_BELOW

SAVE_EVERY = 200  # steps
MOST_BYTES = 2**32  # of the target's states in memory
POOL = 16  # batches whose texts are sorted by length, so that a batch has little padding
GAIN, RESIDUAL_GAIN = 0.8, 0.3  # of initial weights, relative to 1 / sqrt(inputs)
STATE_GAIN = 0.1  # of those that read a state beside weights of a draft model, further
Report = Callable[[int, str], None]


class TargetText(NamedTuple):
    """A text of the target."""

    tokens: list[int]  # prompt and output, including the end token
    prompt: int  # tokens of the prompt


class DrafterStep(NamedTuple):
    """A step of a training: a row of ``training.csv``."""

    step: int
    loss: float  # cross-entropy of p and q, in nats
    depths: int
    acceptance: float  # sum of min(p, q) at the first depth
    deepest: float  # at the last depth


class DrafterTraining:
    """A head in training, with its texts; equal recipes give equal heads."""

    def __init__(self, pair: LoadedPair, tasks: Sequence[Task], recipe: DrafterRecipe) -> None:
        self.pair, self.tasks, self.recipe = pair, tasks, recipe
        self.target = pair.runners[0]
        self.target.model.requires_grad_(False)
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            self.head = initial_head(*pair.runners, recipe)
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(), betas=(0.9, 0.98), weight_decay=0.01
        )
        self.texts: list[TargetText] = []
        self._states: dict[int, Tensor] = {}  # of the target on texts, by their number
        self.history: list[DrafterStep] = []

    @property
    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must share with this training."""
        return {
            "target": self.target.fingerprint(),
            "tasks": [[task.name, task.version] for task in self.tasks],
            "recipe": self.recipe.model_dump(),
        }

    def save(self, folder: Path) -> None:
        """Write a checkpoint.

        Raises:
            RunError: The folder cannot be written.
        """
        parts = {
            "identity": self.identity,
            "texts": [tuple(text) for text in self.texts],
            "history": [tuple(step) for step in self.history],
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        with clear_errors(folder):
            make_folder(folder)
            buffer = BytesIO()
            torch.save(parts, buffer)
            write_atomically(folder / CHECKPOINT, buffer.getvalue())

    def restore(self, folder: Path) -> None:
        """Continue from the checkpoint in a folder.

        Raises:
            UsageError: It is that of another training.
        """
        parts = torch.load(folder / CHECKPOINT, weights_only=True)
        if parts["identity"] != self.identity:
            raise UsageError(
                f"{folder / CHECKPOINT} is that of another recipe, target or choice of tasks: "
                "repeat its command, or choose another folder with --output"
            )
        self.texts = [TargetText(*text) for text in parts["texts"]]
        self.history = [DrafterStep(*step) for step in parts["history"]]
        self.head.load_state_dict(parts["head"])
        self.optimizer.load_state_dict(parts["optimizer"])

    def sample(self, folder: Path, report: Report) -> None:
        """Sample the target's texts after prompts of the training split, and save them.

        ``report`` gets the number of each batch of texts and its figures.
        """
        generator = torch.Generator(self.target.device).manual_seed(self.recipe.seed)
        batches = list(self._prompts())
        for number, (task, prompts) in enumerate(batches, 1):
            limit = task.max_new_tokens
            self.texts += sample_texts(self.pair, prompts, limit, generator)
            tokens = sum(len(text.tokens) - text.prompt for text in self.texts)
            report(number, f"{tokens:,} tokens")
        self.save(folder)

    def _prompts(self) -> Iterator[tuple[Task, list[list[int]]]]:
        count = -(-self.recipe.texts // len(self.tasks))
        for task in self.tasks:
            limit, seed = self.recipe.max_prompt_tokens, self.recipe.seed
            prompts = split_material(self.pair, task, "train", count, seed, limit).prompts
            prompts.sort(key=len)
            for first in range(0, len(prompts), AT_ONCE):
                yield task, prompts[first : first + AT_ONCE]

    def batches(self) -> int:
        """Return the number of batches that ``sample`` samples."""
        count = -(-self.recipe.texts // len(self.tasks))
        return len(self.tasks) * -(-count // AT_ONCE)

    def steps(self, folder: Path) -> Iterator[DrafterStep]:
        """Take the missing steps, with checkpoints.

        Raises:
            RunError: The loss is not finite, or the folder cannot be written.
        """
        while len(self.history) < self.recipe.steps:
            self.history.append(self._step(len(self.history)))
            if len(self.history) % SAVE_EVERY == 0:
                self.save(folder)
            yield self.history[-1]

    def _step(self, step: int) -> DrafterStep:
        self.optimizer.param_groups[0]["lr"] = self.recipe.rate(step)
        losses, accepted, depths = [], [], self.recipe.depths_at(step)
        chosen = self._chosen(step)
        batch = [self.texts[number] for number in chosen], self._read(chosen)
        for depth, (log_q, p) in enumerate(drafted(self.head, self.target, *batch, depths)):
            losses.append(-(p * log_q).sum(-1).mean())
            if depth in (0, depths - 1):
                accepted.append(float(torch.minimum(log_q.detach().exp(), p).sum(-1).mean()))
        loss = torch.stack(losses).mean()
        descend(loss, self.head, self.optimizer, step, "; the last checkpoint remains")
        return DrafterStep(step + 1, loss.item(), depths, accepted[0], accepted[-1])

    def _chosen(self, step: int) -> list[int]:
        """Return the texts of a step: each once per epoch, beside others of similar length."""
        size = min(self.recipe.batch_size, len(self.texts))
        epoch, number = divmod(step, len(self.texts) // size)
        generator = torch.Generator().manual_seed(self.recipe.seed + epoch)
        order = torch.randperm(len(self.texts), generator=generator).tolist()
        batches: list[list[int]] = []
        for first in range(0, len(order), POOL * size):
            pool = order[first : first + POOL * size]
            pool.sort(key=lambda index: len(self.texts[index].tokens))
            batches += (pool[i : i + size] for i in range(0, len(pool) - size + 1, size))
        return batches[int(torch.randperm(len(batches), generator=generator)[number])]

    def _read(self, chosen: Sequence[int]) -> Tensor:
        """Return the target's states on some texts, which later epochs find in memory."""
        new = [number for number in chosen if number not in self._states]
        if new:
            texts = [self.texts[number] for number in new]
            read = read_target(
                self.target, padded(texts, self.target.device), self.head.config.layers
            )
            self._states |= {
                number: states[: len(text.tokens)].clone()
                for number, text, states in zip(new, texts, read, strict=True)
            }
        chosen_states = [self._states[number] for number in chosen]
        if sum(states.nbytes for states in self._states.values()) > MOST_BYTES:
            for number in new:
                del self._states[number]
        return pad_sequence(chosen_states, batch_first=True)


def initial_head(target: Runner, draft: Runner, recipe: DrafterRecipe) -> DraftHead:
    """Return the head that a training begins with: random weights beside those of models.

    A head as wide as the target shares its embedding and output head, and begins with its norms;
    an MTP head also with the attention of its last layer. A narrower head has an embedding and an
    output head of its own, which begin as those of the draft model if that is as wide, beside the
    weights of the draft's last layer; else as the target's principal components.
    """
    like, kind = target.config, KINDS[recipe.kind]
    width = recipe.hidden_size or like.hidden_size
    narrow = width != like.hidden_size
    source = draft.config if width == draft.hidden_size and narrow else like
    head_dim = getattr(source, "head_dim", None) or source.hidden_size // source.num_attention_heads
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
    if max(layers) > like.num_hidden_layers:
        raise UsageError(f"--layers: the target has only {like.num_hidden_layers} layers")
    head = kind(HeadConfig(layer, layers, like.hidden_size, like.vocab_size, narrow, narrow))
    for name, weights in head.named_parameters():
        if weights.ndim == 2:
            writes = any(part in name for part in ("o_proj", "down_proj"))
            gain = RESIDUAL_GAIN if writes else GAIN
            nn.init.normal_(weights, std=gain * weights.shape[1] ** -0.5)
    if isinstance(head, EagleHead) and narrow:
        head.embed_tokens.weight.data = narrowed(target.base.embed_tokens.weight, width)
        head.lm_head.weight.data = narrowed(target.output.weight, width)
    elif isinstance(head, EagleHead):
        head.norm.weight.data = target.base.norm.weight.detach().clone()
    if isinstance(head, MtpHead):
        start_from(head, target)
    elif source is draft.config:
        start_from(head, draft)
    head.share(target.base.embed_tokens, target.output)
    return head.to(target.device)


@torch.no_grad()
def start_from(head: DraftHead, runner: Runner) -> None:
    """Copy a model's embedding, last layer, last norm and output head, where they fit.

    Of the projections of an EAGLE-3 head to queries, keys and values, which also read the state,
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
    for name, values in head.named_parameters():
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
def sample_texts(
    pair: LoadedPair, prompts: Sequence[list[int]], new_tokens: int, generator: torch.Generator
) -> list[TargetText]:
    """Sample one text of the target per prompt at temperature 1."""
    target = pair.runners[0]
    batch = LockstepBatch(target, prompts, new_tokens)
    texts = [list(prompt) for prompt in prompts]
    rows = torch.arange(len(prompts), device=target.device)  # the text of each row
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=target.device)
    ends = torch.tensor(sorted(pair.eos_ids), device=target.device)
    logits, _ = batch.start()
    for position in range(1, new_tokens + 1):
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        for row, new in zip(rows[~finished].tolist(), token[~finished, 0].tolist(), strict=True):
            texts[row].append(new)
        finished |= torch.isin(token[:, 0], ends)
        if finished.all() or position == new_tokens:
            break
        if finished.float().mean() > 1 - COMPACT_BELOW:
            unfinished = (~finished).nonzero()[:, 0]
            batch.select(unfinished)
            rows, token, finished = rows[unfinished], token[unfinished], finished[unfinished]
        logits, _ = batch.forward(token)
    return [TargetText(text, len(prompt)) for text, prompt in zip(texts, prompts, strict=True)]


def drafted(
    head: DraftHead, target: Runner, texts: Sequence[TargetText], read: Tensor, depths: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log q and p ``[M, V]`` at all tokens of the outputs that a depth drafts.

    ``read`` are the target's states on the texts, see ``read_target``.
    """
    tokens = padded(texts, target.device)
    final, states = read.tensor_split([target.hidden_size], -1)
    start = max(0, min(text.prompt for text in texts) - 2)
    p = target.logits(final[:, start + 1 :]).softmax(-1)
    last = torch.arange(start, tokens.shape[1], device=tokens.device)  # that the target has read
    prompts = torch.tensor([text.prompt for text in texts], device=tokens.device)[:, None]
    ends = torch.tensor([len(text.tokens) for text in texts], device=tokens.device)[:, None]
    for depth, hidden in enumerate(unrolled(head, tokens, states, depths, start)):
        judged = (last + 2 >= prompts) & (last + 2 + depth < ends)
        row, place = judged.nonzero(as_tuple=True)
        yield head.logits(hidden[row, place]).log_softmax(-1), p[row, place + depth]


def padded(texts: Sequence[TargetText], device: torch.device) -> Tensor:
    """Return the tokens of texts ``[B, T]``, filled up with zeros."""
    return pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True).to(device)


@torch.no_grad()
def read_target(target: Runner, tokens: Tensor, layers: Sequence[int]) -> Tensor:
    """Return the target's final states and, along the last dimension, those after ``layers``."""
    length = tokens.shape[1]
    rotary, windows = target.tables(length)
    positions = torch.arange(length, device=tokens.device)[None]
    masks = {kind: visible(positions, length, window) for kind, window in windows.items()}
    return target.through_layers(tokens, None, angles_at(rotary, slice(0, length)), masks, layers)
