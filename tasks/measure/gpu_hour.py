"""Test and time specbench on a GPU in about an hour, and write one page about it.

    python tasks/measure/gpu_hour.py [PART ...] [--output FOLDER] [--minutes M] [--sources FILE]
        [--rehearse]

The parts are the commands of ``gpu_hour.toml``, the most important ones first; without names, all
run. A part takes at most 9 minutes. Parts that succeeded before are skipped, and a part that fails
does not stop the others. With ``--minutes``, no part begins that is expected to last longer than
what is left of M minutes, and the last one is stopped then. FOLDER gets the output of every part,
the tables of every benchmark, and ``page.md``, which begins with the targets.

The parts ``larger-...`` train a pair on source code and measure it. Where the packages differ from
the recipe's, FILE has their texts (``tasks/make_pair.py --pack``). ``--rehearse`` runs all parts at
small size on the CPU, before a GPU is paid for; tests that need a GPU are only collected there.
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
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from shlex import quote, split
from typing import Any, NamedTuple

from specbench.files import write_atomically

LIMIT = 9 * 60  # seconds of a part
SHOWN = 250  # lines of a part on the page
FEW = 20  # lines of the messages of a part that failed
FIRST = ("targets", "head-update")  # on the page
OK, SKIPPED, NOT_RUN = "ok", "skipped", "not run"
ENVIRONMENT = "environment.json"
DESCRIBE = """
import json
from specbench.experiment.environment import describe_environment
print(json.dumps(describe_environment()))
"""
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: What the larger pair is made from, on a GPU and in a rehearsal.
LARGER, REHEARSAL = ROOT / "tasks/pretraining/larger.toml", HERE / "rehearsal.toml"
HEADS = "{folder}/larger-heads/seed-{seed}/python-line"
PROGRAMS = {"specbench": ("-m", "specbench"), "pytest": ("-m", "pytest"), "python": ()}


class Part(NamedTuple):
    """A command, and why it runs."""

    name: str
    purpose: str
    command: Sequence[str]
    minutes: float = 1  # expected on an H200
    needs: str = ""  # a program without which it is skipped, if not the command's own
    after: Sequence[str] = ()  # parts whose results it reads


def parts(folder: Path, rehearse: bool = False, sources: Path | None = None) -> list[Part]:
    """Return the parts of ``gpu_hour.toml``, the most important ones first."""
    values = {
        "python": quote(sys.executable),
        "folder": quote(str(folder)),
        "recipe": quote(str(REHEARSAL if rehearse else LARGER)),
        "sources": f"--sources {quote(str(sources))}" if sources else "",
        "heads": ",".join(HEADS.format(folder=quote(str(folder)), seed=n) for n in range(3)),
    }
    first: list[Part] = []
    others: list[Part] = []
    for name, entry in tomllib.loads((HERE / "gpu_hour.toml").read_text()).items():
        for number, pair in enumerate(entry.pop("pairs", [""])):
            if not (number and rehearse):
                (others if number else first).append(part_of(name, entry, pair, values, rehearse))
    return first + others


def part_of(
    name: str, entry: Mapping[str, Any], pair: str, values: Mapping[str, str], rehearse: bool
) -> Part:
    """Return a part for a pair, from its entry in ``gpu_hour.toml``."""
    part = name.format(pair=pair)
    line = entry["command"] + (f" {entry.get('rehearse', '')}" if rehearse else "")
    own = {"pair": pair, "output": f"{values['folder']}/{part}"}
    program, *options = split(line.format(**values, **own))
    if program in PROGRAMS:
        options = [*PROGRAMS[program], *options]
        program = sys.executable
    needs = str(ROOT / entry["needs"]) if "needs" in entry else ""
    command, minutes, after = [program, *options], entry.get("minutes", 1), entry.get("after", ())
    return Part(part, entry["question"], command, minutes, needs, after)


def machine() -> dict[str, Any]:
    """Describe the machine, in another process: this one must not use the GPU during timing."""
    return dict(json.loads(subprocess.check_output([sys.executable, "-c", DESCRIBE])))


def hour(
    chosen: Sequence[Part],
    all_parts: Sequence[Part],
    folder: Path,
    environment: Mapping[str, Any],
    limit: float = LIMIT,
    minutes: float = inf,
) -> bool:
    """Run the chosen parts that have not succeeded; write the page about all known ones.

    ``limit`` is in seconds, for each part; ``minutes`` are those of all parts together. Returns
    whether all parts that began succeeded or were skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / ENVIRONMENT, json.dumps(environment))
    end, good = time.monotonic() + 60 * minutes, True
    for part in chosen:
        left = end - time.monotonic()
        if succeeded(part.name, folder):
            continue
        lacking = [name for name in part.after if not succeeded(name, folder)]
        if lacking:
            print(f"{part.name}: not begun, it reads {', '.join(lacking)}", file=sys.stderr)
        elif 60 * part.minutes > left:
            print(f"{part.name}: not begun, it takes about {part.minutes:g} min", file=sys.stderr)
        else:
            print(f"{part.name}: {part.purpose}", file=sys.stderr)
            record = run_part(part, folder, min(limit, left))
            record["machine"] = name_of(environment)
            good = good and record["result"] in (OK, SKIPPED)
            write_atomically(folder / f"{part.name}.json", json.dumps(record))
            write_atomically(folder / "page.md", "\n".join(page(all_parts, folder, environment)))
            print(f"{part.name}: {record['result']}", file=sys.stderr)
    return good


def record_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the record of a part's last run; of none, one that says so."""
    file = folder / f"{name}.json"
    empty = {"result": NOT_RUN, "seconds": "", "machine": ""}
    return dict(json.loads(file.read_text())) if file.exists() else empty


def succeeded(name: str, folder: Path) -> bool:
    """Return whether a part has succeeded before."""
    return bool(record_of(name, folder)["result"] == OK)


def run_part(part: Part, folder: Path, limit: float) -> dict[str, Any]:
    """Run a command for at most ``limit`` seconds.

    Its output goes to ``NAME.txt``, its messages go to ``NAME.log``.
    """
    if shutil.which(needed := part.needs or part.command[0]) is None:
        return {"result": SKIPPED, "note": f"{needed} is not installed", "seconds": 0}
    began = time.monotonic()
    output, messages = (folder / f"{part.name}.{kind}" for kind in ("txt", "log"))
    with output.open("w") as stdout, messages.open("w") as stderr:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
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
    records = {part.name: record_of(part.name, folder) for part in all_parts}
    for part in all_parts:
        row = records[part.name]
        result = ": ".join(filter(None, (row["result"], row.get("note"))))
        cells = (f"`{part.name}`", part.purpose, result, str(row["seconds"]), row["machine"])
        yield f"| {' | '.join(cells)} |"
    for part in sorted(all_parts, key=lambda part: part.name not in FIRST):
        record = records[part.name]
        if record["result"] in (SKIPPED, NOT_RUN):
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
    parser.add_argument("--minutes", type=float, default=inf, help="of all parts together")
    parser.add_argument("--sources", type=Path, help="texts of tasks/make_pair.py --pack")
    parser.add_argument("--rehearse", action="store_true", help="all parts, small, on a CPU")
    options = parser.parse_args()
    folder, sources = options.output.resolve(), options.sources and options.sources.resolve()
    every = parts(folder, options.rehearse, sources)
    by_name = {part.name: part for part in every}
    if unknown := set(options.part) - by_name.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}: choose from {', '.join(by_name)}")
    environment = machine()
    if not environment["torch"].get("gpus") and not options.rehearse:
        parser.error("PyTorch finds no CUDA device")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the running part as well
    chosen = [by_name[name] for name in options.part or by_name]
    good = hour(chosen, every, folder, environment, minutes=options.minutes)
    print(folder / "page.md")
    sys.exit(not good)


if __name__ == "__main__":
    main()
