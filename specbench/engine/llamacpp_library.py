"""llama.cpp's C interface, as the package ``xllamacpp`` has it."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_byte,
    c_char_p,
    c_float,
    c_int8,
    c_int32,
    c_size_t,
    c_void_p,
)
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from specbench.errors import UsageError

PACKAGE, BUILD = "xllamacpp", "2026.10.11549"
INSTALL = f"pip install '{PACKAGE}=={BUILD}' gguf"
ERROR = 4  # ggml's level of a message
SPARE = 512  # bytes behind the fields in use, for those of the library


class ModelParams(Structure):
    """The parameters of a model, in the layout of this build."""

    _fields_ = [
        *(("devices", c_void_p), ("buffer_types", c_void_p), ("n_gpu_layers", c_int32)),
        *(("kinds", c_int32 * 4), ("pointers", c_void_p * 4)),
        *((name, c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts")),
        ("spare", c_byte * SPARE),
    ]


class ContextParams(Structure):
    """The parameters of a context, likewise."""

    _fields_ = [
        *((name, c_int32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")),
        ("others", c_int32 * 3),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch")),
        *(("kinds", c_int32 * 4), ("flash_attn_type", c_int32), ("rope", c_int32 * 8)),
        ("callback", c_void_p * 2),
        *((name, c_int32) for name in ("type_k", "type_v")),
        ("spare", c_byte * SPARE),
    ]


class TokenBatch(Structure):
    """Tokens of one call."""

    _fields_ = [
        *(("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", c_void_p)),
        *(("pos", POINTER(c_int32)), ("n_seq_id", POINTER(c_int32))),
        *(("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8))),
    ]


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_Log, c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_vocab_is_eog": (c_bool, [c_void_p, c_int32]),
    "llama_vocab_get_add_bos": (c_bool, [c_void_p]),
    "llama_model_is_recurrent": (c_bool, [c_void_p]),
    "llama_model_is_hybrid": (c_bool, [c_void_p]),
    "llama_tokenize": (
        c_int32,
        [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool],
    ),
    "llama_model_meta_val_str": (c_int32, [c_void_p, c_char_p, c_char_p, c_size_t]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_set_embeddings": (None, [c_void_p, c_bool]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_batch_init": (TokenBatch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [TokenBatch]),
    "llama_decode": (c_int32, [c_void_p, TokenBatch]),
    "llama_get_logits": (POINTER(c_float), [c_void_p]),
    "llama_get_embeddings": (POINTER(c_float), [c_void_p]),
}


def load_file(path: Path, vocab_only: bool = False) -> Any:
    """Load a model, or its metadata and vocabulary only; return the library's pointer."""
    params = library().llama_model_default_params()
    params.vocab_only = vocab_only
    _messages.clear()
    model = library().llama_model_load_from_file(str(path).encode(), params)
    if not model:
        reason = _messages[0] if _messages else "no reason given"  # later ones repeat it
        raise UsageError(
            f"llama.cpp cannot read {path} ({reason}): give a complete GGUF file of an "
            "architecture that this build knows"
        )
    return model


@cache
def library() -> Any:
    """Load llama.cpp."""
    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:
        raise UsageError(f"GGUF files need llama.cpp: {INSTALL}") from None
    if installed.version.partition("+")[0] != BUILD:
        raise UsageError(f"{PACKAGE} {installed.version} is another build of llama.cpp: {INSTALL}")
    folder = Path(str(installed.locate_file(PACKAGE)))
    (path,) = (f for f in folder.iterdir() if f.suffix in {".so", ".dylib", ".pyd"})
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    loaded.llama_log_set(_note, None)
    loaded.llama_backend_init()
    return loaded


_messages: list[str] = []


@_Log  # type: ignore[untyped-decorator]  # the library keeps a pointer to it
def _note(level: int, text: bytes, _: object) -> None:
    """Keep the library's errors instead of printing its messages."""
    if level == ERROR:
        _messages.append(text.decode(errors="replace").strip())


def last_error() -> str:
    """Return the last error that the library reported."""
    return _messages[-1] if _messages else "no reason given"
