"""Seconds of rounds from what llama-bench, ``vllm bench`` and mlx_lm.benchmark write.

They time passes over some rows: llama-bench a prompt of n tokens (``-p``) or one token after the
other (``-n``), ``vllm bench`` steps of B requests. A round with N drafts of B texts is a pass of
the target over B (N + 1) rows after N passes of the draft over B rows; between measured numbers of
rows seconds are interpolated. ``vllm bench serve`` on a server that speculates has measured the
round itself: the time per token, times the tokens per round.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.errors import UsageError, first_line, require
from specbench.pricing.costs import COLUMNS, OF_SERVER, Costs, costs_of

REPORTS = (".json", ".jsonl", ".txt")
_MLX = re.compile(r"batch_size=(\d+)|Trial \d+:.*generation_tps=([\d.]+)")
LATENCY_ADVICE = (
    "says neither batch size nor length: run it with SAVE_TO_PYTORCH_BENCHMARK_FORMAT=1 and give "
    "the file FILE.pytorch.json beside it, or use `vllm bench serve --save-result`"
)


class Timed(NamedTuple):
    """A pass or a round, in every repeat."""

    model: str
    size: float  # of the model in bytes; 0 if the file does not say it
    rows: int  # of a pass; of a round its texts
    drafts: int  # of a round; 0 for a pass
    seconds: list[float]


def read_reports(paths: Sequence[Path], batches: Sequence[int] = ()) -> Costs:
    """Return the costs in reports of llama-bench or ``vllm bench``.

    Of two models the larger one is the target, or the first one where files do not say their sizes;
    without a second one drafts cost nothing. ``batches`` are 1 by default, or those of rounds that
    a server has measured.
    """
    timed = [entry for path in paths for entry in _entries(path)]
    names = [*dict.fromkeys(entry.model for entry in timed)]
    sizes = {entry.model: entry.size for entry in timed}
    names.sort(key=lambda name: -sizes[name])
    source = ", ".join(map(str, paths))
    require(
        1 <= len(names) <= 2,
        f"{source} has times of {len(names)} models: give those of a target and of one draft",
    )
    if any(entry.drafts for entry in timed):
        rows = [(e.rows, e.drafts, 0, seconds, 0.0) for e in timed for seconds in e.seconds[:1]]
        return costs_of(pd.DataFrame(rows, columns=list(COLUMNS)), source)
    by_rows: list[dict[int, list[float]]] = [{}, {}]
    for entry in timed:  # of llama-bench -p 1 and -n 32 the latter, which comes later
        by_rows[names.index(entry.model)][entry.rows] = entry.seconds
    of_target, of_draft = by_rows
    batches = sorted(batches) or [1]
    grid = sorted(of_target)
    gaps = (rows for rows, after in pairwise(grid) if after > 2 * rows)  # not to interpolate over
    longest = next(gaps, grid[-1]) // max(batches) - 1
    of_vllm = "vllm bench latency does, or add vllm bench serve with speculation"
    how = "llama-bench -p 1,2,3,4,5,6,8 -n 32" if any(map(sizes.get, names)) else of_vllm
    require(
        longest >= 1 and min(of_target) <= min(batches),
        f"{source} has passes of the target over {', '.join(map(str, sorted(of_target)))} tokens: "
        f"measure {min(batches)} to {2 * max(batches)} or more, as {how}",
    )
    require(
        not of_draft or (min(of_draft) <= batches[0] and batches[-1] <= max(of_draft)),
        f"{source} has passes of the draft over {', '.join(map(str, sorted(of_draft)))} tokens: "
        f"measure {', '.join(map(str, batches))} tokens, one for each text of a batch",
    )
    table = []
    for batch, length in product(batches, range(longest + 1)):
        target = _at(of_target, batch * (length + 1))
        drafting = length * (_at(of_draft, batch) if of_draft else np.zeros_like(target))
        repeats = enumerate(zip(target, drafting, strict=False))  # as many as both have
        table += [(batch, length, repeat, t + d, d) for repeat, (t, d) in repeats]
    costs = costs_of(pd.DataFrame(table, columns=list(COLUMNS)), source)
    return replace(costs, remark=OF_SERVER) if any(map(sizes.get, names)) else costs


def _at(seconds: Mapping[int, list[float]], rows: int) -> Any:
    """Return the seconds of a pass over so many rows in every repeat, interpolated."""
    grid = sorted(seconds)
    repeats = zip(*(seconds[number] for number in grid), strict=False)  # as many as all have
    return np.array([np.interp(rows, grid, repeat) for repeat in repeats])


def _entries(path: Path) -> Iterator[Timed]:
    """Yield what a file has timed."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".txt":
            yield from _of_mlx(text, path)
            return
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        content = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, ArithmeticError) as error:
        raise UsageError(
            f"cannot read {path} ({first_line(error)}): give what llama-bench -o json or vllm "
            "bench wrote"
        ) from error
    items = [item for part in content for item in (part if isinstance(part, list) else [part])]
    try:
        timed = [entry for item in items for entry in _entry(item, path)]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"{path} is no result of llama-bench or vllm bench ({type(error).__name__} {error}): "
            "give the file as it was written"
        ) from error
    require(len(timed) > 0, f"{path} has no times: give what llama-bench or vllm bench wrote")
    yield from timed


def _of_mlx(text: str, path: Path) -> Iterator[Timed]:
    """Yield the passes that mlx_lm.benchmark has timed with each batch size: one row a text."""
    seconds: dict[int, list[float]] = {}
    for rows, rate in _MLX.findall(text):
        if rows:
            seconds[int(rows)] = []
        elif seconds:
            seconds[batch := [*seconds][-1]].append(batch / float(rate))
    require(any(seconds.values()), f"{path} has no times of mlx_lm.benchmark: give what it printed")
    for batch, times in seconds.items():
        yield Timed(path.stem, 0.0, batch, 0, times)


def _entry(item: Mapping[str, Any], path: Path) -> Iterator[Timed]:
    if "n_prompt" in item:  # llama-bench
        name, size = str(item["model_filename"]), float(item.get("model_size", 0))
        times = [time / 1e9 for time in item.get("samples_ns") or [item["avg_ns"]]]
        if item["n_prompt"] and not item["n_gen"]:
            yield Timed(name, size, int(item["n_prompt"]), 0, times)
        elif item["n_gen"] and not item["n_prompt"]:
            yield Timed(name, size, 1, 0, [time / int(item["n_gen"]) for time in times])
    elif "mean_tpot_ms" in item:  # vllm bench serve
        texts = item.get("max_concurrency")
        require(
            texts is not None, f"{path} has no max_concurrency: repeat it with --max-concurrency B"
        )
        rounds = item.get("spec_decode_num_drafts") or 0
        drafts = round(item["spec_decode_draft_tokens"] / rounds) if rounds else 0
        emitted = float(item["spec_decode_acceptance_length"]) if rounds else 1.0
        seconds = [float(item["mean_tpot_ms"]) / 1e3 * emitted]
        yield Timed(str(item["model_id"]), 0.0, int(str(texts)), drafts, seconds)
    elif "benchmark" in item:  # vllm bench latency, with its options
        if item["metric"]["name"] == "latency":
            args = item["benchmark"]["extra_info"]["args"]
            require(
                not args.get("speculative_config"),
                f"{path} has a latency with speculation, which does not say how many tokens a "
                "round emits: use `vllm bench serve --save-result`",
            )
            times = [t / int(args["output_len"]) for t in item["metric"]["benchmark_values"]]
            yield Timed(str(item["model"]["name"]), 0.0, int(args["batch_size"]), 0, times)
    elif "latencies" in item:
        raise UsageError(f"{path} {LATENCY_ADVICE}")
    else:
        raise KeyError("n_prompt")
