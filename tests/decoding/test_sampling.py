"""Processing of logits by hand, and draws that depend only on the seed and the sample."""

import numpy as np
import pytest
import torch

from specbench.decoding.sampling import LARGE, Sampling, draw, uniforms

HIGHEST = 1 - 2**-53  # the largest value of a uniform draw


def logits(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.5, 0.25, 0.125, 0.125]),
        (Sampling(temperature=0.5), [32 / 44, 8 / 44, 2 / 44, 2 / 44]),
        (Sampling(top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(top_k=4), [0.5, 0.25, 0.125, 0.125]),
        *((Sampling(top_k=9), [0.5, 0.25, 0.125, 0.125]), (Sampling(top_p=0.4), [1, 0, 0, 0])),
        *((Sampling(top_p=0.5), [1, 0, 0, 0]), (Sampling(top_p=0.51), [2 / 3, 1 / 3, 0, 0])),
        (Sampling(top_p=1.0), [0.5, 0.25, 0.125, 0.125]),
        # top-p counts the mass that remains after temperature and top-k: 0.8, 0.2.
        (Sampling(temperature=0.5, top_k=2, top_p=0.8), [1, 0, 0, 0]),
        (Sampling(temperature=0.5, top_k=2, top_p=0.81), [0.8, 0.2, 0, 0]),
        (Sampling(min_p=0.25), [0.5, 0.25, 0.125, 0.125]),
        (Sampling(min_p=0.26), [2 / 3, 1 / 3, 0, 0]),
        # min-p compares what remains after temperature, top-k and top-p.
        (Sampling(temperature=0.5, top_p=0.95, min_p=0.2), [0.8, 0.2, 0, 0]),
        (Sampling(temperature=0), [1, 0, 0, 0]),
        (Sampling(temperature=0, top_k=2, top_p=0.9), [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_processing_by_hand(sampling, expected):
    processed, plain = sampling.distributions(logits(0.5, 0.25, 0.125, 0.125))
    torch.testing.assert_close(processed, torch.tensor([expected], dtype=torch.float32))
    torch.testing.assert_close(plain, torch.tensor([[0.5, 0.25, 0.125, 0.125]]))


def test_processing_of_equal_and_of_rare_tokens():
    processed, _ = Sampling(top_k=2).distributions(torch.zeros(1, 5))
    assert sorted(processed[0].tolist()) == [0, 0, 0, 0.5, 0.5]
    processed, plain = Sampling(top_p=1.0).distributions(torch.tensor([[0.0, -20.0, -25.0]]))
    assert torch.equal(processed, plain) and processed.min() > 0
    processed, plain = Sampling().distributions(torch.randn(2, 5))
    assert processed is plain  # without processing there is one tensor


def test_draws_split_the_unit_interval_by_mass_and_never_take_a_token_without():
    uniform = torch.tensor([0.0, 2**-53, 0.5, HIGHEST], dtype=torch.float64)
    for mass in (
        *([0.0, 1.0, 0.0], [0.0, 0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 1e-38, 0.0]),
        [0.0, 0.1, 0.1, 0.1, 0.7, 0.0, 0.0],  # does not sum to 1 in float32
        [0.0, 3.0, 0.0, 7.0, 0.0],
    ):
        tokens = draw(torch.tensor([mass]).expand(4, -1), uniform)
        assert tokens.shape == (4,)
        assert all(mass[token] > 0 for token in tokens.tolist())
    mass = torch.tensor([0.1, 0.0, 0.6, 0.3])
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    counts = torch.bincount(draw(mass.expand(1000, -1), grid), minlength=4)
    assert counts.tolist() == [100, 0, 600, 300]


def test_uniforms_are_the_same_in_every_process_and_differ_by_seed_and_sample():
    table = uniforms(3, "mini-math/test-0", rounds=2, draft_length=1)
    expected = [[0.354947352, 0.258365257, 0.604224399], [0.773923168, 0.84343211, 0.672648142]]
    np.testing.assert_allclose(table.numpy(), expected, rtol=0, atol=1e-9)
    assert torch.equal(uniforms(0, "a", 100, 5)[:10], uniforms(0, "a", 10, 5))
    keys = [(0, "a"), (1, "a"), (-1, "a"), (2**40, "a"), (0, "b"), (0, "")]
    tables = torch.stack([uniforms(*key, 50, 5).flatten() for key in keys])
    assert tables.unique().numel() == tables.numel()
    assert tables.min() >= 0 and tables.max() < 1
    correlation = np.corrcoef(tables.numpy()) - np.eye(len(keys))
    assert np.abs(correlation).max() < 0.2  # 5 standard deviations of 550 numbers


@pytest.mark.parametrize("size", [LARGE, LARGE + 1, 151_665])
def test_a_large_vocabulary_is_drawn_from_as_a_small_one(size):
    """Numbers at the ends of tokens and blocks, masses of 0, and rows that are not normalised."""
    generator = torch.Generator().manual_seed(size)
    mass = torch.randint(0, 4, (4, size), generator=generator).float()
    mass[0] = torch.rand(size, generator=generator).pow(20)  # a few likely tokens
    mass[1, : size // 2], mass[2, 600:] = 0.0, 0.0
    ends = mass.cumsum(-1, dtype=torch.float64)
    borders = ends[:, [0, 511, 512, 599, 600, size // 2, size - 2]] / ends[:, -1:]
    drawn = torch.rand(4, 200, generator=generator, dtype=torch.float64)
    numbers = torch.cat((borders, drawn, torch.zeros(4, 1), torch.full((4, 1), HIGHEST)), 1)
    for column in numbers.clamp_max(HIGHEST).T:
        tokens = draw(mass, column)
        picked = mass.gather(1, tokens[:, None])[:, 0]
        upper = ends.gather(1, tokens[:, None])[:, 0]
        target = column * ends[:, -1]
        assert (picked > 0).all()
        slack = 1e-12 * ends[:, -1]  # other sums round differently
        assert (upper > target - slack).all() and (upper - picked <= target + slack).all()
