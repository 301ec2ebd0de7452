"""Drafters beside each other by N and temperature, over all tasks of some runs.

    python tests/benchmarks/drafters.py RUN...

Each field: tokens per round, milliseconds of drafting per round and milliseconds per token, prefill
included. Below, each head's ratios to the draft model at every N, paired by prompt.
"""

import sys
from pathlib import Path

import pandas as pd

from specbench.analysis.intervals import cluster_sums, interval, paired_ratio
from specbench.runs.frames import read_samples
from specbench.table import with_interval

HEADS, NONE = ("eagle3", "mtp"), "none"
RATIOS = {
    "tokens per round": ("output_tokens", "rounds"),
    "draft time per round": ("draft_seconds", "rounds"),
    "time per token": ("seconds", "output_tokens"),
}


def lossless(*runs: Path) -> pd.DataFrame:
    """Return the samples of ``sd`` and of no speculation."""
    samples = read_samples(*runs)
    samples = samples[samples["method"].isin(["sd", "autoregressive"])]
    seconds = samples["prefill_seconds"] + samples["decode_seconds"]
    prompt = samples["task"] + " " + samples["sample_id"]
    return samples.assign(seconds=seconds, prompt=prompt, drafter=samples["drafter"].fillna(NONE))


def table(samples: pd.DataFrame) -> str:
    """Return the table in Markdown."""
    totals = samples.groupby(["drafter", "draft_length", "temperature"], sort=False).sum(
        numeric_only=True
    )
    temperatures = sorted(samples["temperature"].unique())
    lines = [f"| drafter, N | {' | '.join(f'T = {t:g}' for t in temperatures)} |"]
    lines.append("|---|" + "--:|" * len(temperatures))
    for drafter, n in dict.fromkeys((drafter, n) for drafter, n, _ in totals.index):
        cells = []
        for temperature in temperatures:
            total = totals.loc[(drafter, n, temperature)]
            rounds, tokens = total["rounds"], total["output_tokens"]
            drafting, per_token = 1000 * total["draft_seconds"], 1000 * total["seconds"] / tokens
            cells.append(f"{tokens / rounds:.2f}, {drafting / rounds:.1f}, {per_token:.1f}")
        name = f"`{drafter}`, {n}" if n else drafter
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratios(samples: pd.DataFrame) -> str:
    """Return the table of heads relative to the draft model in Markdown."""
    lines = [f"| head, T, N | {' | '.join(RATIOS)} |", "|---|" + "--:|" * len(RATIOS)]
    cells = dict([*samples.groupby(["drafter", "temperature", "draft_length"])])
    for (drafter, temperature, n), rows in cells.items():
        if drafter not in HEADS:
            continue
        base = cells["model", temperature, n].set_index("prompt").loc[rows["prompt"]]
        fields = []
        for names in RATIOS.values():
            terms = [part[name].to_numpy() for part in (rows, base) for name in names]
            _, sums = cluster_sums([*zip(*terms, strict=True)], rows["prompt"])
            fields.append(with_interval(*interval(sums, paired_ratio, log=True)[:3], ".2f"))
        lines.append(f"| `{drafter}`, {temperature:g}, {n} | {' | '.join(fields)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    measured = lossless(*map(Path, sys.argv[1:]))
    print(f"{table(measured)}\n\n{ratios(measured)}")
