"""Gemma 3: the text model of a multimodal checkpoint, and windows after a rejection."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save_file
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration

from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, custom_pair
from specbench.errors import UsageError

from .tiny import WINDOW, config, own_logits, random_prompt, tokenizer

TOKENS = random_prompt(3 * WINDOW)
VISION = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 16, "patch_size": 8},
}


@pytest.fixture
def whole(tmp_path) -> Gemma3ForConditionalGeneration:
    """A multimodal model, saved in ``tmp_path / "whole"`` in the format of the hub."""
    text = config("gemma3", tie_word_embeddings=True).to_dict()
    settings: Any = Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Gemma3ForConditionalGeneration(settings).eval()
    model.save_pretrained(tmp_path / "whole")
    tokenizer().save_pretrained(tmp_path / "whole")
    return model


def rename(folder: Path, old: str, new: str) -> None:
    file = folder / "model.safetensors"
    stored_weights = load_bytes(file.read_bytes())
    weights = {name.replace(old, new): value for name, value in stored_weights.items()}
    file.unlink()  # it may be memory-mapped
    save_file(weights, file, metadata={"format": "pt"})


def load(folder: Path) -> LoadedPair:
    return load_pair(custom_pair(str(folder), str(folder)), Loading(device="cpu"))


def test_a_multimodal_checkpoint_gives_its_text_model(whole, tmp_path):
    text = [w for name, w in whole.named_parameters() if "language_model" in name]
    old = "language_model.model."
    for prefix in (old, "model.language_model."):
        rename(tmp_path / "whole", old, prefix)
        model = load(tmp_path / "whole").target.model
        assert isinstance(model, Gemma3ForCausalLM)
        size = sum(weights.numel() for weights in model.parameters())
        assert size == sum(weights.numel() for weights in text)
        assert size < sum(weights.numel() for weights in whole.parameters())
        torch.testing.assert_close(own_logits(model, TOKENS), own_logits(whole, TOKENS))
    # Weights under unknown names are an error.
    rename(tmp_path / "whole", "model.language_model.", "speech_model.")
    with pytest.raises(UsageError, match=r"of its weights are missing, lm_head|model\.embed"):
        load(tmp_path / "whole")
