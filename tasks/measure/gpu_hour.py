"""Test and time specbench on a GPU in about an hour, and write one page about it.

    python tasks/measure/gpu_hour.py [PART ...] [--output FOLDER] [--sources FILE] [--rehearse]

Without names, all parts run. A part is one command that takes at most 9 minutes. Parts that
succeeded before are skipped, and a part that fails does not stop the others. FOLDER gets the output
of every part, the tables of every benchmark, and ``page.md``, which begins with the targets.

The parts ``larger-...`` train a pair on source code and measure it. Where the packages differ from
the recipe's, FILE has their texts (``tasks/make_pair.py --pack``). ``--rehearse`` runs these parts
and those of refilled batches at small size on the CPU, before a GPU is paid for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from specbench.files import write_atomically

LIMIT = 9 * 60  # seconds of a part
PAIRS = ("llama", "qwen2.5-coder", "qwen3", "gemma3")
BUNDLED = {
    "mini": "mini-code,mini-headline,mini-math,mini-news",
    "python": "python-block,python-docstring,python-line",
}
BENCH = {
    "--load-format": "dummy",
    "--device": "cuda",
    "--batch-size": "1,4,32",
    "--acceptance": "0.5,0.7,0.8,0.9",
    "--repeats": "5",
}
# The last rates are those of an EAGLE-3 head by position.
RATES = "0.5,0.7,0.8,0.74/0.53/0.51/0.59"
REFILLED = {"small": "1,4,16", "large": "32,64"}  # batch sizes
SANITIZER = "compute-sanitizer"
SHOWN = 250  # lines of a part on the page
FEW = 20  # lines of the messages of a part that failed
FIRST = ("targets", "head-update")  # on the page
OK, SKIPPED = "ok", "skipped"
ENVIRONMENT = "environment.json"
DESCRIBE = """
import json
from specbench.experiment.environment import describe_environment
print(json.dumps(describe_environment()))
"""
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VLLM = str(ROOT / ".servers-gpu/bin/vllm")
KERNELS = tuple(f"tests/engine/test_{name}.py" for name in ("math", "fused"))
REPLAYS = "tests/decoding/test_replays.py"
ENGINES = "tests/decoding/test_gpu.py"


LARGER, REHEARSAL = ROOT / "tasks/pretraining/larger.toml", HERE / "rehearsal.toml"
RULES = "autoregressive,sd,static,cooled,lossy,typical,gated,entropy-verify,ears,fly,mars,diversed"
SETTINGS = (
    "weight=0.2,0.4,0.6,0.8,0.9,cooled_weight=0.4,0.6,0.8,1,both_temperature=0.8,"
    "lenience=0.3,0.6,epsilon=0.05,0.1,window=1,3"
)
LENGTHS = ("--draft-length", "1,3,5,8")
SEEDS = (0, 1, 2)  # of the heads of the larger pair


class Part(NamedTuple):
    """A command, and why it runs."""

    name: str
    purpose: str
    command: Sequence[str]
    needs: str = ""  # a program without which it is skipped, if not the command's own

    def done(self, folder: Path) -> dict[str, Any] | None:
        """Return the record of an earlier run; None without one."""
        file = folder / f"{self.name}.json"
        return dict(json.loads(file.read_text())) if file.exists() else None


def parts(
    folder: Path, pairs: Sequence[str] = PAIRS, changes: Mapping[str, str] | None = None
) -> list[Part]:
    """Return all parts, the most important ones first; ``changes`` replace options of ``bench``."""
    python, options = sys.executable, BENCH | dict(changes or {})
    specbench = [python, "-m", "specbench"]
    tests = [python, "-m", "pytest", "-m", "gpu", "-q", "-rsP"]
    device = ["--device", options["--device"]]

    def bench(kind: str, pair: str, purpose: str, **settings: str) -> Part:
        chosen = options | {f"--{name.replace('_', '-')}": text for name, text in settings.items()}
        words = [word for option in chosen.items() for word in option]
        name = f"{kind}-{pair}"
        to = ["--output", str(folder / name), "--no-progress"]
        return Part(name, purpose, [*specbench, "bench", "--pair", pair, *words, *to])

    def of_pair(pair: str) -> list[Part]:
        few = {"acceptance": "0.8", "method": "autoregressive,sd"}
        three = {"method": "autoregressive,sd,diversed", "engine": "auto"}
        both = {"engine": "auto,eager"}
        compiled = {"engine": "auto,compile", "batch_size": "1"}
        theirs = [python, str(HERE / "transformers_speed.py"), "--pair", pair, *device]
        rates = ["--load-format", "dummy", "--acceptance", "0.7,0.8", "--prompt-tokens", "512"]
        listed = [python, str(HERE / "attention_kernels.py"), "--pair", pair, *device]
        return [
            bench("bench", pair, "graphs at batch 1, 4 and 32", **three),
            Part(f"transformers-{pair}", "graphs beside Transformers", [*theirs, *rates]),
            Part(f"attention-{pair}", "the attention kernels of the engines", listed),
            bench("compile", pair, "graphs beside compiled code", **few | compiled),
            bench("eager", pair, "graphs beside the eager engine", **few | both),
        ]

    first, *others = pairs
    marks = [python, str(HERE / "marks.py"), str(folder / f"bench-{first}")]
    update = [python, str(HERE / "head_update.py"), *device]
    checked = [SANITIZER, "--error-exitcode", "1", *specbench, "bench"]
    checked += ["--prompt-tokens", "8", "--new-tokens", "8", "--repeats", "1", *device]
    checked += ["--method", "sd", "--output", str(folder / "sanitizer"), "--no-progress"]
    run = [*specbench, "run", "--method", "all", "--limit", "10", *device, "--no-progress"]
    runs = [
        Part(
            f"methods-{pair}",
            f"all methods on the bundled pair {pair}",
            [*run, "--pair", pair, "--task", tasks, "--output", str(folder / "runs" / pair)],
        )
        for pair, tasks in BUNDLED.items()
    ]
    timed, *slower = of_pair(first)
    rules = [python, str(HERE / "servers/proof.py"), str(folder / "vllm"), *device]
    rest = [f"--ignore={file}" for file in (*KERNELS, REPLAYS, ENGINES)]
    return [
        *refilled(folder, options["--device"], first),
        Part("kernels", "layers in bfloat16 against MATH, draws against a CPU", [*tests, *KERNELS]),
        Part("replays", "1,000 replays against eager passes", [*tests, REPLAYS]),
        Part("engines", "texts of all engines", [*tests, ENGINES]),
        Part("sanitizer", "invalid memory accesses of a short run", checked),
        timed,
        Part("targets", "the targets, all with graphs and N = 5", marks),
        Part("head-update", "a head's update at Llama's sizes", update),
        *slower,
        *runs,
        Part("vllm", "rules inside vLLM, with CUDA graphs", rules, VLLM),
        *(part for pair in others for part in of_pair(pair)),
        Part("tests", "all other tests", [*tests, *rest]),
    ]


def refilled(folder: Path, device: str, pair: str, rehearse: bool = False) -> list[Part]:
    """Return the parts that time batches whose rows are always full, as those of a server."""
    bench = [sys.executable, "-m", "specbench", "bench", "--pair", pair, "--device", device]
    bench += ["--method", "autoregressive,sd", "--acceptance", RATES, "--draft-length", "2,5"]
    bench += ["--refill", "2", "--no-progress"]
    small = ["--prompt-tokens", "8", "--new-tokens", "8", "--repeats", "2"]
    bench += small if rehearse else ["--load-format", "dummy", "--repeats", "3"]
    return [
        Part(
            f"refilled-{size}-{pair}",
            f"tokens/s of batches of {batches} that are refilled",
            [*bench, "--batch-size", batches, "--output", str(folder / f"refilled-{size}-{pair}")],
        )
        for size, batches in REFILLED.items()
    ]


def larger_pair(
    folder: Path, device: str, sources: Path | None = None, rehearse: bool = False
) -> list[Part]:
    """Return the parts that train a pair on source code, judge rules on it, and price it."""
    python, home = sys.executable, folder / "larger"
    pair = REHEARSAL if rehearse else LARGER
    make = [python, str(ROOT / "tasks/make_pair.py"), str(pair), "--device", device]
    make += ["--output", str(home), *(["--sources", str(sources)] if sources else [])]
    models = ["--target", str(home / "target"), "--draft", str(home / "draft")]

    def on_pair(command: str, *options: str) -> list[str]:
        task = ["-t", "python-line", "--temperature", "0.4", "--device", device, "--no-progress"]
        return [python, "-m", "specbench", command, *models, *task, *options]

    # On the pair python, only heads that were trained for agreement were above both fronts.
    recipe = ["--seed", ",".join(map(str, SEEDS)), "--head-kind", "features"]
    recipe += ["--reward", "agreement", "--resume", "--output", str(home / "heads")]
    recipe += ["--steps", "2", "--prompts-per-step", "4"] if rehearse else []
    run, lengths = home / "run", home / "lengths"
    heads = ",".join(str(home / "heads" / f"seed-{seed}" / "python-line") for seed in SEEDS)
    few = ["--limit", "12", "--batch-size", "6"]
    prompts = few if rehearse else ["--limit", "500", "--batch-size", "50"]
    judged = ["-m", RULES, "--set", SETTINGS, "--head", heads, *prompts, "--output", str(run)]
    measured = ["-m", "sd", *LENGTHS, *prompts, "--output", str(lengths)]
    decided = ["--batch-size", "1,2" if rehearse else "1,2,4,8,16,32"]
    decided += ["--limit", "10" if rehearse else "100", "--output", str(home / "decision")]
    specbench = [python, "-m", "specbench"]
    return [
        *(
            Part(f"larger-{role}", f"training of the {role}", [*make, "--model", role])
            for role in ("target", "draft")
        ),
        Part("larger-heads", "DIVERSED on the larger pair", on_pair("train", *recipe)),
        Part("larger-run", "rules that ship and DIVERSED", on_pair("run", *judged)),
        Part(
            "larger-front",
            "methods above the static front, at equal acceptance",
            [*specbench, "compare", str(run), "--at", "acceptance"],
        ),
        Part("larger-lengths", "tokens per round by draft length", on_pair("run", *measured)),
        Part(
            "larger-price",
            "tokens per round, predicted and measured",
            [*specbench, "price", str(lengths), *models, "--device", device, *LENGTHS],
        ),
        Part("larger-decide", "batches at which speculation pays", on_pair("decide", *decided)),
    ]


def machine() -> dict[str, Any]:
    """Describe the machine, in another process: this one must not use the GPU during timing."""
    return dict(json.loads(subprocess.check_output([sys.executable, "-c", DESCRIBE])))


def hour(
    chosen: Sequence[Part],
    all_parts: Sequence[Part],
    folder: Path,
    environment: Mapping[str, Any],
    limit: float = LIMIT,
) -> bool:
    """Run the chosen parts that have not succeeded; write the page about all known ones.

    Returns whether all chosen parts succeeded or were skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / ENVIRONMENT, json.dumps(environment))
    good = True
    for part in chosen:
        before = part.done(folder)
        if before is None or before["result"] != OK:
            print(f"{part.name}: {part.purpose}", file=sys.stderr)
            record = {**run_part(part, folder, limit), "machine": name_of(environment)}
            good = good and record["result"] in (OK, SKIPPED)
            write_atomically(folder / f"{part.name}.json", json.dumps(record))
            write_atomically(folder / "page.md", "\n".join(page(all_parts, folder, environment)))
            print(f"{part.name}: {record['result']}", file=sys.stderr)
    return good


def run_part(part: Part, folder: Path, limit: float) -> dict[str, Any]:
    """Run a command for at most ``limit`` seconds.

    Its output goes to ``NAME.txt``, its messages go to ``NAME.log``.
    """
    if shutil.which(needed := part.needs or part.command[0]) is None:
        return {"result": SKIPPED, "note": f"{needed} is not installed", "seconds": 0}
    shutil.rmtree(folder / part.name, ignore_errors=True)  # of an attempt that failed
    began = time.monotonic()
    output, messages = (folder / f"{part.name}.{kind}" for kind in ("txt", "log"))
    with output.open("w") as stdout, messages.open("w") as stderr:
        process = subprocess.Popen(
            part.command,
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            result = OK if code == 0 else f"failed (exit code {code})"
        except subprocess.TimeoutExpired:
            result = f"stopped after {limit / 60:.3g} minutes"
        finally:
            stop(process)
    return {"result": result, "seconds": round(time.monotonic() - began, 1)}


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a command and all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def page(all_parts: Sequence[Part], folder: Path, environment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the page: the machine, the state of every part, and their output."""
    torch = environment["torch"]
    versions = {package: environment["packages"][package] for package in ("torch", "transformers")}
    versions |= {key: torch[key] for key in ("cuda", "cudnn", "driver") if key in torch}
    yield f"# specbench on {name_of(environment)}\n"
    versions |= {"Python": environment["python"], "commit": environment["git"]["commit"][:12]}
    yield f"{environment['started']}: {', '.join(f'{key} {versions[key]}' for key in versions)}\n"
    yield "| part | question | result | seconds | machine |"
    yield "|---|---|---|--:|---|"
    records = {part.name: part.done(folder) for part in all_parts}
    for part in all_parts:
        row = records[part.name] or {"result": "not run", "seconds": "", "machine": ""}
        result = ": ".join(filter(None, (row["result"], row.get("note"))))
        cells = (f"`{part.name}`", part.purpose, result, str(row["seconds"]), row["machine"])
        yield f"| {' | '.join(cells)} |"
    for part in sorted(all_parts, key=lambda part: part.name not in FIRST):
        record = records[part.name]
        if record is None or record["result"] == SKIPPED:
            continue
        yield f"\n## {part.purpose[0].upper()}{part.purpose[1:]} (`{part.name}`)\n\n```text"
        yield from lines(folder / f"{part.name}.txt", SHOWN)
        if record["result"] != OK:
            yield from lines(folder / f"{part.name}.log", FEW)
        yield "```"
    yield ""


def name_of(environment: Mapping[str, Any]) -> str:
    """Return the name of the GPUs, or of the processor if there are none."""
    gpus = environment["torch"].get("gpus", [])
    return ", ".join(gpu["name"] for gpu in gpus) or str(environment["cpu"]["model"])


def lines(file: Path, most: int) -> list[str]:
    """Return the last lines of a file."""
    return file.read_text(errors="replace").splitlines()[-most:]


def main() -> None:
    """Run the named parts, or all; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="*", help="default: all")
    parser.add_argument("--output", type=Path, default=Path("results/gpu"))
    parser.add_argument("--sources", type=Path, help="texts of tasks/make_pair.py --pack")
    parser.add_argument("--rehearse", action="store_true", help="the larger pair, small, on a CPU")
    options = parser.parse_args()
    device = "cpu" if options.rehearse else BENCH["--device"]
    larger = larger_pair(options.output, device, options.sources, options.rehearse)
    every = parts(options.output)
    if options.rehearse:
        every = refilled(options.output, device, "mini", rehearse=True)
    every += larger
    by_name = {part.name: part for part in every}
    if unknown := set(options.part) - by_name.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}: choose from {', '.join(by_name)}")
    environment = machine()
    if not environment["torch"].get("gpus") and not options.rehearse:
        parser.error("PyTorch finds no CUDA device")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the running part as well
    chosen = [by_name[name] for name in options.part or by_name]
    good = hour(chosen, list(by_name.values()), options.output, environment)
    print(options.output / "page.md")
    sys.exit(not good)


if __name__ == "__main__":
    main()
