"""Kill commands at random, take away the disk or the power, and compare with undisturbed runs.

    python tasks/measure/kill_and_resume.py [--times 10] [--seed 0] [--only train,pairs]

Every command is killed with SIGKILL ``--times`` times, also while it resumes. Two workers are
killed one at a time (needs Ray). A full disk stops the run at ``--times`` sizes of its files, and
after a power loss at as many moments it resumes from what the disk would hold (``tests/disk.py``).
No sample may be lost that was called done, none may be there twice, and the tables must be those of
an undisturbed run except for timings.

The commands run in forks of this process, so that a kill hits their work rather than imports. Needs
Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

MAIN = [sys.executable, "-c", "from specbench.cli.app import main; main()"]
MEASURE = ["-t", "mini-math", "-n", "12", "--max-new-tokens", "24", "--no-progress"]
COMMANDS = {
    "run": ["run", "-m", "autoregressive,sd,static,diversed", *MEASURE, "-o"],
    "sweep-weights": ["sweep-weights", "-m", "sd", "--weights", "0.8,0.4", *MEASURE, "-o"],
    "train": ["train", "-t", "mini-math", "--steps", "6", "--no-progress", "--resume", "--output"],
    "pairs": ["run", "--pair", "mini,python", "-m", "sd", *MEASURE, "-o"],
}
WORKERS = [*COMMANDS["run"][:-1], "--workers", "2", "-o"]
WORKER_SAMPLES = 4 * 12
AT_WORK = (b"ray::Worker.measure",)


def main() -> None:
    """Try each command in each way, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    names = [*COMMANDS, "workers", "full-disk", "power-loss"]
    parser.add_argument("--only", default=",".join(names), help="separated by commas")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        for name in options.only.split(","):
            whole = Path("undisturbed", name)
            command = COMMANDS.get(name, WORKERS if name == "workers" else COMMANDS["run"])
            took = -time.monotonic()
            assert ended(start([*command, str(whole)])) == 0, name
            took += time.monotonic()
            tries: dict[str, Callable[[], str]] = {
                "workers": lambda whole=whole: kill_workers(whole, options.times),
                "full-disk": lambda whole=whole: fill_disk(whole, options.times),
                "power-loss": lambda whole=whole: lose_power(whole, options.times),
            }
            default = lambda: kill(command, whole, options.times, took)  # noqa: B023, E731
            print(f"{name}: {tries.get(name, default)()}", flush=True)


def prepare() -> None:
    """Import what the commands need, and train on few prompts."""
    import torch

    import specbench.cli.measure
    import specbench.experiment.runner
    import specbench.training.session  # noqa: F401
    from specbench.engine.hub import quiet_libraries
    from specbench.training import material

    torch.set_num_threads(1)
    quiet_libraries(downloads=False)
    material.HELD_OUT = material.FINAL = 12


def start(arguments: list[str], largest_file: int | None = None) -> int:
    """Run a command in a fork, with a limit on the size of files; return the process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        for stream in (1, 2):
            log = "log.txt" if largest_file is None else os.devnull  # a log has a size, too
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
        from specbench.cli.app import main

        main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Return the exit code of a process once it ended."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(command: list[str], whole: Path, times: int, took: float) -> str:
    """Kill and resume a command; when it completes, compare it and start anew."""
    kills = completed = 0
    folder = whole.with_name(f"{whole.name}-killed-0")
    while True:
        child = start([*command, str(folder)])
        if kills < times:
            time.sleep(random.uniform(0, took))
            os.kill(child, signal.SIGKILL)
        code = ended(child)
        assert code in (0, -signal.SIGKILL), Path("log.txt").read_text()[-2000:]
        kills += code != 0
        if code == 0:
            compare(whole, folder)
            completed += 1
            if kills == times:
                return (
                    f"{kills} kills, {completed} runs completed, all equal to the undisturbed one"
                )
            folder = whole.with_name(f"{whole.name}-killed-{completed}")


def fill_disk(whole: Path, times: int) -> str:
    """Let writes fail at random sizes of files, then resume without the limit."""
    largest = (whole / "samples.jsonl").stat().st_size
    for number in range(times):
        folder = whole.with_name(f"full-{number}")
        command = [*COMMANDS["run"], str(folder)]
        size = random.randint(0, largest // 2)
        code = ended(start(command, size))
        assert code in (1, 2), f"exit code {code} with files of at most {size} bytes"
        assert ended(start(command)) == 0, Path("log.txt").read_text()[-2000:]
        compare(whole, folder)
    return f"{times} full disks, all runs equal to the undisturbed one after resuming"


def lose_power(whole: Path, times: int) -> str:
    """Record what a run syncs, and resume it from what a power loss would leave."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from specbench.cli import app
    from specbench.experiment.progress import Display
    from tests.disk import Recorder

    root = Path("powered").resolve()
    root.mkdir()
    recorder = Recorder(root)

    class Shown(Display):
        def __call__(self, *records: Mapping[str, Any]) -> None:
            recorder.done += len(records)

    import specbench.experiment.progress as progress

    display, progress.Display = progress.Display, Shown  # type: ignore[misc]
    try:
        with recorder.recording():
            app.main([*COMMANDS["run"], str(root / "r")])
    except SystemExit as end:
        assert end.code == 0
    progress.Display = display  # type: ignore[misc]
    assert recorder.done == len(pd.read_csv(root / "r" / "samples.csv"))
    decoded = 0
    for number in range(times):
        moment = random.choice(recorder.moments)
        folder = whole.with_name(f"lost-{number}")
        moment.rebuild(folder, random.Random(number))
        records = folder / "r" / "samples.jsonl"
        lines = records.read_bytes().splitlines() if records.exists() else []
        safe = sum(line.startswith(b'{"key"') and line.endswith(b"}") for line in lines)
        assert safe >= moment.done, (safe, moment.done)
        decoded += moment.done
        assert ended(start([*COMMANDS["run"], str(folder / "r")])) == 0, Path(
            "log.txt"
        ).read_text()[-2000:]
        compare(whole, folder / "r")
    return (
        f"{times} power losses at {len(recorder.moments)} moments, {decoded} samples called done "
        "before them, none lost; all runs equal to the undisturbed one after resuming"
    )


def kill_workers(whole: Path, times: int) -> str:
    """Run the plan with two workers, and kill one of them at random numbers of samples."""
    output = whole.with_name("workers-killed")
    command = [*MAIN, *WORKERS, str(output)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    moments = sorted(random.sample(range(1, WORKER_SAMPLES - 8), times))
    while moments and run.poll() is None:
        records = output / "samples.jsonl"
        recorded = records.read_bytes().count(b"\n") if records.exists() else 0
        targets = list(workers_of(run.pid)) if recorded >= moments[0] else []
        if targets:
            os.kill(random.choice(targets), signal.SIGKILL)
            del moments[0]
        else:
            time.sleep(0.02)
    printed = run.communicate()[0].decode()
    assert run.returncode == 0, printed
    assert not moments, f"the run ended {len(moments)} kills too early"
    compare(whole, output)
    return f"{times} kills of a worker, the run completed and is equal to the undisturbed one"


def workers_of(driver: int) -> Iterator[int]:
    """Yield the child processes of the driver that are decoding."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            decodes = (folder / "cmdline").read_bytes().startswith(AT_WORK)
            if decodes and driver in ancestors(int(folder.name)):
                yield int(folder.name)
        except OSError:
            continue


def ancestors(process: int) -> Iterator[int]:
    """Yield the ancestors of a process."""
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        yield process


def compare(expected: Path, resumed: Path) -> None:
    """Compare tables, logs of training and heads below two folders, except timings and devices."""
    tables = [
        p for name in ("samples", "summary", "training") for p in expected.rglob(f"{name}.csv")
    ]
    heads = list(expected.rglob("head.safetensors"))
    assert tables
    for path in tables:
        other = resumed / path.relative_to(expected)
        one, two = (untimed(pd.read_csv(file)) for file in (path, other))
        pd.testing.assert_frame_equal(one, two)
    for path in heads:
        assert path.read_bytes() == (resumed / path.relative_to(expected)).read_bytes()
    for path in resumed.rglob("samples.jsonl"):
        samples = len(pd.read_csv(path.with_name("samples.csv")))
        records = path.read_bytes().splitlines()
        assert len(records) == len({json.loads(line)["key"] for line in records}) == samples


def untimed(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the columns of timings and devices, and the name of the run."""
    if "metric" in table:
        table = table[~table["metric"].str.contains("second|speedup")].reset_index(drop=True)
    columns = [name for name in table if "second" not in name and name not in ("device", "run_id")]
    return table[columns]


if __name__ == "__main__":
    main()
