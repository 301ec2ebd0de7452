"""The settings of engines for a drafter and a number of drafts.

Read in the sources and the help of vLLM 0.32, SGLang's documentation, and llama.cpp's build 11549.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.engine.pairs import GGUF, PairSpec, pairs
from specbench.methods.drafters import GREEDY, MODEL, needs_model, ngram_lengths

Schedule = Sequence[tuple[int, int, int]]
"""(first batch size, last batch size, number of drafts); 0 drafts nothing."""


def vllm_settings(drafter: str, length: int, draft: str | None) -> dict[str, Any]:
    """Return the value of vLLM's ``--speculative-config``."""
    if sizes := ngram_lengths(drafter):
        names = ("prompt_lookup_min", "prompt_lookup_max")
        settings: dict[str, Any] = {"method": "ngram", **dict(zip(names, sizes, strict=True))}
    else:
        sampled = {MODEL: "probabilistic", GREEDY: "greedy"}[drafter]
        settings = {"method": "draft_model", "model": draft, "draft_sample_method": sampled}
    return {**settings, "num_speculative_tokens": length}


def vllm_flags(drafter: str, schedule: Schedule, draft: str) -> list[str]:
    """Return vLLM's flags for a number of drafts that depends on the batch size."""
    settings = vllm_settings(drafter, max(length for *_, length in schedule), draft)
    if len(schedule) > 1:
        settings["num_speculative_tokens_per_batch_size"] = [list(row) for row in schedule]
    return ["--speculative-config", json.dumps(settings)]


def sglang_flags(drafter: str, length: int, draft: str) -> list[str]:
    """Return SGLang's flags; it counts the token after the drafts as one of them."""
    if not needs_model(drafter):
        return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", f"{length}"]
    chain = {"steps": length, "draft-tokens": length + 1}
    return [
        *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft),
        *("--speculative-eagle-topk", "1"),
        *(part for name, n in chain.items() for part in (f"--speculative-num-{name}", f"{n}")),
    ]


def gguf_draft(pair: PairSpec) -> tuple[str, str]:
    """Return the GGUF file of a pair's draft, and the command that makes it.

    The command is empty if the file is there.
    """
    draft = str(pair.draft).rstrip("/")
    if draft.endswith(GGUF):
        return draft, ""
    if pair.bundled and pairs().get(pair.name) == pair:
        file = f"results/gguf/{pair.name}/draft-f32{GGUF}"
        return file, "" if Path(file).is_file() else f"python tasks/export_pair.py {pair.name}"
    file = f"{draft.rpartition('/')[2]}{GGUF}"
    remote = [] if Path(draft).exists() else ["--remote"]
    convert = ["python", "convert_hf_to_gguf.py", *remote, draft, "--outfile", file]
    return file, "" if Path(file).is_file() else shlex.join(convert)


def llamacpp_flags(drafter: str, length: int, draft: str) -> list[str]:
    """Return the flags of llama.cpp's server for a draft in a GGUF file."""
    if not needs_model(drafter):
        return ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", f"{length}"]
    sampled = {MODEL: "probabilistic", GREEDY: "greedy"}[drafter]
    return [
        *("--model-draft", draft, "--spec-type", "draft-simple"),
        *("--spec-draft-n-max", f"{length}", "--spec-draft-sampling", sampled),
    ]
