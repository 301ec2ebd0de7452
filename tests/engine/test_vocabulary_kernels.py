"""The kernels for large vocabularies against PyTorch, on a GPU and on a simulated one."""

import pytest
import torch

from specbench.decoding.sampling import draw

from .conftest import run_simulated

pytest.importorskip("triton")
SIZES = (20_001, 128_256, 151_936)


def require_same_numbers(device: str, vocabulary: int, rows: int) -> None:
    """Compare softmax and draws of random rows with PyTorch's on a CPU."""
    from specbench.engine import vocabulary_kernels as kernels

    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(2, rows, vocabulary, generator=generator)
    logits[0, 0, 7] = logits[1, :2, :3000] = -torch.inf
    exact = logits.double().softmax(-1)
    ours = kernels.softmax(logits.to(device)).cpu()
    assert ((ours - exact).abs() <= 1e-8 + 1e-5 * exact).all()
    assert ours[0, 0, 7] == 0
    logits[1, -1, 5] = torch.nan
    assert kernels.softmax(logits.to(device)).cpu()[1, -1].isnan().all()

    p = ours[1]
    p[0, -2000:] = 0  # draws take neither these nor, at a uniform number of 0, the first 3,000
    uniforms = torch.rand(rows, 3, generator=generator, dtype=torch.float64)
    uniforms[0], uniforms[1] = 1 - 2**-53, 0
    for column in uniforms.unbind(1):
        moved = uniforms.to(device)[:, 0].copy_(column)
        assert kernels.draw(p.to(device), moved).tolist() == draw(p, column).tolist()
    without = torch.full((2, vocabulary), torch.nan)
    without[1] = 0
    zeros = torch.zeros(2, dtype=torch.float64)
    assert (kernels.draw(without.to(device), zeros.to(device)) < vocabulary).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("vocabulary", SIZES)
def test_softmax_and_draws_are_those_of_a_cpu(vocabulary):
    require_same_numbers("cuda", vocabulary, 40)


def test_softmax_and_draws_are_those_of_a_cpu_on_a_simulated_device():
    run_simulated(f"from {__name__} import *; require_same_numbers('cpu', {SIZES[0]}, 20)")
