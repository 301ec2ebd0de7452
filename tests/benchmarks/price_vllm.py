"""Decide for a vLLM server, and try the advice against N = 5 on the same server.

    python tests/benchmarks/price_vllm.py FOLDER mini mini-math 1

for a pair, a task and a temperature. One server drafts as many tokens as the address of a request
says (``tests/servers/switched``), so all numbers of drafts take turns. Rounds are timed with some
prompts, ``specbench decide`` gets their seconds and the target's texts, and other prompts are
decoded with the N of its advice, with N = 5 and with no drafts. A repeated command goes on.
"""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "servers"))

from serving import DRAWN, vllm_server  # noqa: E402

TIMED, AT_ONCE = (0, 1, 3, 5, 8), "1,4"
TIMED_PROMPTS, PROMPTS, TRIED_PROMPTS = "48", "100", "160"


def specbench(*words):
    subprocess.run([sys.executable, "-m", "specbench", *map(str, words)], check=True)


def decode(url, folder, lengths, *options):
    """Decode prompts with each number of drafts in turns."""
    arms = [f"--server=n{length}={url}/n{length}" for length in lengths]
    at_once = ["--concurrency", AT_ONCE, "--batch-size", "8"]
    specbench("run", *arms, *at_once, *options, "--output", folder, "--no-progress")


def costs(samples):
    """Return the seconds of a round by requests at once and drafts, as ``decide`` reads them.

    The first event of an answer may arrive with later ones, so reading a prompt takes the median
    of all requests.
    """
    samples = samples.assign(
        draft_length=samples["method"].str.removeprefix("n").astype(int),
        batch_size=samples["settings"].str.removeprefix("concurrency=").astype(int),
    )
    without = samples["draft_length"] == 0  # a round of one token each, but the first
    samples.loc[without, "rounds"] = samples["output_tokens"] - 1
    reading = samples.groupby("batch_size")["prefill_seconds"].transform("median")
    writing = samples["prefill_seconds"] + samples["decode_seconds"] - reading
    # The times of texts at once are shares of the elapsed time.
    samples["seconds"] = samples["batch_size"] * writing
    sums = samples.groupby(["batch_size", "draft_length"])[["seconds", "rounds"]].sum()
    return (sums["seconds"] / sums["rounds"]).rename("round_seconds").reset_index()


def advice(decision):
    """Return the N of the fastest setting at each batch size, 0 where none is shown to pay."""
    best = decision.loc[decision.groupby("batch_size")["speedup"].idxmax()]
    return best["draft_length"].where(best["verdict"] == "pays", 0)


def main(name, pair, task, temperature):
    folder, models = Path(name), ["--pair", pair, "--temperature", temperature]
    texts, prompts = folder / "texts", folder / "prompts.jsonl"
    specbench("price", *models, "-t", task, "-n", PROMPTS, "--seed", "6", "--output", texts)
    lines = map(json.loads, (texts / "examples.jsonl").read_text().splitlines())
    # Without the task's stop strings, after which vLLM tells no rounds.
    prompts.write_text("".join(json.dumps({"prompt": line["prompt"]}) + "\n" for line in lines))
    with vllm_server(pair, DRAWN, most_drafts=max(TIMED)) as url:
        options = ["--prompts", prompts, "--max-new-tokens", "48", "-n", TIMED_PROMPTS]
        decode(url, folder / "timed", TIMED, *models, *options)
        costs(pd.read_csv(folder / "timed" / "samples.csv")).to_csv(
            folder / "costs.csv", index=False
        )
        options = ["--costs", folder / "costs.csv", "--batch-size", AT_ONCE, "--drafter", "model"]
        specbench("decide", texts, *options)
        decision = pd.read_csv(texts / "decision" / "decision.csv")
        lengths = sorted({*advice(decision), 0, 5})
        options = ["-t", task, "-n", TRIED_PROMPTS, "--seed", "7"]
        decode(url, folder / "tried", lengths, *models, *options)
    specbench("compare", folder / "tried", "--against", "n5", "--margin", "5")


if __name__ == "__main__":
    main(*sys.argv[1:])
