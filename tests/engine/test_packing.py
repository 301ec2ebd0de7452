"""Packed weights: the same products, and the weights themselves for everything else."""

import pytest
import torch
from torch import nn

from specbench.engine import packing
from specbench.engine.packing import pack, packed_layers, unpacked

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="bfloat16 products need AVX-512"
)


def layer(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, 80, dtype=dtype)


@pytest.mark.parametrize("tokens", [1, 6, 200])
def test_a_packed_product_is_that_of_the_weights(tokens):
    subject, inputs = layer(), torch.randn(2, tokens, 96, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = subject(inputs)
        pack(subject)
        assert packed_layers(subject) == [subject]
        torch.testing.assert_close(subject(inputs), expected)
        subject.weight.data.zero_()  # a negative control: products read the copy
        torch.testing.assert_close(subject(inputs), expected)


def test_other_layers_are_left_as_they_are(monkeypatch):
    pack(wide := layer(torch.float32))
    pack(nn.Embedding(8, 8, dtype=torch.bfloat16))
    monkeypatch.setattr(packing, "available_memory", lambda device: wide.weight.nbytes // 4)
    pack(large := layer())
    vars(wide)["forward"] = wide.forward  # as accelerate replaces it
    assert not packed_layers(wide, large)


def test_gradients_float32_and_other_libraries_read_the_weights():
    pack(subject := layer())
    tokens = torch.randn(3, 96, dtype=torch.bfloat16, requires_grad=True)
    subject(tokens).sum().backward()
    assert tokens.grad is not None and subject.weight.grad is not None
    subject.float()
    assert subject(tokens.detach().float()).dtype == torch.float32
    pack(subject := layer())
    inputs = torch.randn(1, 96, dtype=torch.bfloat16)
    with torch.no_grad():
        subject.weight.zero_()
        subject.bias.zero_()
        with unpacked(subject):
            assert not subject(inputs).any()
        assert subject(inputs).any()
    assert packed_layers(subject) == [subject]
