import pytest

from specbench.errors import mask_tokens


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("403 for hf_AbCdEfGhIjKl, twice hf_AbCdEfGhIjKl", "403 for hf_***, twice hf_***"),
        ("https://me:hf_AbCdEfGhIjKl@hub/x", "https://me:hf_***@hub/x"),
        ("models/hf_8B/half_hf_AbCdEfGh", "models/hf_8B/half_hf_AbCdEfGh"),
        ("", ""),
    ],
)
def test_anything_that_looks_like_a_token_is_masked(text: str, masked: str) -> None:
    assert mask_tokens(text) == masked


def test_the_token_in_use_is_masked_whatever_it_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "from-somewhere-else")
    assert mask_tokens("from-somewhere-else is wrong") == "hf_*** is wrong"
