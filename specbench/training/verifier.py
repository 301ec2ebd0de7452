"""Training steps of a DIVERSED head: roll out, score, and update for a few epochs.

The static ensemble is measured first, on held-out prompts. It gives the unit of lambda, the start,
and the front that the head must beat (``specbench.training.front``). With a goal, lambda follows
what is missing (``specbench.training.goal``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specbench.analysis.statistics.intervals import FEWEST
from specbench.decoding.drafters.registry import MODEL, recorded_drafter
from specbench.decoding.heads.head import Head
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.tasks.example import Example
from specbench.tasks.metrics import GREEDY, Metric, get_metric, score
from specbench.tasks.task import RESERVED_SEEDS, Task
from specbench.training import front, objective
from specbench.training.front import InputSums, Point, Worth
from specbench.training.goal import Checked, Multiplier, goal_of
from specbench.training.material import Material, Materials
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import (
    AT_ONCE,
    RolloutRequest,
    Rollouts,
    drafted_rollouts,
    roll_out,
)

# Seeds of roll-outs on held-out prompts; training cannot use them.
HELD_OUT_SEED, FINAL_SEED = RESERVED_SEEDS, 2 * RESERVED_SEEDS

WIDTH = 128  # inputs of a head up to which the learning rate is used as it is


class Training:
    """A head in training: its data, optimizer and progress.

    From ``begin`` on, it has the untrained head ``start``, which never changes, the ``head`` in
    training, and the ``goal`` of the training.
    """

    def __init__(
        self, pair: LoadedPair, task: Task, recipe: HeadRecipe, materials: Materials
    ) -> None:
        self.pair, self.task, self.recipe, self.materials = pair, task, recipe, materials
        self.tokens = recipe.text_tokens(task)  # the most of a text
        filters = Sampling(top_k=recipe.top_k, top_p=recipe.top_p, min_p=recipe.min_p)
        self.sampling = filters.updated(temperature=recipe.temperature)
        self.metric = get_metric(recipe.metric_for(task) or "")
        self.drafter = recorded_drafter(recipe.drafter)
        self.generator = self._new_generator(recipe.seed)
        self.static: list[Point] = []  # weights on held-out prompts, from target to draft
        self.begun = False
        self.multiplier = Multiplier(recipe.acceptance_weight)  # lambda / the static slope
        self.best: Checked | None = None
        self.history: list[objective.TrainingStep] = []
        self.scored: list[objective.Scored] = []  # texts of the last steps, which updates read

    @property
    def front_is_measured(self) -> bool:
        """Whether the static weights are measured on all held-out prompts."""
        prompts = len(self.materials.held_out.examples)
        return bool(self.static) and len(self.static[0].quality) >= prompts

    def shares_front_with(self, other: Training) -> bool:
        """Return whether another training measures the same texts of the static weights.

        Their recipes may differ in the goal, and in the seed, which draws training prompts only.
        """
        same = {"seed": 0, "target_acceptance": None, "max_quality_loss": None}
        mine, theirs = (training.recipe.updated(**same) for training in (self, other))
        return self.task == other.task and mine == theirs

    def measure_front(
        self, report: Callable[[int, int], object] = lambda done, prompts: None
    ) -> None:
        """Measure the static weights on held-out prompts, or on those that are left.

        ``report`` gets the number of prompts that are measured, and of all, after some prompts.
        """
        self._fill_greedy_texts()
        held_out, heads = self.materials.held_out, [self.static_head(w) for w in front.WEIGHTS]
        texts, prompts = self.materials.held_out_texts, len(held_out.examples)
        if prompts < FEWEST:
            raise front.NothingToLearnError(
                f"{self.task.name} has only {prompts} held-out prompts, of which {FEWEST} are "
                "needed to measure what a head is worth: give it more training data"
            )
        size = max(1, AT_ONCE // (len(heads) * texts))
        while not self.front_is_measured:
            done = len(self.static[0].quality) if self.static else 0
            part = held_out.taken(done, min(size, prompts - done))
            points = self.measure(heads, part, HELD_OUT_SEED + done, texts)
            if self.static:
                points = [a.joined(b) for a, b in zip(self.static, points, strict=True)]
            self.static = points
            report(done + len(part.examples), prompts)

    def begin(self) -> None:
        """Create the head and its optimizer, from the static weights on held-out prompts."""
        self.measure_front()
        recipe = self.recipe
        front.require_trade(self.static, self.task.name, self.metric)
        self.slope, self.goal = front.slope(self.static), goal_of(recipe, self.metric, self.static)
        self.start = self.static_head(recipe.initial_weight or self.goal.first_weight)
        mean, spread = map(torch.from_numpy, self.static[0].inputs.mean_and_spread())
        if self.start.standardised:
            self.start.standardise(mean, spread)
            mean, spread = torch.zeros_like(mean), spread * self.start.scale.cpu()
        # A step of Adam does not depend on the size of the gradient, so with more or larger inputs
        # the same rate changes w more.
        size = (mean.square() + spread.square()).mean().sqrt().item()
        self.rate_scale = min(1.0, WIDTH / self.start.width) / size
        self.head = deepcopy(self.start)
        self.optimizer = torch.optim.Adam(self.head.parameters())
        self.begun = True

    @property
    def memory(self) -> int:
        """Steps whose texts an update reads.

        Hidden states, the inputs of a linear head, are too many to keep. In rounds of drafts, which
        depth a token has depends on the head that drew it, so the probability of a text is
        unknown.
        """
        is_exact = self.drafter == MODEL
        return self.recipe.memory if is_exact and self.head.width <= WIDTH else 1

    def learn(
        self, rollouts: Rollouts, examples: Sequence[Example], seconds: float
    ) -> objective.TrainingStep:
        """Take the next step: score its texts, which took ``seconds``, and run its epochs."""
        began, recipe, done = time.perf_counter(), self.recipe, len(self.history)
        head, texts = self.head, recipe.rollouts
        repeated = [example for example in examples for _ in range(texts)]
        rewards = reward(rollouts, repeated, self.metric).to(rollouts.tv.device)
        rolled_out = time.perf_counter()

        with torch.no_grad():
            weight = head(rollouts.inputs)
        self.scored.append(objective.Scored(rollouts, rollouts.likelihood(weight), rewards))
        accepted = objective.text_mean(1 - weight * rollouts.tv, rollouts)
        means = rewards.mean().item(), accepted.mean().item()
        self.multiplier = self.goal.next_multiplier(
            self.multiplier, *means, (done + 1) / recipe.steps
        )
        factor = self.slope * self.multiplier.value  # lambda
        step = objective.surrogate(head, self.start, self.scored, texts, factor)
        rate = self.optimizer.param_groups[0]["lr"] = self.rate_scale * recipe.rate(done)
        for _ in range(recipe.epochs_per_rollout):
            value = objective.evaluate(head, step)
            loss = -value.objective
            advice = " in another folder; the last checkpoint is untouched"
            gradient = objective.descend(loss, head, self.optimizer, done, advice)
        del self.scored[: max(0, len(self.scored) - self.memory + 1)]
        progress = objective.TrainingStep(
            step=done + 1,
            reward=means[0],
            reward_spread=rewards.std(correction=0).item(),
            acceptance=means[1],
            weight=weight.mean().item(),
            disagreement=objective.text_mean(rollouts.tv, rollouts).mean().item(),
            loss=loss.item(),
            acceptance_weight=self.multiplier.value,
            kl=value.kl,
            clipped=value.clipped,
            gradient=gradient,
            learning_rate=rate,
            tokens=len(rollouts.row),
            rollout_seconds=seconds + rolled_out - began,
            update_seconds=time.perf_counter() - rolled_out,
        )
        self.history.append(self._checked(progress))
        return self.history[-1]

    def static_head(self, weight: float) -> Head:
        """Return an untrained head: the static ensemble with this weight."""
        sizes = (self.pair.target.hidden_size, self.pair.draft.hidden_size)
        head = Head(self.recipe.head_kind, sizes, weight, self.recipe.seed)
        return head.to(self.pair.target.device)

    def measure(
        self, heads: Sequence[Head], material: Material, seed: int = HELD_OUT_SEED, texts: int = 1
    ) -> list[Point]:
        """Measure heads with some texts per prompt."""
        generator = self._new_generator(seed)
        heads = [head for head in heads for _ in range(texts)]
        request = RolloutRequest(heads, material.prompts, generator)
        [rollouts], total = self.roll_out([request], self.sampling), request.texts
        points = [
            self._point(head, rollouts.taken(range(i, total, len(heads))), material.examples)
            for i, head in enumerate(heads)
        ]
        return [Point.mean(points[first : first + texts]) for first in range(0, len(points), texts)]

    def restore_best(self) -> None:
        """Replace the head by the best one that was measured."""
        if self.best is not None:
            self.head.load_state_dict(self.best.weights)
        self.head.eval().requires_grad_(False)

    def measure_worth(self) -> Worth:
        """Compare the head on final prompts with both models and the static weights around it.

        Where a task has too few prompts, each has two texts, since no other prompts can be had.
        """
        material = self.materials.final
        texts = self.materials.final_texts
        [head] = self.measure([self.head], material, FINAL_SEED, texts)
        static = [self.static_head(weight) for weight in front.weights_around(head, self.static)]
        return Worth(head, self.measure(static, material, FINAL_SEED + 1, texts))

    @torch.no_grad()
    def _point(self, head: Head, rollouts: Rollouts, examples: list[Example]) -> Point:
        weight = head(rollouts.inputs)
        rewards = reward(rollouts, examples, self.metric).double().numpy()
        accepted = objective.text_mean(1 - weight * rollouts.tv, rollouts).double().cpu().numpy()
        inputs = InputSums.of(rollouts.inputs)
        return Point(weight.mean().item(), rewards, accepted, inputs)

    def _checked(self, progress: objective.TrainingStep) -> objective.TrainingStep:
        """Measure the head on held-out prompts at some steps, and keep it if it is the best."""
        step, steps, checks = progress.step, self.recipe.steps, self.recipe.checks
        if step * checks // steps == (step - 1) * checks // steps:
            return progress
        texts = self.materials.held_out_texts
        [point] = self.measure([self.head], self.materials.held_out, HELD_OUT_SEED, texts)
        above, low, high, *_ = front.distance(point, self.static)
        merit = self.goal.merit(point, above)
        if self.best is None or merit >= self.best.merit:
            weights = deepcopy(self.head.state_dict())
            self.best = Checked(step, merit, weights, (above, low, high))
        return progress._replace(
            held_out_quality=float(point.quality.mean()),
            held_out_acceptance=float(point.acceptance.mean()),
            held_out_weight=point.weight,
            held_out_distance=above,
        )

    def _fill_greedy_texts(self) -> None:
        """Add the target's own greedy text to every example, if the metric compares with it."""
        is_filled = self.materials.held_out.examples[0].greedy is not None
        if self.metric.needs != GREEDY or is_filled:
            return
        target, cold = self.static_head(1.0), Sampling(temperature=0.0)

        def filled(material: Material) -> Material:
            request = RolloutRequest([target], material.prompts, self._new_generator(0))
            texts = self.roll_out([request], cold)[0].texts
            pairs = zip(material.examples, texts, strict=True)
            return material._replace(examples=[replace(e, greedy=text) for e, text in pairs])

        train, held_out, final, left_out = self.materials
        used = min(len(train.examples), self.recipe.steps * self.recipe.prompts_per_step)
        train = train.taken(0, used)._replace(left_out=train.left_out)
        self.materials = Materials(filled(train), filled(held_out), filled(final), left_out)

    def roll_out(self, requests: Sequence[RolloutRequest], sampling: Sampling) -> list[Rollouts]:
        """Sample a text per prompt and head; see ``rollouts.roll_out``."""
        texts = (self.tokens, self.task.stop, sampling)
        if self.drafter == MODEL:
            return roll_out(self.pair, requests, *texts)
        drafter = self.drafter.kind.load(self.pair)
        return [drafted_rollouts(self.pair, request, *texts, drafter) for request in requests]

    def _new_generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.pair.target.device).manual_seed(seed)


def reward(rollouts: Rollouts, examples: list[Example], metric: Metric) -> Tensor:
    """Score every text by a metric, as a run does: ``[B]`` in [0, 1]."""
    cut = [replace(e, cut=cut) for e, cut in zip(examples, rollouts.cut, strict=True)]
    # Each program runs in its own process, so threads suffice for running several at once.
    with ThreadPoolExecutor() as pool:
        return torch.tensor([*pool.map(partial(score, metric.name), rollouts.texts, cut)])


def draw_texts(trainings: Sequence[Training]) -> list[tuple[Rollouts, list[Example], float]]:
    """Return the texts of each training's next step, with their examples and seconds.

    They share batches, so the trainings are at the same step, with one front (see
    ``Training.shares_front_with``). Each takes the step with ``learn``.
    """
    began, first = time.perf_counter(), trainings[0]
    size, copies = first.recipe.prompts_per_step, first.recipe.rollouts
    materials = [t.materials.train.taken(len(t.history) * size, size) for t in trainings]
    requests = [
        RolloutRequest([training.head] * copies, material.prompts, training.generator)
        for training, material in zip(trainings, materials, strict=True)
    ]
    rollouts = first.roll_out(requests, first.sampling)
    seconds = (time.perf_counter() - began) / len(trainings)
    return [(texts, m.examples, seconds) for texts, m in zip(rollouts, materials, strict=True)]
