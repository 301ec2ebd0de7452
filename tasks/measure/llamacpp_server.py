"""Start llama.cpp's server in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from specbench.engine.pairs import ROLES
from specbench.errors import UsageError
from specbench.serving.server import Server

LONGEST_PROMPT = 4096  # tokens of a text on llama.cpp's server


@contextmanager
def llamacpp_server(
    target: Path,
    draft: Path | None = None,
    *,
    draft_length: int,
    drawn: bool = False,
    texts: int = 1,
    threads: int | None = None,
) -> Iterator[Server]:
    """Start llama.cpp's server with GGUF files, and stop it at the end of the context.

    Flash attention and the cache in float16 are off, as in specbench's engine.

    Args:
        target: The target's file.
        draft: The draft's file; without it the server decodes with the target alone.
        draft_length: Tokens drafted per round, at most.
        drawn: Whether drafts are drawn from the draft's distribution; by default they are its
            first choices.
        texts: Requests that it works on at once.
        threads: Threads of each model; None for as many as torch uses.

    Raises:
        UsageError: The library is missing, or cannot read the files.
    """
    from specbench.engine.llamacpp_library import library

    library()  # refuses a missing or another build
    import xllamacpp as cpp

    params = cpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(target), texts * LONGEST_PROMPT, texts
    params.verbosity, params.warmup, params.endpoint_metrics = -1, False, True
    params.flash_attn_type = cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    kinds = [params]
    if draft is not None:
        speculation = params.speculative
        speculation.types = [cpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculation.draft.mparams.path, speculation.draft.n_max = str(draft), draft_length
        speculation.draft.probabilistic = drawn
        kinds.append(speculation.draft)
    for model in kinds:
        model.cache_type_k = model.cache_type_v = cpp.ggml_type.GGML_TYPE_F32
        model.cpuparams.n_threads = model.cpuparams_batch.n_threads = (
            threads or torch.get_num_threads()
        )
    try:
        server = cpp.Server(params)
    except RuntimeError as error:
        raise UsageError(f"llama.cpp cannot serve {target} ({error}): give other files") from error
    yield Server(server.listening_address)
    del server


def exported_files(pair: str, folder: Path) -> list[Path]:
    """Write a bundled pair into a folder by ``export_pair.py``; return its files."""
    script = Path(__file__).parents[1] / "export_pair.py"
    command = [sys.executable, str(script), pair, "--output", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [folder / f"{role}-f32.gguf" for role in ROLES]
