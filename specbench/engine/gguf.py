"""Keys of GGUF files, and the Transformers tokenizer stored in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

FINGERPRINT_KEY = "specbench.fingerprint"
TOKENIZER_KEY = "tokenizer.huggingface.json"
TEMPLATE_KEY = "tokenizer.chat_template"
SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}  # Transformers' names, and GGUF's


def stored_tokenizer(path: Path) -> PreTrainedTokenizerFast | None:
    """Return the Transformers tokenizer in a GGUF file; None if it has only llama.cpp's."""
    from gguf import GGUFReader

    reader = GGUFReader(path)

    def value(key: str) -> Any:
        field = reader.get_field(key)
        return None if field is None else field.contents()

    text = value(TOKENIZER_KEY)
    if text is None:
        return None
    tokenizer = Tokenizer.from_str(text)
    names = {}
    for name, kind in SPECIAL.items():
        number = value(f"tokenizer.ggml.{kind}_token_id")
        if number is not None:
            names[f"{name}_token"] = tokenizer.id_to_token(int(number))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names
    )
    wrapped.chat_template = value(TEMPLATE_KEY)
    return wrapped
