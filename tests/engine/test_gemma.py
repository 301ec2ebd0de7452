"""Gemma 3: the text model of a multimodal checkpoint, and windows after a rejection."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save_file
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration

from specbench.engine.cache import SlotCache
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, custom_pair
from specbench.engine.runner import Runner
from specbench.errors import UsageError
from specbench.methods.strict import sd

from ..decoding.helpers import GREEDY, run
from .tiny import WINDOW, build, config, own_logits, pair_of, random_prompt, tiny_pair, tokenizer

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


# Windows. Prompts are longer than the window, so it has moved on when drafts are rejected.

PROMPTS = [random_prompt(length) for length in (WINDOW + 1, 2 * WINDOW + 3, 3 * WINDOW)]
LIMIT = 24


def texts(pair: LoadedPair, verify: Any = None) -> list[list[int]]:
    how: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": LIMIT}
    return [run(pair, prompt, verify, **how).token_ids for prompt in PROMPTS]


def fresh() -> LoadedPair:
    """The tiny pair with its own runners and caches."""
    pair = tiny_pair("gemma3")
    runners = [Runner(r.model, r.vocabulary) for r in (pair.target, pair.draft)]
    return LoadedPair("fresh", *runners, pair.tokenizer, pair.eos_ids)


def test_a_cache_of_the_windows_size_is_detected(monkeypatch):
    """A negative control: a ring buffer has lost the slots that a rejection brings back."""
    whole_cache = SlotCache.update
    highest: dict[int, int] = {}

    def forgetful(self, keys, values, layer, *_, **__):
        if layer == 0:  # the sliding one
            begin = self._at.start if isinstance(self._at, slice) else int(self._at.min())
            read = highest.get(id(self), 0) if begin else 0
            self.keys[layer][:, :, : max(0, read - WINDOW + 1)] = 0
            highest[id(self)] = max(read, begin + keys.shape[-2])
        return whole_cache(self, keys, values, layer)

    pair = fresh()
    expected = texts(pair)
    assert texts(pair, sd) == expected
    monkeypatch.setattr(SlotCache, "update", forgetful)
    pair = fresh()
    assert texts(pair) == expected  # nothing is ever rejected here
    assert texts(pair, sd) != expected


def test_an_ignored_window_would_be_detected():
    """A negative control: the same weights, with all tokens in the window."""
    unbounded = build(config("gemma3", sliding_window=4096))
    assert texts(pair_of(unbounded, unbounded)) != texts(fresh())
