"""Training steps of a DIVERSED head: roll out, score, and update for a few epochs.

The static ensemble is measured first, on held-out prompts. It gives the unit of lambda, the start,
and the front that the head must beat (``specbench.training.front``). With a goal, lambda follows
what is missing (``objective.Multiplier``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import ceil
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafters.registry import MODEL, recorded_drafter
from specbench.decoding.heads.head import Head
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.metrics import GREEDY, Metric, get_metric, score
from specbench.tasks.task import RESERVED_SEEDS, Task
from specbench.training import front
from specbench.training.budget import Pace, Workload, spoken
from specbench.training.front import InputSums, Point, Worth
from specbench.training.material import Material, Materials
from specbench.training.objective import (
    Multiplier,
    Surrogate,
    advantages,
    descend,
    evaluate,
    text_mean,
)
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import AT_ONCE, Rollouts, drafted_rollouts, joined, roll_out

# Seeds of roll-outs on held-out prompts; training cannot use them.
HELD_OUT_SEED, FINAL_SEED = RESERVED_SEEDS, 2 * RESERVED_SEEDS

# A start must keep most of the quality, or its texts earn nothing to learn from.
MOST_LOST = 0.3  # share of the quality between target and draft that the start may lose
STARTS = (0.3, 0.95)  # range of the first weight; a sampled draft must stay possible
WIDTH = 128  # inputs of a head up to which the learning rate is used as it is
TIMED_TOKENS = 32  # of a prompt, in the forecast
LIKELY_SHARE = 0.5  # length of a typical text, as a share of the most tokens
TOLERANCE = 0.01  # of a target acceptance, in the choice of the best head


class TrainingStep(NamedTuple):
    """One row of ``training.csv``: a step, measured with the head before its update.

    The columns ``held_out_...`` are measured after the update, at some steps only.
    """

    step: int  # from 1
    reward: float  # mean score of the texts
    reward_spread: float  # standard deviation of the scores; 0 gives no gradient
    acceptance: float  # mean over texts of 1 - w TV(p, q)
    weight: float  # mean w over tokens
    disagreement: float  # mean over texts of TV(p, q), the rejection rate of strict verification
    loss: float  # minus the objective at the last epoch, in standard deviations of the advantage
    acceptance_weight: float  # lambda, in units of the static ensemble's slope
    kl: float  # nats per text from the untrained head's v, at the last epoch
    clipped: float  # fraction of tokens with a clipped ratio, at the last epoch
    gradient: float  # norm of the gradient at the last epoch, before clipping
    learning_rate: float  # Adam's
    tokens: int
    rollout_seconds: float  # time to sample and score the texts
    update_seconds: float  # time of all epochs
    held_out_quality: float | None = None  # mean score
    held_out_acceptance: float | None = None
    held_out_weight: float | None = None
    held_out_distance: float | None = None  # quality above the randomised static front

    def __str__(self) -> str:
        return (
            f"reward {self.reward:.3f}, acceptance {self.acceptance:.3f}, "
            f"weight {self.weight:.3f}, lambda {self.acceptance_weight:.2f}"
        )


class Checked(NamedTuple):
    """The head after a step, with its measurement on held-out prompts."""

    step: int
    merit: list[float]  # the best head has the largest
    weights: dict[str, Tensor]


class Training:
    """A head in training: its data, optimizer and progress.

    Attributes:
        asked: The user's recipe; a budget makes ``recipe`` smaller.
        tokens: The most tokens of a text.
        text_tokens: The tokens of a text in forecasts.
        all_materials: What a workload takes ``materials`` from.
        workload: How much is rolled out.
        spent: Seconds until now, apart from loading the models.
        static: Static weights on held-out prompts, from target to draft; see ``measure_front``.
        start: The untrained head, which never changes.
        head: The head in training.
        multiplier: Lambda relative to the slope of the static ensemble.
        best: The best head so far.
        history: The progress of every step so far.
    """

    def __init__(
        self, pair: LoadedPair, task: Task, recipe: HeadRecipe, materials: Materials
    ) -> None:
        self.pair, self.task, self.asked, self.materials = pair, task, recipe, materials
        self.all_materials = materials
        self.tokens = recipe.text_tokens(task)
        self.text_tokens = float(self.tokens)
        filters = Sampling(top_k=recipe.top_k, top_p=recipe.top_p, min_p=recipe.min_p)
        self.samplings = [filters.updated(temperature=t) for t in recipe.temperature]
        self.metric = get_metric(recipe.metric_for(task) or "")
        self.generator = self._new_generator(recipe.seed)
        self.static: list[Point] = []
        self.begun = False
        self.spent = 0.0
        self.pace: Pace | None = None
        self.follow(
            Workload(
                recipe.steps,
                recipe.prompts_per_step,
                len(materials.held_out.examples),
                len(materials.final.examples),
                materials.final_texts,
                greedy=self.metric.needs == GREEDY,
            )
        )
        self.multiplier = Multiplier(recipe.acceptance_weight)
        self.best: Checked | None = None
        self.history: list[TrainingStep] = []

    def follow(self, workload: Workload) -> None:
        """Roll out as much as a workload says."""
        self.workload, steps = workload, workload.steps
        self.recipe = self.asked.updated(steps=steps, prompts_per_step=workload.prompts_per_step)
        train, held_out, final, left_out = self.all_materials
        self.materials = Materials(
            train, held_out.taken(0, workload.held_out), final.taken(0, workload.final), left_out
        )

    def forecast(self) -> str:
        """Time short roll-outs, divide the budget, if any, and say what is done and how long.

        Raises:
            UsageError: The budget is too small for this machine.
        """
        began, recipe = time.perf_counter(), self.asked
        length = median(len(prompt) for prompt in self.materials.train.prompts)
        first, head = self.materials.train.taken(0, 1), self.static_head(0.5)
        short = first._replace(prompts=[first.prompts[0][:TIMED_TOKENS]])
        generator, sampling = self._new_generator(0), self.samplings[0]
        pace = Pace.measured(
            lambda texts, tokens: self._roll_out([head] * texts, short, generator, sampling, tokens)
        )
        per_token = pace.prompt / len(short.prompts[0])
        self.pace = pace = pace._replace(prompt=per_token * length)
        self.spent += time.perf_counter() - began
        if recipe.minutes is not None and not self.static:
            left, least = 60 * recipe.minutes - self.spent, self.workload.least()

            def need(tokens: float) -> float:
                return sum(least.seconds(pace, recipe.rollouts, tokens).values())

            tokens = float(self.tokens)
            # The budget is divided again after the front, which shows how long texts are.
            if need(tokens) > left and not self.workload.greedy:
                tokens *= LIKELY_SHARE
            if need(tokens) > left:
                raise UsageError(
                    f"{self.task.name}: --minutes {recipe.minutes:g} is too short here, where "
                    f"{least.described(recipe.rollouts)} take about {spoken(need(tokens))} with "
                    f"texts of {tokens:.0f} tokens: give at least "
                    f"{ceil((need(tokens) + self.spent) / 60)}, or omit --minutes"
                )
            self.text_tokens = tokens
            self.follow(self.workload.within(left, pace, recipe, tokens))
        return f"{self.task.name}: {self.workload.described(recipe.rollouts)}: {self._time(pace)}"

    def forecast_after_front(self) -> str | None:
        """Say what is left to do and how long, or None if the front did not change it."""
        if self.pace is None or self.asked.minutes is None:
            return None
        left = self.workload.after_front(self.asked.rollouts)
        return f"{self.task.name}: next, {left}: {self._time(self.pace, 'front', 'greedy')}"

    def _time(self, pace: Pace, *done: str) -> str:
        """Say how long the workload takes, without the parts that are done."""
        seconds = self.workload.seconds(pace, self.asked.rollouts, self.text_tokens)
        left = {name: time for name, time in seconds.items() if time and name not in done}
        parts = ", ".join(f"{name} {spoken(time)}" for name, time in left.items())
        bound = "at most" if self.text_tokens == self.tokens else "about"
        return (
            f"{bound} {spoken(sum(left.values()))} here ({parts}; texts of "
            f"{self.text_tokens:.0f} tokens)"
        )

    def measure_front(self, report: Callable[[int, int], object]) -> None:
        """Measure the static weights on held-out prompts, or on those that are left.

        ``report`` gets the number of prompts that are measured, and of all, after some prompts.

        Raises:
            UsageError: There are too few held-out prompts.
        """
        self._fill_greedy_texts()
        held_out, heads = self.materials.held_out, [self.static_head(w) for w in front.WEIGHTS]
        prompts = len(held_out.examples)
        front.require_enough(prompts, self.task.name)
        size = len(self.samplings) * max(1, AT_ONCE // len(heads))
        while (done := len(self.static[0].quality) if self.static else 0) < prompts:
            began, part = time.perf_counter(), held_out.taken(done, min(size, prompts - done))
            points = self.measure(heads, part, HELD_OUT_SEED + done)
            if self.static:
                points = [a.joined(b) for a, b in zip(self.static, points, strict=True)]
            self.static = points
            seconds = time.perf_counter() - began
            self.spent += seconds
            if done + len(part.examples) == prompts:
                self._adjust(seconds / len(part.examples))
            report(done + len(part.examples), prompts)

    def _adjust(self, seconds: float) -> None:
        """Divide what is left of the budget, by the seconds that a held-out prompt took."""
        recipe, pace, workload = self.asked, self.pace, self.workload
        if recipe.minutes is None or pace is None or workload.greedy:
            return
        expected = workload.seconds(pace, recipe.rollouts, self.tokens)["front"] / workload.held_out
        whole = workload._replace(steps=recipe.steps, final=len(self.all_materials.final.examples))
        left, self.text_tokens = 60 * recipe.minutes - self.spent, self.tokens * seconds / expected
        self.follow(whole.within(left, pace, recipe, self.text_tokens, front=False))

    def begin(self, report: Callable[[int, int], object] = lambda done, prompts: None) -> None:
        """Create the head and its optimizer, from the static weights on held-out prompts.

        ``report`` is that of ``measure_front``, which measures them if nothing has.

        Raises:
            UsageError: There are too few held-out prompts, or the target is not measurably better
                than the draft.
        """
        self.measure_front(report)
        recipe = self.recipe
        front.require_trade(self.static, self.task.name, self.metric)
        self.slope = front.slope(self.static)
        self.start = self.static_head(recipe.initial_weight or self._first_weight())
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

    def take_step(self) -> TrainingStep:
        """Roll out, score, and run the epochs of one step.

        The steps use the examples in order, cycling after the last, and the temperatures in turn.

        Raises:
            RunError: The loss is not finite.
        """
        began, recipe, done = time.perf_counter(), self.recipe, len(self.history)
        head = self.head
        chosen = self.materials.train.taken(done * recipe.prompts_per_step, recipe.prompts_per_step)
        sampling = self.samplings[done % len(self.samplings)]
        texts = recipe.rollouts
        rollouts = self._roll_out([head] * texts, chosen, self.generator, sampling)
        repeated = [example for example in chosen.examples for _ in range(texts)]
        rewards = reward(rollouts, repeated, self.metric).to(rollouts.tv.device)
        rolled_out = time.perf_counter()

        with torch.no_grad():
            old_weight, start_weight = head(rollouts.inputs), self.start(rollouts.inputs)
        accepted = text_mean(1 - old_weight * rollouts.tv, rollouts)
        self.multiplier = self._next_multiplier(rewards.mean().item(), accepted.mean().item())
        factor = self.slope * self.multiplier.value  # lambda
        advantage = advantages((rewards + factor * accepted).view(-1, recipe.rollouts))
        step = Surrogate(rollouts, old_weight, start_weight, advantage, factor)
        rate = self.optimizer.param_groups[0]["lr"] = self.rate_scale * recipe.rate(done)
        for _ in range(recipe.epochs_per_rollout):
            value = evaluate(head, step)
            loss = -value.objective
            advice = " in another folder; the last checkpoint is untouched"
            gradient = descend(loss, head, self.optimizer, done, advice)
        progress = TrainingStep(
            step=done + 1,
            reward=rewards.mean().item(),
            reward_spread=rewards.std(correction=0).item(),
            acceptance=accepted.mean().item(),
            weight=old_weight.mean().item(),
            disagreement=text_mean(rollouts.tv, rollouts).mean().item(),
            loss=loss.item(),
            acceptance_weight=self.multiplier.value,
            kl=value.kl,
            clipped=value.clipped,
            gradient=gradient,
            learning_rate=rate,
            tokens=len(rollouts.row),
            rollout_seconds=rolled_out - began,
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
        self,
        heads: Sequence[Head],
        material: Material,
        seed: int = HELD_OUT_SEED,
        texts: int = 1,
    ) -> list[Point]:
        """Measure heads with some texts per prompt; the prompts take the temperatures in turn."""
        generator = self._new_generator(seed)
        heads = [head for head in heads for _ in range(texts)]
        turns = [material.every(len(self.samplings), turn) for turn in range(len(self.samplings))]
        rollouts = joined(
            [
                self._roll_out(heads, turn, generator, sampling)
                for turn, sampling in zip(turns, self.samplings, strict=True)
            ]
        )
        examples = [example for turn in turns for example in turn.examples]
        points = [
            self._point(head, rollouts.every(len(heads), number), examples)
            for number, head in enumerate(heads)
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
        texts = self.workload.final_texts
        [head] = self.measure([self.head], material, FINAL_SEED, texts)
        static = [self.static_head(weight) for weight in front.weights_around(head, self.static)]
        return Worth(head, self.measure(static, material, FINAL_SEED + 1, texts))

    @torch.no_grad()
    def _point(self, head: Head, rollouts: Rollouts, examples: list[Example]) -> Point:
        weight = head(rollouts.inputs)
        return Point(
            weight.mean().item(),
            reward(rollouts, examples, self.metric).double().numpy(),
            text_mean(1 - weight * rollouts.tv, rollouts).double().cpu().numpy(),
            InputSums.of(rollouts.inputs),
        )

    def _checked(self, progress: TrainingStep) -> TrainingStep:
        """Measure the head on held-out prompts at some steps, and keep it if it is the best."""
        step, steps = progress.step, self.recipe.steps
        if step % max(1, steps // self.workload.checks) and step != steps:
            return progress
        [point] = self.measure([self.head], self.materials.held_out)
        above = front.distance(point, self.static).value
        merit = self._merit(point, above)
        if self.best is None or merit >= self.best.merit:
            self.best = Checked(step, merit, deepcopy(self.head.state_dict()))
        return progress._replace(
            held_out_quality=float(point.quality.mean()),
            held_out_acceptance=float(point.acceptance.mean()),
            held_out_weight=point.weight,
            held_out_distance=above,
        )

    def _merit(self, point: Point, above: float) -> list[float]:
        """Return what the best head has most of: first its goal, then its distance."""
        recipe, accepted = self.recipe, float(point.acceptance.mean())
        if recipe.target_acceptance is not None:
            missed = abs(accepted - recipe.target_acceptance)
            return [-max(missed - TOLERANCE, 0.0), above]
        if recipe.max_quality_loss is not None:
            lost = float((self.static[0].quality - point.quality).mean())
            return [-max(lost - self._allowed_loss(), 0.0), accepted]
        return [above]

    def _next_multiplier(self, rewarded: float, accepted: float) -> Multiplier:
        """Return the multiplier of this step: fixed, or by what its texts miss of the goal."""
        recipe, (target, draft) = self.recipe, (self.static[0], self.static[-1])
        if recipe.target_acceptance is not None:
            least = float(target.acceptance.mean())
            span = float(draft.acceptance.mean()) - least
            goal = (recipe.target_acceptance - least) / span
            done = (len(self.history) + 1) / recipe.steps
            return self.multiplier.for_acceptance((accepted - least) / span, goal, done)
        if recipe.max_quality_loss is not None:
            lost = float(target.quality.mean()) - rewarded
            return self.multiplier.for_quality(lost / self._allowed_loss())
        return self.multiplier

    def _first_weight(self) -> float:
        """Return the start: the static weight that keeps most of the quality, and any goal."""
        target, draft, recipe = self.static[0], self.static[-1], self.recipe
        best = target.quality.mean()
        lost = MOST_LOST * (best - draft.quality.mean())
        if recipe.max_quality_loss is not None:
            lost = self._allowed_loss()
        first = front.weight_for_quality(best - lost, self.static)
        if recipe.target_acceptance is not None:
            # Start stricter than the goal.
            middle = (target.acceptance.mean() + recipe.target_acceptance) / 2
            first = max(first, front.weight_for_acceptance(middle, self.static))
        return min(max(first, STARTS[0]), STARTS[1])

    def _allowed_loss(self) -> float:
        """Return the permitted loss of quality as a score from 0 to 1."""
        assert self.recipe.max_quality_loss is not None
        return self.recipe.max_quality_loss / self.metric.scale

    def _fill_greedy_texts(self) -> None:
        """Add the target's own greedy text to every example, if the metric compares with it."""
        if not self.workload.greedy or self.materials.held_out.examples[0].greedy is not None:
            return
        target, cold = self.static_head(1.0), Sampling(temperature=0.0)

        def filled(material: Material) -> Material:
            texts = self._roll_out([target], material, self._new_generator(0), cold).texts
            pairs = zip(material.examples, texts, strict=True)
            return material._replace(examples=[replace(e, greedy=text) for e, text in pairs])

        train, held_out, final, left_out = self.materials
        used = min(len(train.examples), self.workload.steps * self.workload.prompts_per_step)
        train = train.taken(0, used)
        self.materials = Materials(filled(train), filled(held_out), filled(final), left_out)

    def _roll_out(
        self,
        heads: Sequence[Head],
        material: Material,
        generator: torch.Generator,
        sampling: Sampling,
        tokens: int | None = None,
    ) -> Rollouts:
        texts = (self.pair, heads, material.prompts, tokens or self.tokens)
        how = (generator, self.task.stop, sampling)
        drafter = recorded_drafter(self.recipe.drafter)
        if drafter == MODEL:
            return roll_out(*texts, *how)
        return drafted_rollouts(*texts, *how, drafter.kind.load(self.pair))

    def _new_generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.pair.target.device).manual_seed(seed)


def reward(rollouts: Rollouts, examples: list[Example], metric: Metric) -> Tensor:
    """Score every text by a metric: ``[B]`` in [0, 1]."""
    # Each program runs in its own process, so threads suffice for running several at once.
    with ThreadPoolExecutor() as pool:
        scored = partial(score, metric.name)
        return torch.tensor(list(pool.map(scored, rollouts.texts, examples)))
