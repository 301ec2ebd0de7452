"""The objective's gradient, and that training moves a head where it should."""

import pytest
import torch

from specbench.engine.heads import LinearHead
from specbench.tasks.task import load_task
from specbench.training import verifier
from specbench.training.rollouts import Rollouts
from specbench.training.verifier import HeadRecipe, objective, text_mean, train_head


def rollouts_by_hand(seed: int = 0) -> Rollouts:
    generator = torch.Generator().manual_seed(seed)
    row = torch.tensor([0, 0, 0, 1, 1, 2])
    h_p, h_q = torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator)
    p, q, tv = torch.rand(3, 6, generator=generator)
    return Rollouts(["a", "b", "c"], row, h_p, h_q, p, q, tv)


def test_first_gradient_is_reinforce_plus_the_acceptance_term():
    rollouts, advantage, weight_of_acceptance = (
        rollouts_by_hand(),
        torch.tensor([1.0, -2.0, 0.5]),
        0.7,
    )
    head = LinearHead(3, 2, initial_weight=0.6)
    old = head(rollouts.h_p, rollouts.h_q).detach()
    objective(head, rollouts, old, advantage, weight_of_acceptance).backward()
    found = head.summary.weight.grad.clone()

    head.zero_grad()
    w = head(rollouts.h_p, rollouts.h_q)
    log_v = (w * rollouts.p + (1 - w) * rollouts.q).log()
    reinforce = sum(advantage[b] * log_v[rollouts.row == b].sum() for b in range(3)) / 3
    acceptance = sum((1 - w * rollouts.tv)[rollouts.row == b].mean() for b in range(3)) / 3
    (reinforce + weight_of_acceptance * acceptance).backward()
    torch.testing.assert_close(found, head.summary.weight.grad)


def test_a_clipped_token_no_longer_pulls():
    rollouts = rollouts_by_hand()
    head = LinearHead(3, 2, initial_weight=0.99)
    far = torch.full((6,), 0.01)
    advantage = torch.where(rollouts.p > rollouts.q, 1.0, -1.0)[[0, 3, 5]]
    ratio = torch.lerp(rollouts.q, rollouts.p, head(rollouts.h_p, rollouts.h_q)) / torch.lerp(
        rollouts.q, rollouts.p, far
    )
    gain = advantage[rollouts.row]
    inactive = ((gain > 0) & (ratio > 1.2)) | ((gain < 0) & (ratio < 0.8))
    assert inactive.any()
    kept = Rollouts(rollouts.texts, *(field[~inactive] for field in rollouts[1:]))
    objective(head, rollouts, far, advantage, 0.0).backward()
    found = head.summary.bias.grad.clone()
    head.zero_grad()
    objective(head, kept, far[~inactive], advantage, 0.0).backward()
    torch.testing.assert_close(found, head.summary.bias.grad)


def test_text_mean_averages_each_text():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0, 9.0])
    assert text_mean(values, rollouts_by_hand()).tolist() == [2.0, 5.0, 9.0]


RECIPE = HeadRecipe(
    updates=4, prompts=2, rollouts=2, epochs=2, learning_rate=0.1,
    acceptance_weight=5.0, initial_weight=0.5, seed=0,
)  # fmt: skip


def test_training_reaches_for_acceptance_and_is_reproducible(mini, monkeypatch):
    monkeypatch.setattr(verifier, "reward", lambda rollouts, *_: torch.zeros(len(rollouts.texts)))
    task = load_task("mini-headline")
    examples = task.examples("train", 4)
    seen = []
    head = train_head(mini, task, examples, RECIPE, seen.append)
    assert [progress.update for progress in seen] == [1, 2, 3, 4]
    assert seen[0].weight == pytest.approx(0.5)
    assert seen[-1].weight < 0.4
    assert seen[-1].acceptance > seen[0].acceptance
    again = train_head(mini, task, examples, RECIPE, lambda _: None)
    torch.testing.assert_close(again.summary.weight, head.summary.weight, rtol=0, atol=0)


def test_the_models_stay_as_they_are(mini):
    task = load_task("mini-headline")
    before = mini.target.fingerprint(), mini.draft.fingerprint()
    train_head(mini, task, task.examples("train", 2), RECIPE, lambda _: None)
    assert (mini.target.fingerprint(), mini.draft.fingerprint()) == before
    assert all(weights.grad is None for weights in mini.target.model.parameters())
