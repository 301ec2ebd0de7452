"""What rounds cost, as ``decide`` is told: a file, or a machine's figures and what serves there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from specbench.config import Count, Options, option

OF_MACHINE = {"machine": "{} needs --machine NAME: add it"}


class RoundCosts(Options):
    """What rounds cost, measured or by the figures of a machine."""

    costs: list[Path] | None = option(
        None,
        "Seconds of rounds: a folder of `specbench bench`, a CSV file, or what llama-bench -o json "
        "or vllm bench wrote, of target and draft (page price).",
        metavar="FILE",
        shown="measured here",
    )
    machine: str | None = option(
        None,
        "Compute the seconds from a machine's figures instead: h100, a100, rtx5090, m3-ultra and "
        "about eighty in all, or FILE.toml.",
        metavar="NAME",
        conflicts={"costs": "--costs and --machine exclude each other"},
    )
    gpus: Annotated[int, Field(ge=1)] = option(
        1, "How many of these machines share the layers.", needs=OF_MACHINE
    )
    serving: str | None = option(
        None,
        "What serves: vllm (also vllm-0.9 and the like), sglang, tensorrt-llm, llama.cpp, mlx or "
        "specbench; its overheads count with --machine, and its flags are printed.",
        metavar="ENGINE",
        shown="by the machine and the weights",
    )
    weights: list[str] = option(
        [],
        "Format of the target's and the draft's weights for --machine: bf16, fp8, awq, q4_k_m ...",
        metavar="NAME[,NAME]",
        shown="as published",
        repeats=True,
        needs=OF_MACHINE,
    )
    cache: str | None = option(
        None,
        "Format of caches for --machine: bf16, fp8, q8_0 ...",
        metavar="NAME",
        shown="bf16",
        needs=OF_MACHINE,
    )
    context_length: Count = option(512, "Tokens of a prompt, where rates replace the texts.")
    cached_prompt: int = option(
        0,
        "Tokens of a prompt that all requests share, in the prefix cache, for --machine.",
        metavar="TOKENS",
        ge=0,
        needs=OF_MACHINE,
    )
    flags_of: str = option(
        "serving",
        "Whose flags to print: those of --serving, or of all engines.",
        flags=("--flags",),
        choices=("serving", "all"),
    )
