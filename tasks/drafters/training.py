"""Training a module that drafts on the target's own texts.

The target samples texts at temperature 1, and its states and distributions p on them are the only
data. A step drafts from every position of some texts at once, several tokens deep. Depth 0 reads
the target's states, and depth i the module's own states of depth i - 1, so that it learns to go on
from these. The loss is the cross-entropy of p and the module's q, averaged over all depths.

Source: Li et al. 2025, arXiv:2503.01840 ("training-time test"); `speculators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafters.recipe import DrafterRecipe
from drafters.start import initial_module, start_linearly
from drafters.texts import TargetText, padded, read_target, sample_texts
from specbench.decoding.modules.loaded import unrolled
from specbench.decoding.modules.module import DraftModule
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.errors import UsageError
from specbench.files import make_folder, write_atomically
from specbench.tasks.task import Task
from specbench.training.material import split_material
from specbench.training.objective import descend
from specbench.training.recipe import CHECKPOINT
from specbench.training.rollouts import AT_ONCE

SAVE_EVERY = 200  # steps
MOST_BYTES = 2**32  # of the target's states in memory
POOL = 16  # batches whose texts are sorted by length, so that a batch has little padding
FITTED = 300  # texts, at most, for a linear start
Report = Callable[[int, str], None]


class DrafterStep(NamedTuple):
    """A step of a training: a row of ``training.csv``."""

    step: int
    loss: float  # cross-entropy of p and q, in nats
    depths: int
    acceptance: float  # sum of min(p, q) at the first depth
    deepest: float  # at the last depth


class DrafterTraining:
    """A module in training, with its texts; equal recipes give equal modules."""

    def __init__(self, pair: LoadedPair, tasks: Sequence[Task], recipe: DrafterRecipe) -> None:
        self.pair, self.tasks, self.recipe = pair, tasks, recipe
        self.target = pair.runners[0]
        self.target.model.requires_grad_(False)
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            self.module = initial_module(*pair.runners, recipe)
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(), betas=(0.9, 0.98), weight_decay=0.01
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
            "head": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        make_folder(folder)
        buffer = BytesIO()
        torch.save(parts, buffer)
        write_atomically(folder / CHECKPOINT, buffer.getvalue())

    def restore(self, folder: Path) -> None:
        """Continue from the checkpoint in a folder.

        Raises:
            UsageError: It is that of another training, or not readable.
        """
        try:
            parts = torch.load(folder / CHECKPOINT, weights_only=True)
            same = parts["identity"] == self.identity
            if same:
                self.texts = [TargetText(*text) for text in parts["texts"]]
                self.history = [DrafterStep(*step) for step in parts["history"]]
                self.module.load_state_dict(parts["head"])
                self.optimizer.load_state_dict(parts["optimizer"])
        except Exception as error:  # of any type, as the file may hold anything
            raise UsageError(
                f"{folder / CHECKPOINT} cannot be read: delete it and train again"
            ) from error
        if not same:
            raise UsageError(
                f"{folder / CHECKPOINT} is that of another recipe, target or choice of tasks: "
                "repeat its command, or choose another folder with --output"
            )

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
        if self.recipe.start == "linear" and not self.history:
            fitted = self.texts[:: -(-len(self.texts) // FITTED)]
            start_linearly(self.module, self.target, [text.tokens for text in fitted])
        while len(self.history) < self.recipe.steps:
            self.history.append(self._step(len(self.history)))
            if len(self.history) % SAVE_EVERY == 0:
                self.save(folder)
            yield self.history[-1]

    def _step(self, step: int) -> DrafterStep:
        self.optimizer.param_groups[0]["lr"] = self.recipe.rate(step)
        losses, accepted, depths = [], [], self.recipe.depths_at(step)
        chosen = self._chosen(step)
        texts = [self.texts[number] for number in chosen]
        if self.recipe.prompts:
            texts = [text._replace(prompt=0) for text in texts]
        batch = texts, self._read(chosen)
        weights = self.recipe.depth_weight ** torch.arange(depths, device=self.target.device)
        for depth, (log_q, p) in enumerate(drafted(self.module, self.target, *batch, depths)):
            losses.append(-(p * log_q).sum(-1).mean())
            if depth in (0, depths - 1):
                accepted.append(float(torch.minimum(log_q.detach().exp(), p).sum(-1).mean()))
        loss = torch.stack(losses) @ weights / weights.sum()
        descend(loss, self.module, self.optimizer, step, "; the last checkpoint remains")
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
                self.target, padded(texts, self.target.device), self.module.config.layers
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


def drafted(
    module: DraftModule, target: Runner, texts: Sequence[TargetText], read: Tensor, depths: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log q and p ``[M, V]`` at all tokens behind the prompts that a depth drafts.

    ``read`` are the target's states on the texts, see ``read_target``.
    """
    tokens = padded(texts, target.device)
    final, states = read.tensor_split([target.hidden_size], -1)
    start = max(0, min(text.prompt for text in texts) - 2)
    p = target.logits(final[:, start + 1 :]).softmax(-1)
    last = torch.arange(start, tokens.shape[1], device=tokens.device)  # that the target has read
    prompts = torch.tensor([text.prompt for text in texts], device=tokens.device)[:, None]
    ends = torch.tensor([len(text.tokens) for text in texts], device=tokens.device)[:, None]
    for depth, hidden in enumerate(unrolled(module, tokens, states, depths, start)):
        judged = (last + 2 >= prompts) & (last + 2 + depth < ends)
        row, place = judged.nonzero(as_tuple=True)
        yield module.logits(hidden[row, place]).log_softmax(-1), p[row, place + depth]
