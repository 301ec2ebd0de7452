"""The kernels that a profile names are those that run."""

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasks.measure import attention_kernels

from ..engine.tiny import tiny_pair


@pytest.mark.parametrize(("backend", "name"), [("FLASH_ATTENTION", "flash"), ("MATH", "math")])
def test_the_kernels_of_both_methods_are_listed(backend, name, monkeypatch):
    monkeypatch.setattr(attention_kernels, "PROMPT", 20)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        rows = list(attention_kernels.kernels(tiny_pair("llama"), "eager"))
    assert {method for _, method, *_ in rows} == {"autoregressive", "sd"}
    ran = {kernel for _, _, kernel, *_ in rows}
    other = {"flash": "math", "math": "flash"}[name]
    assert any(name in kernel for kernel in ran) and not any(other in kernel for kernel in ran)
