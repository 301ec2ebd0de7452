"""Scripts of ``tasks/measure``: the hour on a GPU, with short commands for its parts; kernels."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from math import nan
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from specbench.engine.pairs import Loading, get_pair
from specbench.engine.sources import build_model, load_config
from tasks.measure import attention_kernels, gpu_hour, marks
from tasks.measure.gpu_hour import SKIPPED, Part, hour, parts
from tests.engine.tiny import tiny_pair

ROOT = Path(__file__).parents[2]
MACHINE = {
    "started": "2026-11-22T12:00:00Z",
    "python": "3.12.3",
    "git": {"commit": "0123456789abcdef"},
    "cpu": {"model": "a processor"},
    "packages": {"torch": "2.13.0+cu130", "transformers": "5.23.0"},
    "torch": {"cuda": "13.0", "cudnn": 92000, "driver": "580", "gpus": [{"name": "NVIDIA H100"}]},
}


def part(name: str, code: str) -> Part:
    """A part that runs Python code."""
    return Part(name, f"question of {name}", [sys.executable, "-c", code])


def records(folder: Path) -> dict[str, str]:
    return {
        file.stem: json.loads(file.read_text())["result"]
        for file in folder.glob("*.json")
        if file.name != gpu_hour.ENVIRONMENT
    }


def test_a_failing_and_a_slow_part_do_not_stop_the_others(tmp_path):
    child = "import subprocess; subprocess.run(['sleep', '600'])"
    all_parts = [
        part("broken", "raise SystemExit('no such thing')"),
        part("slow", f"print('begun', flush=True); {child}"),
        Part("missing", "question", ["no-such-program", "--option"]),
        part("bench", "print('a table')"),
        part("targets", "print('the targets')"),
        part("later", ""),
    ]
    assert not hour(all_parts[:5], all_parts, tmp_path, MACHINE, limit=3)
    assert records(tmp_path) == {
        "broken": "failed (exit code 1)",
        "slow": "stopped after 0.05 minutes",
        "missing": "skipped",
        "bench": "ok",
        "targets": "ok",
    }
    page = (tmp_path / "page.md").read_text()
    assert json.loads((tmp_path / "environment.json").read_text()) == MACHINE
    assert page.startswith("# specbench on NVIDIA H100\n")
    assert "torch 2.13.0+cu130, transformers 5.23.0, cuda 13.0, cudnn 92000, driver 580" in page
    assert (
        "| `missing` | question | skipped: no-such-program is not installed | 0 | NVIDIA H100 |"
        in page
    )
    assert "| `later` | question of later | not run |  |  |" in page
    told = ["the targets", "no such thing", "begun", "a table"]  # the targets first
    assert sorted(told, key=page.index) == told


def test_only_parts_that_succeeded_are_skipped(tmp_path):
    marker = tmp_path / "marker"
    flaky = f"import pathlib; p = pathlib.Path({str(marker)!r}); ok = p.exists(); p.touch(); "
    all_parts = [
        part("good", "import uuid; print(uuid.uuid4())"),
        part("flaky", f"{flaky} raise SystemExit(not ok)"),
    ]
    folder = tmp_path / "out"
    assert not hour(all_parts, all_parts, folder, MACHINE)
    first = (folder / "good.txt").read_text()
    assert hour(all_parts, all_parts, folder, MACHINE)
    assert (folder / "good.txt").read_text() == first
    assert records(folder) == {"good": "ok", "flaky": "ok"}
    record = json.loads((folder / "good.json").read_text()) | {"result": SKIPPED}
    (folder / "good.json").write_text(json.dumps(record))
    assert hour(all_parts, all_parts, folder, MACHINE)  # what it lacked may be there now
    assert records(folder)["good"] == "ok" and (folder / "good.txt").read_text() != first


def test_a_killed_hour_resumes(tmp_path):
    """The second part kills the orchestration when it first runs."""
    marker = tmp_path / "marker"
    program = f"""
import os, pathlib, signal, sys
from tasks.measure.test_gpu_hour import MACHINE, hour, part
kill = '''
import os, pathlib, signal
marker = pathlib.Path({str(marker)!r})
if not marker.exists():
    marker.touch()
    os.kill(os.getppid(), signal.SIGKILL)
'''
known = [part("first", "import uuid; print(uuid.uuid4())"), part("second", kill)]
hour(known, known, pathlib.Path({str(tmp_path / "out")!r}), MACHINE)
"""
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    codes, texts = [], []
    for _ in range(2):
        codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
        texts.append((tmp_path / "out" / "first.txt").read_text())
    assert codes[0] < 0 == codes[1]
    assert texts[0] == texts[1]
    assert records(tmp_path / "out") == {"first": "ok", "second": "ok"}


def test_no_part_begins_that_the_minutes_left_do_not_hold(tmp_path, capsys):
    long = part("long", "print('too long')")._replace(minutes=2)
    slow = part("slow", "import time; time.sleep(600)")._replace(minutes=0.01)
    short = part("short", "print('in time')")._replace(minutes=0.01)
    assert not hour([long, short, slow], [long, short, slow], tmp_path, MACHINE, minutes=0.15)
    results = records(tmp_path)
    assert results.pop("slow").startswith("stopped after 0.1") and results == {"short": "ok"}
    assert "long: not begun, it takes about 2 min" in capsys.readouterr().err


def test_a_part_waits_for_those_whose_results_it_reads(tmp_path, capsys):
    marker = tmp_path / "marker"
    succeeds = f"import os; raise SystemExit(not os.path.exists({str(marker)!r}))"
    first = part("first", succeeds)
    second = part("second", "print('read')")._replace(after=["first"])
    assert not hour([first, second], [first, second], tmp_path, MACHINE)
    assert set(records(tmp_path)) == {"first"}
    assert "second: not begun, it reads first" in capsys.readouterr().err
    marker.touch()
    assert hour([first, second], [first, second], tmp_path, MACHINE)
    assert records(tmp_path) == {"first": "ok", "second": "ok"}


def test_the_pair_of_32b_is_of_that_size():
    spec, loading = get_pair(f"{gpu_hour.HERE}/shapes.toml:qwen3-32b"), Loading(load_format="dummy")
    sizes = []
    for role in ("target", "draft"):
        with torch.device("meta"):
            model = build_model(load_config(spec, role, loading), torch.bfloat16)
        sizes.append(sum(weight.numel() for weight in model.parameters()) / 1e9)
    assert sizes == pytest.approx([32.76, 1.72], abs=0.01)


def test_the_parts_are_commands_that_exist(tmp_path):
    all_parts = parts(tmp_path, sources=Path("a folder/texts"))
    names = [part.name for part in all_parts]
    assert len(set(names)) == len(names)
    kinds = [name.partition("-")[0] for name in names[:6]]
    assert kinds == ["refilled", "refilled", "predicted", "predicted", "bench", "targets"]
    for kind in ("bench", "eager", "compile"):
        of_pairs = [names.index(f"{kind}-{pair}") for pair in ("llama", "qwen3", "gemma3")]
        assert of_pairs[0] < names.index("tests") < names.index("larger-decide") < of_pairs[1]
    for part in all_parts:
        assert {*part.after} <= {*names[: names.index(part.name)]}
        for word in part.command:
            assert "{" not in word
            if word.endswith((".py", ".toml")):
                assert (ROOT / word.removeprefix("--ignore=")).is_file(), word
        reads = part.name.startswith("predicted-") or part.name in ("targets", "larger-front")
        assert "cuda" in part.command or "gpu" in part.command or reads
    command = next(part.command for part in all_parts if part.name == "larger-draft")
    assert command[-2:] == ["--sources", "a folder/texts"]
    assert str(gpu_hour.LARGER) in command


def test_a_rehearsal_has_every_part_of_the_first_pair_without_a_gpu(tmp_path):
    rehearsed = parts(tmp_path, rehearse=True)
    names = [part.name for part in parts(tmp_path)]
    assert [part.name for part in rehearsed] == names[: len(rehearsed)]
    assert {name.partition("-")[2] for name in names[len(rehearsed) :]} == {
        *("qwen2.5-coder", "qwen3", "gemma3")
    }
    on_gpu = {"vllm", "sanitizer"}  # skipped for want of a program
    for part in rehearsed:
        devices = [b for a, b in pairwise(part.command) if a == "--device"]
        assert part.name in on_gpu or devices[-1:] in ([], ["cpu"]), part.name
        assert str(gpu_hour.LARGER) not in part.command


def test_what_a_round_spends_above_its_limit_adds_up():
    columns = [*("batch_size", "method", "forced_acceptance", "limit_seconds", "draft_seconds")]
    columns += ["verify_seconds", "accept_seconds", "other_seconds", "round_seconds"]
    results = object.__new__(marks.Results)
    alone = [1, "autoregressive", nan, 3.5e-3, 0, 4.1e-3, 0, 0.1e-3, 4.2e-3]
    drafted = [1, "sd", 0.8, 6.5e-3, 4.8e-3, 4.25e-3, 0.2e-3, 0.15e-3, 9.4e-3]
    batched = [4, "sd", 0.8, *[1] * 6]
    results.table = pd.DataFrame([batched, alone, drafted], columns=columns)
    rows = {name: cells for name, *cells in marks.excesses(results)}
    assert rows["drafting"] == ["4.800", "3.000", "1.800", "1.60"]
    assert rows["the target's pass"] == ["4.250", "3.500", "0.750", "1.21"]
    assert rows["round"] == ["9.400", "6.500", "2.900", "1.45"]
    above = [float(cells[2]) for cells in rows.values()]
    assert sum(above[:-1]) == pytest.approx(above[-1])
    results.table = results.table[results.table["method"] == "sd"]
    assert [*marks.excesses(results)] == []


def test_the_machine_is_described_in_another_process():
    facts = gpu_hour.machine()
    assert facts.keys() > MACHINE.keys() and facts["packages"].keys() > MACHINE["packages"].keys()


@pytest.mark.parametrize("name", ["nothing", "kernels"])
def test_an_unknown_part_or_a_missing_gpu_is_refused(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_hour, "machine", lambda: MACHINE | {"torch": {}})
    monkeypatch.setattr(sys, "argv", ["gpu_hour.py", name, "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="2"):
        gpu_hour.main()
    told = {"nothing": "no part nothing: choose from refilled", "kernels": "finds no CUDA device"}
    assert told[name] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ending_the_hour_ends_the_running_part(tmp_path):
    """A signal must not leave a part behind that still uses the GPU."""
    program = f"""
import pathlib, sys
from tasks.measure import gpu_hour
from tasks.measure.test_gpu_hour import MACHINE, part
child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
gpu_hour.machine = lambda: MACHINE
gpu_hour.parts = lambda *options: [part("long", child)]
sys.argv = ["gpu_hour.py", "--output", {str(tmp_path)!r}]
gpu_hour.main()
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)
    output = tmp_path / "long.txt"
    deadline = time.monotonic() + 120
    while not (output.exists() and output.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.1)
    child = int(output.read_text())
    os.kill(child, 0)
    process.terminate()
    assert process.wait(60) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert records(tmp_path) == {}


@pytest.mark.parametrize(("backend", "name"), [("FLASH_ATTENTION", "flash"), ("MATH", "math")])
def test_the_kernels_of_both_methods_are_listed(backend, name, monkeypatch):
    monkeypatch.setattr(attention_kernels, "PROMPT", 20)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        rows = list(attention_kernels.kernels(tiny_pair("llama"), "eager"))
    assert {method for _, method, *_ in rows} == {"autoregressive", "sd"}
    ran = {kernel for _, _, kernel, *_ in rows}
    other = {"flash": "math", "math": "flash"}[name]
    assert any(name in kernel for kernel in ran) and not any(other in kernel for kernel in ran)
