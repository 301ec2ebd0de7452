"""Compare the acceptance of vLLM with that of specbench's own loop, on the same prompts.

    python tasks/measure/servers/acceptance.py FOLDER [--pair mini] [--task mini-math] [--limit 200]

Four servers (without drafts, with greedy, drawn and n-gram drafts) are arms of one run per
temperature. ``sd`` decodes the same prompts with the same drafters. A server takes its first token
from the prompt, without a draft, so ``sd`` continues each prompt and the server's first token.
Intervals are 95 %; differences are paired by prompt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from serving import DRAFT_LENGTH, DRAFTS, DRAWN, GREEDY, PLAIN, TEXTS, vllm_server

from specbench.analysis.statistics.intervals import Interval, interval, ratio
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.model import GreedyDrafter, ModelDrafter
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading
from specbench.engine.prompts import encode
from specbench.methods.strict import sd
from specbench.runs.model import SampleRecord
from specbench.runs.run import Run, read_run

TEMPERATURES = (1.0, 0.0)
DRAFTERS = {GREEDY: GreedyDrafter(), DRAWN: ModelDrafter()}  # of specbench, by the server's drafts
CONTINUED = "continued.json"
BLOCK = 40  # prompts that a server gets before another one
COUNTS = ("accepted", "rounds", "proposed")

Counts = dict[str, list[int]]
"""The sums of each text by the id of its prompt, in the order of ``COUNTS``."""


def main() -> None:
    """Measure, then print the table and write it to ``TASK.csv``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pair", default="mini")
    parser.add_argument("--task", default="mini-math")
    parser.add_argument("--limit", type=int, default=200)
    options = parser.parse_args()
    folders = {t: options.folder / f"{options.task}-T{t:g}" for t in TEMPERATURES}
    measure(folders, options.pair, options.task, options.limit)
    rows = []
    for folder in folders.values():
        rows += compared(read_run(folder))
    table = pd.DataFrame(rows)
    table.to_csv(options.folder / f"{options.task}.csv", index=False)
    print(table.T.to_string())


def measure(folders: dict[float, Path], pair: str, task: str, limit: int) -> None:
    """Run what is not finished, with all servers at once."""
    with ExitStack() as stack:
        urls = {drafts: stack.enter_context(vllm_server(pair, drafts)) for drafts in DRAFTS}
        for temperature, folder in folders.items():
            settings = {
                "pair": pair,
                "task": task,
                "limit": limit,
                "seed": 1,
                "temperature": temperature,
                "concurrency": TEXTS,
                "batch-size": BLOCK,
                "output": folder,
            }
            command = [sys.executable, "-m", "specbench", "run"]
            command += [f"--{name}={value}" for name, value in settings.items()]
            command += [f"--server={drafts}={url}" for drafts, url in urls.items()]
            subprocess.run(command, check=True)


def compared(run: Run) -> list[dict[str, Any]]:
    """Return a row per server that drafts."""
    texts: dict[str, dict[str, SampleRecord]] = {}
    for record in run.records():
        texts.setdefault(record.method, {})[record.sample_id] = record
    rows = []
    for drafts in sorted(texts.keys() - {PLAIN}):
        theirs = {key: counts_of(r) for key, r in texts[drafts].items() if r.rounds}
        row: dict[str, Any] = {"run": run.folder.name, "server": drafts, **described(theirs)}
        if drafter := DRAFTERS.get(drafts):
            row |= difference(theirs, continued(run, drafts, drafter, texts[drafts]))
        plain = texts.get(PLAIN, {})
        same = sum(texts[drafts][key].token_ids == plain[key].token_ids for key in plain)
        rows.append(row | {"texts like plain": same if plain else None})
    return rows


def continued(
    run: Run, drafts: str, drafter: DrafterKind, texts: dict[str, SampleRecord]
) -> Counts:
    """Return the counts of ``sd`` after each prompt and the first token of a server's text."""
    path = run.folder / CONTINUED
    stored: dict[str, Counts] = json.loads(path.read_text()) if path.exists() else {}
    if drafts not in stored:
        pair = load_pair(run.pair, Loading(device="cpu", dtype="float32"))
        ((name, task),) = run.tasks.items()
        requests = []
        for key, record in texts.items():
            if record.token_ids and (record.output_tokens or 0) > 1:
                prompt = encode(pair.tokenizer, run.examples[name][key].prompt).ids
                requests.append(Request([*prompt, record.token_ids[0]], key))
        options = DecodeOptions(
            run.settings.part(Sampling),
            DRAFT_LENGTH,
            task.max_new_tokens - 1,
            seed=run.settings.seed,
            stop=task.stop,
            batch_size=TEXTS,
            drafter=drafter,
        )
        stored[drafts] = {}
        for number, text in decode_all(pair, sd, requests, options):
            rounds = text.rounds
            sums = sum(r.accepted for r in rounds), len(rounds), sum(r.proposed for r in rounds)
            stored[drafts][requests[number].key] = [*sums]
        path.write_text(json.dumps(stored))
    return stored[drafts]


def counts_of(record: SampleRecord) -> list[int]:
    """Return a record's counts."""
    return [getattr(record, name) for name in COUNTS]


def described(counts: Counts) -> dict[str, Any]:
    """Return the tokens per round and the acceptance of texts."""
    sums = np.array([*counts.values()], dtype=float)
    return {
        "prompts": len(sums),
        "rounds": int(sums[:, 1].sum()),
        "tokens/round": shown(interval(sums, lambda totals: 1 + ratio(totals[..., [0, 1]]))),
        "accepted/drafted": shown(interval(sums, lambda totals: ratio(totals[..., [0, 2]]))),
    }


def difference(theirs: Counts, ours: Counts) -> dict[str, Any]:
    """Return the values of ``sd``, and the server's less those."""
    keys = [key for key in theirs if key in ours]
    sums = np.array([theirs[key] + ours[key] for key in keys], dtype=float)

    def minus(totals: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        return ratio(totals[..., [0, count]]) - ratio(totals[..., [3, 3 + count]])

    return {
        **{f"sd {name}": value for name, value in described({k: ours[k] for k in keys}).items()},
        "difference in tokens/round": shown(interval(sums, lambda totals: minus(totals, 1))),
        "in accepted/drafted": shown(interval(sums, lambda totals: minus(totals, 2))),
        "equal counts": sum(theirs[key] == ours[key] for key in keys),
    }


def shown(value: Interval) -> str:
    """Return a value with its interval."""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*value[:3])


if __name__ == "__main__":
    main()
