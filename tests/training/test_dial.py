"""The dial: lambda follows a wish, and the bias settles it."""

import math

import pytest
import torch

from specbench.heads.head import Head
from specbench.tasks.task import load_task
from specbench.training.dial import INTEGRAL, PROPORTIONAL, follow, settle
from specbench.training.material import Material, split_material
from specbench.training.objective import text_mean
from specbench.training.parts import here
from specbench.training.rollouts import read_prompts, roll_out

TASK = load_task("mini-headline")


def test_lambda_follows_what_is_missing() -> None:
    multiplier, price = follow(1.0, 0.1)
    assert math.log(price) == pytest.approx(0.1 * (INTEGRAL + PROPORTIONAL))
    # What was missing is remembered; what is too much lowers the price at once.
    multiplier, price = follow(multiplier, 0.0)
    assert math.log(price) == pytest.approx(0.1 * INTEGRAL)
    multiplier, price = follow(multiplier, -0.1)
    assert 0 < price < multiplier == pytest.approx(1.0)


def acceptance(mini, head: Head, texts: int = 128) -> float:
    """On examples that the bias was not set with."""
    prompts = read_prompts(mini, TASK, TASK.examples("train", texts, seed=7), 512)
    generator = torch.Generator().manual_seed(7)
    rollouts = roll_out(mini, head, prompts, TASK.max_new_tokens, generator)
    return text_mean(1 - head(rollouts.inputs) * rollouts.tv, rollouts).mean().item()


def others(mini, texts: int) -> Material:
    return split_material(mini, TASK, "held-out", texts, 1, 512)


def uneven_head(mini) -> Head:
    head = Head("linear", (mini.target.hidden_size, mini.draft.hidden_size)).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    head.summary.weight.copy_(torch.randn(head.summary.weight.shape, generator=generator) / 8)
    return head


def test_a_wish_is_met_on_examples_of_neither_set(mini) -> None:
    head = uneven_head(mini)
    assert abs(acceptance(mini, head) - 0.86) > 0.03
    settle(here(mini), TASK, head, 0.86, others(mini, 128))
    assert acceptance(mini, head) == pytest.approx(0.86, abs=0.02)


def test_only_the_bias_of_the_target_s_score_moves(mini) -> None:
    head, before = uneven_head(mini), uneven_head(mini)
    settle(here(mini), TASK, head, 0.9, others(mini, 8))
    assert torch.equal(head.summary.weight, before.summary.weight)
    assert head.summary.bias[0] == before.summary.bias[0]
    assert head.summary.bias[1] != before.summary.bias[1]


def test_a_wish_that_no_weight_meets_gives_the_strictest_head(mini) -> None:
    head = uneven_head(mini)
    settle(here(mini), TASK, head, 0.3, others(mini, 16))
    strict = Head("linear", (mini.target.hidden_size, mini.draft.hidden_size), 1 - 1e-6)
    assert acceptance(mini, head, 16) == pytest.approx(acceptance(mini, strict, 16), abs=1e-3)
