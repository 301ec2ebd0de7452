"""How long a training takes on this machine, and how a budget of minutes is divided.

All time goes into rolling out texts: six static weights on held-out prompts (the front), the steps,
measurements of the head in between (checks), and the final measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from specbench.errors import UsageError
from specbench.training.front import WEIGHTS
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import AT_ONCE

CHECKS = 6  # measurements of the head during training
FINAL_HEADS = 4  # static weights that the trained head is compared with
FRONT, CHECK, FINAL = 0.2, 0.1, 0.2  # shares of a budget; the steps have the rest
# With fewer steps, each has fewer prompts instead. A step of few texts takes nearly as long as one
# of many, and its gradient is noisier.
LEAST_STEPS = 10
# With fewer held-out prompts, even a large difference between target and draft is not measurable.
LEAST_PROMPTS = 32
LIKELY_SHARE = 0.5  # length of a typical text, as a share of the most tokens
MANY, FEW, TOKENS = 64, 4, 4  # texts and tokens of the timed roll-outs
TOLERANCE = 60  # seconds; a forecast beyond the budget by less is not mentioned


class Pace(NamedTuple):
    """Seconds of rolling out, from three short roll-outs of one prompt."""

    prompt: float  # to read a prompt
    step: float  # for one more token of all texts, whatever their number
    row: float  # for one more token of one text

    @classmethod
    def measured(cls, roll_out: Callable[[int, int], object]) -> Pace:
        """Time ``roll_out(texts, tokens)``, which samples texts of a typical prompt."""

        def seconds(texts: int, tokens: int) -> float:
            began = time.perf_counter()
            roll_out(texts, tokens)
            return time.perf_counter() - began

        roll_out(1, 1)  # allocates, and loads code
        prompt, few, many = seconds(1, 1), seconds(FEW, TOKENS), seconds(MANY, TOKENS)
        row = max(many - few, 0.0) / (TOKENS - 1) / (MANY - FEW)
        return cls(prompt, max((few - prompt) / (TOKENS - 1) - FEW * row, 0.0), row)

    def texts(self, count: int, per_prompt: int, tokens: float) -> float:
        """Return the seconds of ``count`` texts of so many tokens, some of each prompt."""
        batches = math.ceil(count / AT_ONCE)
        return count / per_prompt * self.prompt + tokens * (batches * self.step + count * self.row)


class TrainingWork(NamedTuple):
    """How much is rolled out."""

    steps: int
    prompts_per_step: int
    held_out: int  # prompts
    final: int  # prompts
    final_texts: int  # of each final prompt
    held_out_texts: int = 1  # of each held-out prompt
    checks: int = CHECKS
    greedy: bool = False  # whether the target also decodes all prompts greedily
    heads: int = 1  # that share the front and its time

    def seconds(self, pace: Pace, rollouts: int, tokens: float) -> dict[str, float]:
        """Return the seconds of each part for texts of so many tokens."""
        per_step = self.prompts_per_step * rollouts
        prompts = self.greedy * (self.steps * self.prompts_per_step + self.held_out + self.final)
        last, static = self.final * self.final_texts, len(WEIGHTS) * self.held_out_texts
        return {
            "greedy": pace.texts(prompts, 1, tokens),
            "front": pace.texts(static * self.held_out, static, tokens) / self.heads,
            "steps": self.steps * pace.texts(per_step, rollouts, tokens),
            "checks": self.checks
            * pace.texts(self.held_out_texts * self.held_out, self.held_out_texts, tokens),
            "final": pace.texts(last, self.final_texts, tokens)
            + pace.texts(FINAL_HEADS * last, FINAL_HEADS * self.final_texts, tokens),
        }

    def least(self) -> TrainingWork:
        """Return the smallest workload that can show something."""
        return self._replace(
            steps=min(LEAST_STEPS, self.steps),
            prompts_per_step=min(2, self.prompts_per_step),
            held_out=min(LEAST_PROMPTS, self.held_out),
            final=min(LEAST_PROMPTS, self.final),
            final_texts=1,
            held_out_texts=1,
            checks=1,
        )

    def within(
        self, seconds: float, pace: Pace, recipe: HeadRecipe, tokens: float, front: bool = True
    ) -> TrainingWork:
        """Return a smaller workload that takes so many seconds, if the least one does.

        Without ``front``, the front has been measured.
        """

        def cost(workload: TrainingWork) -> dict[str, float]:
            return workload.seconds(pace, recipe.rollouts, tokens)

        def total(workload: TrainingWork) -> float:
            seconds = cost(workload)
            return sum(seconds.values()) - (0 if front else seconds["front"])

        least = self.least()
        workload = least._replace(steps=0, held_out=self.held_out)
        if front:
            workload = workload._replace(held_out=self.front_within(seconds, pace, tokens))
        checks = int(CHECK * seconds / cost(workload)["checks"])
        workload = workload._replace(checks=min(max(checks, 1), CHECKS))
        final = cost(workload)["final"]
        left = seconds - max(FINAL * seconds, final) - (total(workload) - final)
        per_step = recipe.prompts_per_step
        while True:
            single = workload._replace(steps=1, prompts_per_step=per_step)
            steps = int(left / (total(single) - total(workload)))
            if steps >= least.steps or per_step == 1:
                break
            per_step = (per_step + 1) // 2
        workload = single._replace(steps=min(max(steps, least.steps), recipe.steps))
        workloads = (workload._replace(final=count) for count in range(self.final, least.final, -1))
        whole = workload._replace(final=self.final, final_texts=self.final_texts)
        return next(
            (workload for workload in (whole, *workloads) if total(workload) <= seconds), workload
        )

    def front_within(self, seconds: float, pace: Pace, tokens: float) -> int:
        """Return the held-out prompts of a front in its share of so many seconds, or the least.

        Heads that share a front have more steps instead of a larger one.
        """
        least, texts = self.least().held_out, len(WEIGHTS)
        fits = (
            count
            for count in range(self.held_out, least, -1)
            if pace.texts(texts * count, texts, tokens) <= FRONT * seconds
        )
        return next(fits, least)

    def described(self, rollouts: int) -> str:
        """Say what is rolled out."""
        shared = f", once for {self.heads} heads" if self.heads > 1 else ""
        return (
            f"{len(WEIGHTS)} static weights on {self.held_out} held-out prompts "
            f"({len(WEIGHTS) * self.held_out * self.held_out_texts} texts{shared}), "
            f"{self.after_front(rollouts)}"
        )

    def after_front(self, rollouts: int) -> str:
        """Say what is rolled out after the front."""
        checks = "a measurement" if self.checks == 1 else f"{self.checks} measurements"
        return (
            f"{self.steps} step{'s' * (self.steps > 1)} of {self.prompts_per_step * rollouts} "
            f"texts with {checks} of the head, and a final one on {self.final * self.final_texts} "
            f"texts of each of {1 + FINAL_HEADS} weights"
        )


class Budget:
    """What a training rolls out, and how long that takes on this machine.

    Attributes:
        recipe: The user's recipe, with the minutes that training may take, if any.
        workload: How much is rolled out.
        most_tokens: The most tokens of a text.
        tokens: The tokens of a text in forecasts.
        pace: How fast this machine rolls out, once that is measured.
        spent: Seconds until now, apart from loading the models.
    """

    def __init__(self, recipe: HeadRecipe, workload: TrainingWork, most_tokens: int) -> None:
        self.recipe, self.workload, self.most_tokens = recipe, workload, most_tokens
        self.tokens = float(most_tokens)
        self.pace: Pace | None = None
        self.spent = 0.0

    def divided(self, task: str) -> TrainingWork:
        """Return the workload that fits into the minutes, all of it without a limit.

        Raises:
            UsageError: The least workload takes longer on this machine.
        """
        recipe, pace = self.recipe, self.pace
        if recipe.minutes is None or pace is None:
            return self.workload
        left, least = 60 * recipe.minutes - self.spent, self.workload.least()

        def need(tokens: float) -> float:
            return sum(least.seconds(pace, recipe.rollouts, tokens).values())

        tokens = float(self.most_tokens)
        # The budget is divided again after the front, which shows how long texts are.
        if need(tokens) > left and not self.workload.greedy:
            tokens *= LIKELY_SHARE
        if need(tokens) > left:
            raise UsageError(
                f"{task}: --minutes {recipe.minutes:g} is too short here, where "
                f"{least.described(recipe.rollouts)} take about {spoken(need(tokens))} with "
                f"texts of {tokens:.0f} tokens: give at least "
                f"{math.ceil((need(tokens) + self.spent) / 60)}, or omit --minutes"
            )
        self.tokens = tokens
        return self.workload.within(left, pace, recipe, tokens)

    def divided_again(
        self, seconds: float, prompts: int, tokens: float, done: int, final: int
    ) -> TrainingWork:
        """Return the workload that fits into what is left, after a part of the front or all of it.

        Args:
            seconds: What the static weights on so many held-out ``prompts`` took.
            prompts: Their number.
            tokens: Mean of the tokens of a text.
            done: Prompts on which the static weights are measured, maybe before a resume.
            final: Prompts there are for the final measurement.
        """
        recipe, pace, workload = self.recipe, self.pace, self.workload
        if recipe.minutes is None or pace is None or workload.greedy:
            return workload
        # The timed roll-outs were short; long texts take longer per token, and so do uneven ones.
        slower = seconds / pace.texts(len(WEIGHTS) * prompts, len(WEIGHTS), tokens)
        self.tokens, self.pace = tokens, (pace := Pace(*(slower * part for part in pace)))
        fits = workload.front_within(60 * recipe.minutes, pace, self.tokens)
        workload = workload._replace(held_out=max(done, fits))
        if done < workload.held_out:
            return workload
        whole = workload._replace(steps=recipe.steps, final=final)
        left = 60 * recipe.minutes - self.spent
        return whole.within(left, pace, recipe, self.tokens, front=False)

    def described(self, after_front: bool = False) -> str:
        """Say what is rolled out and how long that takes, all of it or what follows the front."""
        assert self.pace is not None
        seconds = self.workload.seconds(self.pace, self.recipe.rollouts, self.tokens)
        done = ("front", "greedy") if after_front else ()
        left = {name: time for name, time in seconds.items() if time and name not in done}
        parts = ", ".join(f"{name} {spoken(time)}" for name, time in left.items())
        bound = "at most" if self.tokens == self.most_tokens else "about"
        over = sum(left.values()) + self.spent - 60 * (self.recipe.minutes or math.inf)
        beyond = f", {spoken(over)} more than --minutes leaves" if over > TOLERANCE else ""
        describe = self.workload.after_front if after_front else self.workload.described
        return (
            f"{describe(self.recipe.rollouts)}: {bound} {spoken(sum(left.values()))} here "
            f"({parts}; texts of {self.tokens:.0f} tokens){beyond}"
        )


def spoken(seconds: float) -> str:
    """Return a duration in words, such as ``8 min``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"
