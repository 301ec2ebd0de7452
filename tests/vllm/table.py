"""Measure six rules in vLLM beside our engines, at several numbers of texts at once.

    python tests/vllm/table.py FOLDER [--pair mini --task mini-math --limit 96] [--engine compile]

One run per number of texts at once, in which all arms take turns: six rules in our engine, and in
one vLLM server the same rules and vLLM's own verification. ``--plain`` measures a server without
speculation in their place, beside the same methods. A repeated command goes on. Then
``specbench table FOLDER/*`` prints the tables, and ``specbench plot pareto`` draws each run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "servers"))

from serving import DRAWN, PLAIN, vllm_server  # noqa: E402

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
    parser.add_argument("--plain", action="store_true", help="a server without speculation")
    options = parser.parse_args()
    head = f"diversed:head={HEADS[options.task]}"
    rules = {name: head if name == "diversed" else name for name in METHODS}
    rules |= {"vllm": "vllm"}
    drafts, rule = (PLAIN, "") if options.plain else (DRAWN, head)
    with vllm_server(options.pair, drafts, rule=rule) as url:
        for number in options.at_once:
            kind = "plain" if options.plain else options.engine
            settings = {
                "pair": options.pair,
                "task": options.task,
                "limit": options.limit,
                "temperature": options.temperature,
                "seed": 1,
                "engine": options.engine,
                "method": ",".join(METHODS),
                "batch-size": number,
                "concurrency": number,
                "output": options.folder / f"{options.task}-{kind}-{number}",
            }
            command = [sys.executable, "-m", "specbench", "run", "--no-progress"]
            command += [f"--{name}={value}" for name, value in settings.items()]
            if options.plain:
                command.append(f"--server=vllm-plain={url}")
            else:
                command += [f"--server=vllm-{name}={url}" for name in rules]
                command.append("--rule=" + ",".join(f"vllm-{n}={r}" for n, r in rules.items()))
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
