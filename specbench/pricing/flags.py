"""Flags of engines for a drafter whose number of drafts depends on the batch size."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.decoding.drafters.kind import DrafterKind
from specbench.engine.pairs import GGUF, PairSpec, pairs
from specbench.pricing.shapes import words_of

Schedule = Sequence[tuple[int, int, int]]
"""(first batch size, last batch size, number of drafts); 0 drafts nothing."""
UNNAMED = "DRAFT"  # stands for a draft model that is not named


def engine_flags(
    drafter: DrafterKind, schedule: Schedule, pair: PairSpec | None, engine: str = ""
) -> Iterator[str]:
    """Yield a block of flags for an engine, or for each if none is named.

    vLLM and TensorRT-LLM get the schedule, the others a line for each range of batch sizes. Without
    a pair, ``UNNAMED`` stands for its draft model.
    """
    draft = str(pair.draft) if pair and pair.draft else UNNAMED
    file, command = gguf_draft(pair) if pair and pair.draft else (draft, "")
    ranges = [(f"{a}" if a == b else f"{a} to {b}", n) for a, b, n in schedule if n]
    by_range = {
        "SGLang": [shlex.join(drafter.sglang(n, draft) or ()) for _, n in ranges],
        "llama.cpp": [shlex.join(drafter.llamacpp(n, file) or ()) for _, n in ranges],
    }
    flags = {
        "vLLM": [shlex.join(vllm_flags(drafter, schedule, draft) or ())],
        "TensorRT-LLM": [tensorrt_llm_settings(drafter, schedule, draft) or ""],
        **by_range,
    }
    asked = [name for name in flags if not engine or words_of(name) <= words_of(engine)]
    for name in asked:
        lines = flags[name]
        if not any(lines):
            yield f"{name} has no drafter like {drafter}"
            continue
        start = f"start {name} with"
        if name == "TensorRT-LLM":
            start = f"give {name} a --config FILE.yaml with"
        elif name in by_range and len(ranges) > 1:
            pairs = zip(lines, ranges, strict=True)
            lines = [f"{line}  # batch {sizes}" for line, (sizes, _) in pairs]
        elif name in by_range and len(schedule) > 1:
            start = f"start {name} for batch {ranges[0][0]} with"
        where = " (DRAFT is your draft model)" if UNNAMED in "".join(lines) else ""
        yield f"{start}{where}:"
        yield from (f"  {line}" for line in lines)
    if drafter.needs_draft and command and "llama.cpp" in asked:
        yield f"to make {file}: {command}"


def vllm_flags(drafter: DrafterKind, schedule: Schedule, draft: str) -> list[str] | None:
    """Return vLLM's flags for drafts by batch size; None if it lacks the drafter."""
    settings = drafter.vllm(max(length for *_, length in schedule), draft)
    if settings is None:
        return None
    if len(schedule) > 1:
        settings["num_speculative_tokens_per_batch_size"] = [list(row) for row in schedule]
    return ["--speculative-config", json.dumps(settings)]


def tensorrt_llm_settings(drafter: DrafterKind, schedule: Schedule, draft: str) -> str | None:
    """Return TensorRT-LLM's ``speculative_config`` in YAML, or None if it lacks this drafter.

    If the number of drafts depends on the batch size, there is a schedule. Its keys are the last
    batch sizes with so many drafts; beyond them it drafts nothing. A schedule whose first number
    is not the largest is refused by TensorRT-LLM, and left out here.

    Source: TensorRT-LLM 1.3, ``DecodingBaseConfig.draft_len_schedule``; versions before it read
    the keys as first batch sizes.
    """
    longest = max(length for *_, length in schedule)
    settings = drafter.tensorrt_llm(longest, draft)
    if settings is None:
        return None
    values = f"speculative_config: {json.dumps(settings)}"
    if len(schedule) == 1:
        return values
    if schedule[0][2] < longest:
        return f"{values}  # at all batch sizes: it cannot draft more for larger ones"
    lengths = ", ".join(f"{last}: {length}" for _, last, length in schedule)
    return f'{values.removesuffix("}")}, "draft_len_schedule": {{{lengths}}}}}'


def gguf_draft(pair: PairSpec) -> tuple[str, str]:
    """Return the GGUF file of a pair's draft, and the command that makes it, if it is missing."""
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


def lines_to_measure(engine: str, pair: PairSpec | None, drafter: DrafterKind) -> list[str]:
    """Return the lines that measure an engine in a minute, and have ``decide`` read that."""
    target = shlex.quote(pair.target if pair else "TARGET")
    served = (
        f"vllm bench serve --model {target} --dataset-name random --max-concurrency 1 "
        "--num-prompts 8 --save-result --result-filename"
    )
    lines = {
        "MLX": {
            "target.txt": f"for b in 1 2 3 4 6 8; do mlx_lm.benchmark --model {target} -p 64 -g 64 "
            "-b $b; done > target.txt"
        },
        "llama.cpp": {
            "target.json": "llama-bench -m TARGET.gguf -p 1,2,3,4,5,6,8 -n 32 -o json > target.json"
        },
    }.get(engine) or {
        "plain.json": f"{served} plain.json  # server without speculation",
        "drafts.json": f"{served} drafts.json  # server with speculation",
    }
    if engine == "llama.cpp" and drafter.needs_draft:
        lines["draft.json"] = "llama-bench -m DRAFT.gguf -p 0 -n 32 -o json > draft.json"
    costs = " ".join(f"--costs {file}" for file in lines)
    command = f"specbench decide {costs} --drafter {drafter}"
    return [f"  {line}" for line in (*lines.values(), command)]
