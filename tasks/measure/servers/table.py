"""Measure six rules in vLLM beside our engines, at several numbers of texts at once.

    python tasks/measure/servers/table.py FOLDER [--pair mini --task mini-math --limit 96]
        [--engine compile]

One run per number of texts at once, in which all arms take turns: six rules in our engine, in one
vLLM server the same rules and vLLM's own verification, and a vLLM server without speculation. A
repeated command goes on. Then ``specbench table FOLDER/*`` prints the tables, and ``specbench plot
pareto`` draws each run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from serving import DRAWN, PLAIN, vllm_server

HEADS = {"mini-math": "mini/mini-math", "python-line": "python/python-line"}
METHODS = ("sd", "static", "lossy", "typical", "gated", "diversed")
AT_ONCE = (16, 4, 1)


def main() -> None:
    """Run what is not finished."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pair", default="mini")
    parser.add_argument("--task", default="mini-math", choices=[*HEADS])
    parser.add_argument("--limit", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--at-once", type=int, nargs="*", default=AT_ONCE)
    parser.add_argument("--engine", default="eager")
    options = parser.parse_args()
    head = f"diversed:head={HEADS[options.task]}"
    rules = {name: head if name == "diversed" else name for name in METHODS} | {"vllm": "vllm"}
    with (
        vllm_server(options.pair, DRAWN, rule=head) as speculating,
        vllm_server(options.pair, PLAIN) as plain,
    ):
        for number in options.at_once:
            settings = {
                "pair": options.pair,
                "task": options.task,
                "limit": options.limit,
                "temperature": options.temperature,
                "seed": 1,
                "engine": options.engine,
                "method": ",".join(("autoregressive", *METHODS)),
                "batch-size": number,
                "concurrency": number,
                "output": options.folder / f"{options.task}-{options.engine}-{number}",
                "rule": ",".join(f"vllm-{name}={rule}" for name, rule in rules.items()),
            }
            command = [sys.executable, "-m", "specbench", "run", "--no-progress"]
            command += [f"--{name}={value}" for name, value in settings.items()]
            command += [f"--server=vllm-{name}={speculating}" for name in rules]
            subprocess.run([*command, f"--server=vllm-plain={plain}"], check=True)


if __name__ == "__main__":
    main()
