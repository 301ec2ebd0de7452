"""A pair on disk, small enough to write for every test."""

from pathlib import Path

import pytest

from specbench.engine.pairs import PairSpec, custom_pair

from .tiny import blurred, build, config, tokenizer


@pytest.fixture
def spec(tmp_path: Path) -> PairSpec:
    """A target, and a draft whose embedding has eight rows more than there are tokens."""
    target = build(config("llama", eos_token_id=5))
    target.generation_config.eos_token_id = [5, 7]
    draft = blurred(build(config("llama")), noise=0.01)
    draft.resize_token_embeddings(72, mean_resizing=False)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
    return custom_pair(str(tmp_path / "target"), str(tmp_path / "draft"))
