"""The objective has the plain gradient, and the control of lambda reaches its goal."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from specbench.decoding.heads.head import Head
from specbench.training import objective as module
from specbench.training.goal import FIRST, STRICTEST, Multiplier
from specbench.training.objective import CLIP, Surrogate, advantages, evaluate, shares_of
from specbench.training.rollouts import Rollouts

TEXTS, LENGTH, VOCABULARY, HIDDEN_P, HIDDEN_Q = 3, 4, 5, 3, 2


class Toy:
    """Random logits of two models over a few short texts, and a head, in float64."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (TEXTS, LENGTH, VOCABULARY)
        logits = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        self.logits_p, self.logits_q = logits
        self.hidden_p = torch.randn(TEXTS, LENGTH, HIDDEN_P, generator=generator).double()
        self.hidden_q = torch.randn(TEXTS, LENGTH, HIDDEN_Q, generator=generator).double()
        self.tokens = torch.randint(VOCABULARY, (TEXTS, LENGTH), generator=generator)
        self.advantage = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        self.head = Head("linear", (HIDDEN_P, HIDDEN_Q), 0.6).double()
        for weights in self.head.parameters():
            weights.data += 0.3 * torch.randn(weights.shape, generator=generator)
        self.start = Head("linear", (HIDDEN_P, HIDDEN_Q), 0.6).double()

    def step(self, acceptance_weight: float = 0.7) -> Surrogate:
        """The input of our objective: a few scalars per token."""
        p, q = self.logits_p.softmax(-1), self.logits_q.softmax(-1)
        inputs = torch.cat((self.hidden_q, self.hidden_p), -1).flatten(0, 1)
        sampled = self.tokens.unsqueeze(-1)
        row, tv = torch.arange(TEXTS).repeat_interleave(LENGTH), (p - q).abs().sum(-1).flatten() / 2
        spoken = (rows.gather(-1, sampled).flatten() for rows in (p, q))
        texts = (["text"] * TEXTS, [False] * TEXTS, row, self.tokens.flatten(), inputs)
        rollouts = Rollouts(*texts, *spoken, tv)
        with torch.no_grad():
            old, start = self.head(inputs), self.start(inputs)
        once = torch.ones(TEXTS, dtype=torch.float64)
        return Surrogate(rollouts, old, start, once, self.advantage, acceptance_weight)

    def gradient(self, objective: Callable[[], Tensor]) -> Tensor:
        self.head.zero_grad()
        objective().backward()
        return torch.cat([weights.grad.flatten() for weights in self.head.parameters()])

    def plain(self, acceptance_weight: float) -> Tensor:
        """The authors' formulation: logits of both models under autograd, no clipping."""
        both = torch.cat((self.hidden_q, self.hidden_p), -1)
        shares = self.head.summary(both).softmax(-1)  # [B, T, (draft, target)]
        p, q = self.logits_p.softmax(-1), self.logits_q.softmax(-1)
        log_v = (shares[..., :1] * q + shares[..., 1:] * p).log()
        spoken = log_v.gather(-1, self.tokens.unsqueeze(-1)).squeeze(-1)
        reinforce = (self.advantage * spoken.sum(-1)).mean()
        accepted = torch.minimum(q, log_v.exp()).sum(-1)
        total = reinforce + acceptance_weight * accepted.mean(-1).mean()
        return total / self.advantage.std()


@pytest.mark.parametrize("price", [0.0, 0.7, 5.0])
def test_the_gradient_is_that_of_the_plain_formulation(price):
    toy = Toy()
    ours = toy.gradient(lambda: evaluate(toy.head, toy.step(price)).objective)
    plain = toy.gradient(lambda: toy.plain(price))
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


def test_a_clipped_token_has_no_gradient():
    toy = Toy()
    step = toy.step(acceptance_weight=0.0)
    rollouts = step.rollouts
    far = step._replace(old_weight=torch.full_like(step.old_weight, 0.02))
    w = toy.head(rollouts.inputs).detach()
    new, old = (torch.lerp(rollouts.q, rollouts.p, weight) for weight in (w, far.old_weight))
    ratio = new / old
    gain = step.advantage[rollouts.row]
    held = ((gain > 0) & (ratio > 1 + CLIP)) | ((gain < 0) & (ratio < 1 - CLIP))
    assert 0 < held.sum() < len(held)
    gradient = toy.gradient(lambda: evaluate(toy.head, far).objective)
    share = evaluate(toy.head, far).clipped
    assert share == pytest.approx(((ratio - 1).abs() > CLIP).double().mean().item())
    # By hand: only unclipped tokens, each with its ratio.
    free = torch.where(held, 0.0, gain)

    def by_hand():
        v = torch.lerp(rollouts.q, rollouts.p, toy.head(rollouts.inputs))
        return (v / old * free).sum() / TEXTS / step.advantage.std()

    torch.testing.assert_close(gradient, toy.gradient(by_hand))


def test_means_of_texts_and_advantages_by_hand():
    uneven = Toy().step().rollouts._replace(row=torch.tensor([0, 0, 0, 1, 1, 2]))
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0, 9.0])
    assert module.text_mean(values, uneven).tolist() == [2.0, 5.0, 9.0]
    gains = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    assert advantages(gains, torch.ones(2, 2)).tolist() == [-1, 1, -1, 1]
    assert advantages(gains, torch.tensor([[3.0, 1.0], [0.0, 0.0]])).tolist() == [-1, 1, 2.5, 3.5]


@pytest.mark.parametrize(("texts", "others"), [(1, [1, 2, 3]), (2, [1])])
def test_a_text_is_compared_with_its_prompts_or_alone_with_all_of_the_step(texts, others):
    toy, reward = Toy(), torch.tensor([4.0, 1.0, 0.0, 2.0]).double()
    row = torch.arange(TEXTS * LENGTH) % 4
    rollouts = toy.step().rollouts._replace(texts=["text"] * 4, cut=[False] * 4, row=row)
    likelihood = rollouts.likelihood(toy.head(rollouts.inputs)).detach()
    scored = module.Scored(rollouts, likelihood, reward)
    advantage = module.surrogate(toy.head, toy.start, [scored], texts, 0.0).advantage
    size = len(others) + 1
    expected = (1 - 1 / size) * (reward[0] - reward[others].mean())
    assert advantage[0].item() == pytest.approx(expected.item())


def test_the_expected_gradient_is_exact_with_texts_of_another_head():
    """Over all pairs of texts of one token, it is 1 - 1/n of that of the mean return, n = 2."""
    generator = torch.Generator().manual_seed(0)
    p, q, written_by = torch.rand(3, VOCABULARY, generator=generator, dtype=torch.float64)
    p, q, written_by = (weights / weights.sum() for weights in (p, q, written_by))
    returns = torch.arange(VOCABULARY).double()
    v, slope = torch.lerp(q, p, 0.6), p - q  # of v by w
    pairs = torch.cartesian_prod(torch.arange(VOCABULARY), torch.arange(VOCABULARY))
    shares = (v / written_by)[pairs]
    advantage = advantages(returns[pairs], shares).view_as(shares)
    gradient = (shares * advantage * (slope / v)[pairs]).mean(1)
    expected = (written_by[pairs].prod(1) * gradient).sum()
    torch.testing.assert_close(expected, (1 - 1 / 2) * (slope * returns).sum())


def test_a_text_of_another_head_counts_as_often_as_it_is_likelier_now():
    """Over all texts of two tokens, weighted means are those of the current head."""
    toy = Toy()
    texts = torch.cartesian_prod(torch.arange(VOCABULARY), torch.arange(VOCABULARY))  # [V^2, 2]
    both = (toy.logits_p, toy.logits_q)
    p, q = (logits[0, :2].softmax(-1)[torch.arange(2), texts] for logits in both)
    weights = torch.tensor([[0.5, 0.6], [0.7, 0.4]]).double()
    weight, weight_before = (each.expand_as(p) for each in weights)
    likelihood, likelihood_before = torch.lerp(q, p, weight), torch.lerp(q, p, weight_before)
    columns = (column.flatten() for column in (texts, torch.zeros_like(p), p, q, p))
    row = torch.arange(len(texts)).repeat_interleave(2)
    rollouts = Rollouts([""] * len(texts), [False] * len(texts), row, *columns)
    share = shares_of(rollouts, weight.flatten(), likelihood_before.flatten())
    ratio = likelihood.prod(1) / likelihood_before.prod(1)
    assert ratio.max() < module.LARGEST_WEIGHT
    torch.testing.assert_close(share, ratio / ratio.mean())
    value = torch.arange(len(texts)).double()
    weighted = (likelihood_before.prod(1) * share * value).sum() * ratio.mean()
    torch.testing.assert_close(weighted, (likelihood.prod(1) * value).sum())


def test_texts_of_the_head_itself_count_once_and_no_text_counts_too_often():
    toy = Toy()
    rollouts, weight = toy.step().rollouts, toy.step().old_weight
    likelihood = torch.lerp(rollouts.q, rollouts.p, weight)
    scored = module.Scored(rollouts, likelihood, torch.tensor([0.0, 1.0, 1.0]).double())
    step = module.surrogate(toy.head, toy.start, [scored, scored], 3, 0.0)
    assert step.share.tolist() == pytest.approx([1.0] * 6)
    assert step.advantage.tolist() == pytest.approx([-2 / 3, 1 / 3, 1 / 3] * 2)
    assert len(step.rollouts.texts) == 6
    far = likelihood.clone()
    far[rollouts.row == 0] /= 100  # a text that the head of now makes 100^4 times as likely
    share = shares_of(rollouts, weight, far)
    assert share.tolist() == pytest.approx([2.0, 0.5, 0.5])  # 4, 1 and 1, divided by their mean


def test_a_token_that_has_become_impossible_leaves_the_objective_finite():
    toy = Toy()
    step = toy.step()
    p = step.rollouts.p.clone()
    p[0] = 0.0
    toy.head.summary.bias.data = torch.tensor([0.0, 200.0]).double()  # w is 1, so v(x) = 0
    step = step._replace(old_weight=torch.where(p == 0, 1.0, step.old_weight))
    step = step._replace(rollouts=step.rollouts._replace(p=p))
    gradient = toy.gradient(lambda: evaluate(toy.head, step).objective)
    assert gradient.isfinite().all()


class SimulatedHead:
    """A head whose acceptance drifts with the multiplier: toward where the marginal loss equals it.

    Acceptance is 0 for the target and 1 for the draft; the lost quality grows as its square.
    """

    def __init__(self, accepted: float, noise: float, seed: int = 0) -> None:
        self.accepted, self.noise = accepted, noise
        self.draws = np.random.default_rng(seed)

    def train(self, multiplier: float) -> None:
        wanted = np.clip(multiplier / 2, 0, 1)  # where the marginal loss 2 a equals the multiplier
        self.accepted += 0.15 * (wanted - self.accepted)

    @property
    def lost(self) -> float:
        return self.accepted**2 + self.noise * self.draws.normal()

    @property
    def gained(self) -> float:
        return self.accepted + self.noise * self.draws.normal()


@pytest.mark.parametrize("asked", [0.1, 0.3, 0.6, 0.9])
def test_a_target_acceptance_is_reached_from_the_strict_side(asked):
    head, multiplier, path = SimulatedHead(0.02, noise=0.02), Multiplier(0.4), []
    for step in range(60):
        multiplier = multiplier.for_acceptance(head.gained, asked, (step + 1) / 60)
        head.train(multiplier.value)
        path.append(head.accepted)
    assert np.mean(path[-10:]) == pytest.approx(asked, abs=0.03) and max(path[:20]) < asked


@pytest.mark.parametrize("allowed", [0.02, 0.1, 0.4])
def test_an_allowed_quality_loss_is_used_up_but_not_exceeded(allowed):
    head, multiplier, path = SimulatedHead(0.02, noise=0.03), Multiplier(0.4), []
    for _ in range(60):
        multiplier = multiplier.for_quality(head.lost / allowed)
        assert multiplier.value >= 0
        head.train(multiplier.value)
        path.append(head.accepted**2)
    assert np.mean(path[-15:]) == pytest.approx(allowed, abs=0.03)


def test_too_much_acceptance_gives_a_negative_multiplier():
    assert Multiplier(0.4).for_acceptance(0.9, 0.5, 1.0).value == STRICTEST < 0
    assert Multiplier(0.4).for_quality(9.0).value < Multiplier(0.4).for_quality(1.0).value
    # At the goal the multiplier is the integral part alone.
    assert Multiplier(0.4).for_acceptance(0.5, 0.5, 1.0).value == pytest.approx(FIRST)
