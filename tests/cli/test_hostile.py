"""Commands on a run folder from anyone: nothing in it is executed, followed or displayed raw."""

import gzip
import json
import lzma
import os
import shutil
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.written import write_tables
from specbench.files import write_atomically
from specbench.runs.records import LONGEST_LINE
from specbench.runs.run import read_run
from specbench.tasks.example import Example
from specbench.validation.verification.plan import check_plan

from .made import configure, lines

SECRET = "a private text"
STEERING = "\x1b[31m\x07\x9b\u202e\u2066\u2028"
COMMANDS = {
    **{"verify": ("verify", "r", "-n", "1"), "score": ("score", "r"), "table": ("table", "r")},
    **{"latex": ("table", "r", "--format", "latex"), "csv": ("table", "r", "--format", "csv")},
    **{"compare": ("compare", "r"), "plot": ("plot", "acceptance-time", "r")},
    **{"trace": ("trace", "r", "-m", "sd"), "report": ("report", "r", "-o", "report.html")},
    "resume": ("run", "-m", "sd", "-t", "mini-math", "--output", "r", "--no-progress"),
}
READERS = [name for name in COMMANDS if name != "resume"]
PRINTERS = {"latex", "csv"}  # of what "table" reads


def steering(text: str) -> set[str]:
    """Return the characters of a text that could steer a terminal."""
    harmless = "\n\t\u200c\u200d"
    return {c for c in text if c not in harmless and unicodedata.category(c) in ("Cc", "Cf", "Zl")}


def code(run: Path) -> None:
    """Name rules, metrics and models with code, and permit all of it."""
    (run / "evil.py").write_text(f"open({str(run.parent / 'canary')!r}, 'w')\ndef f(*a): ...\n")
    model = run / "model"
    model.mkdir()
    auto = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"), "evil.Evil")
    (model / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    shutil.copy(run / "evil.py", model)

    def edit(config: dict[str, Any]) -> None:
        config["loading"]["trust_remote_code"] = True
        config["pair"] = {"name": "evil", "target": str(model), "draft": str(model)}
        (task,) = config["tasks"]
        task["metrics"].append(f"{run}/evil.py:f")
        (sd,) = (cell for cell in task["cells"] if cell["method"] == "sd")
        sd["method"] = f"{run}/evil.py:f"
        config["sources"] = {f"{run}/evil.py:f": "0"}

    configure(run, edit)

    def named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [r | {"method": f"{run}/evil.py:f"} if r["method"] == "sd" else r for r in rows]

    lines(run / "samples.jsonl", named)
    write_tables(run)


@pytest.mark.usefixtures("report_without_figures")
@pytest.mark.parametrize("command", sorted({*READERS} - PRINTERS))
def test_nothing_that_a_run_names_is_executed(cli, run, command):
    code(run)
    shown = cli(*COMMANDS[command])
    assert not (run.parent / "canary").exists()
    assert "(for the traceback" not in shown.err, shown.err
    if command == "verify":
        remedy = "is not bundled: name it with --metric"
        assert shown.code == 1 and remedy in " ".join(shown.out.split())
    if command == "trace":  # the only one of them that needs the models
        assert shown.code == 2 or "--target" in shown.err


def test_no_policy_of_a_run_is_executed(cli, run):
    (run / "evil.py").write_text(f"open({str(run.parent / 'canary')!r}, 'w')\ndef f(*a): ...\n")
    policy = {"drafter": f"model+{run}/evil.py:f"}
    configure(run, lambda config: [cell.update(policy) for cell in config["tasks"][0]["cells"]])
    lines(run / "samples.jsonl", lambda rows: [row | policy for row in rows])
    write_tables(run)
    assert "is not bundled" in " ".join(cli("verify", "r", "-n", "1").out.split())
    assert not (run.parent / "canary").exists()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, "notes") for command in ("score", "table", "report", "plot", "resume")),
        *(("table", name) for name in ("samples.jsonl", "config.json", ".lock", "figures")),
    ],
)
def test_links_out_of_a_run_are_refused(cli, run, command, name):
    outside = run.parent / "outside"
    outside.mkdir() if name == "figures" else outside.write_text(SECRET)
    path = run / name
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    shown = cli(*COMMANDS[command])
    assert shown.code == 2 and "is a link out of its folder" in shown.err
    assert SECRET not in shown.out + shown.err
    assert outside.is_dir() or outside.read_text() == SECRET


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    (tmp_path / ".page.html.partial").symlink_to(secret)
    write_atomically(tmp_path / "page.html", "x")
    assert (secret.read_text(), (tmp_path / "page.html").read_text()) == (SECRET, "x")


def pipe(run: Path) -> None:
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")


def holes(run: Path) -> None:
    with (run / "samples.csv").open("r+b") as file:
        file.truncate(2**40)


def bomb(run: Path) -> None:
    (run / "samples.csv").unlink()
    with (run / "samples.csv.gz").open("wb") as file:
        for _ in range(20):  # 320 MiB
            file.write(BOMB)


BOMB = gzip.compress(b"," * 2**24, 9)


@pytest.mark.parametrize("plant", [pipe, holes, bomb])
def test_special_and_huge_files_are_refused(cli, run, plant):
    plant(run)
    shown = cli("compare", "r", "--legend")
    assert shown.code == 2 and "remove it" in shown.err


@pytest.mark.usefixtures("report_without_figures")
@pytest.mark.parametrize("command", sorted({*COMMANDS} - PRINTERS))
def test_deep_and_odd_json_is_one_sentence(cli, run, command):
    for text in (
        '{"progress": ' + "[" * 100_000,
        '{"pair": ' + "[" * 900 + "]" * 900 + "}",
        '{"pair": 1, "tasks": [{"name": [], "cells": 3}], "progress": {"state": {}}}',
        '{"samples_planned": 1e999, "settings": {"temperature": []}, "tasks": {}}',
    ):
        (run / "config.json").write_text(text)
        shown = cli(*COMMANDS[command])
        assert shown.code in (0, 1, 2) and shown.err.count("error:") <= 1
        assert "(for the traceback" not in shown.err, (text[:60], shown.err)


def test_a_plan_of_any_size_is_not_enumerated(one_task):
    run = read_run(one_task)
    examples = {"mini-math": {str(n): Example(str(n), "") for n in range(2)}}
    run.config.settings["repeats"] = 10**12
    (finding,) = check_plan(run, [], examples, whole=True)
    assert "samples are planned, far more than there are" in finding.sentence


@pytest.fixture
def steered(run) -> Path:
    """A run whose names contain control characters, a formula, HTML and LaTeX."""
    evil = f"=cmd|' /C calc'!A0{STEERING}<script>alert(1)</script>\\input{{/etc/passwd}}"

    for file, name in (("samples.jsonl", "sample_id"), ("examples.jsonl", "id")):
        steer = lambda row, name=name: row | {"task": evil, name: evil + row[name]}  # noqa: E731
        lines(run / file, lambda rows, steer=steer: [*map(steer, rows)])
    configure(run, lambda config: config["tasks"][0].update(name=evil))
    write_tables(run)
    return run


@pytest.mark.parametrize("command", READERS)
def test_names_steer_nothing(cli, steered, command):
    shown = cli(*COMMANDS[command])
    assert not steering(shown.out + shown.err)
    assert "(for the traceback" not in shown.err, shown.err
    if command == "csv":
        text = shown.out
        assert "=cmd" in text and ",=cmd" not in text and "\n=cmd" not in text
    if command == "latex":
        assert r"\input" not in shown.out
    if command == "report":
        page = Path("report.html").read_text()
        assert "<script>alert" not in page and not steering(page)


@pytest.mark.parametrize("damage", [b'x,"' + b"a" * 30_000_000, b'"\n' * 9, b"\xff\xfe,"])
@pytest.mark.parametrize("name", ["summary.csv", "samples.csv"])
def test_a_damaged_table_is_named(cli, run, name, damage):
    with (run / name).open("ab") as file:
        file.write(damage)
    for command in ("verify", "table"):
        shown = cli(*COMMANDS[command])
        assert shown.code and "(for the traceback" not in shown.err
        assert f"r/{name}" in shown.err or name in shown.out


def edited(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda table: table.write_bytes(change(table.read_bytes()))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": edited(lambda text: text[:-60]),
    "heading": edited(lambda text: text.replace(b"draft_length", b"length", 1)),
    "semicolons": edited(lambda text: text.replace(b",", b";")),
    "UTF-16": edited(lambda text: text.decode().encode("utf-16")),
    "a row twice": edited(lambda text: text + text.splitlines()[-1]),
    "missing": Path.unlink,
}


@pytest.mark.usefixtures("report_without_figures")
@pytest.mark.parametrize("damage", DAMAGES)
def test_samples_that_cannot_be_read_are_named_by_all_commands(cli, run, damage):
    DAMAGES[damage](run / "samples.csv")
    for command in ("verify", "compare", "table", "report"):
        shown = cli(*COMMANDS[command], code=0 if command == "report" else None)
        assert shown.code or command == "report"
        assert "(for the traceback" not in shown.err
        assert "samples.csv" in shown.out + shown.err
    page = Path("report.html").read_text()
    assert "note: no verdicts: r" in shown.err and "no verdicts: r" in page
    assert 'id="verdict"' not in page


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_a_line_that_would_fill_the_memory_is_refused(cli, run, suffix):
    (run / "samples.jsonl").unlink()
    opened = lzma.open if suffix else open
    with opened(run / f"samples.jsonl{suffix}", "wb") as file:
        file.write(b'{"key": "' + b"[" * (LONGEST_LINE + 1))
    shown = cli("verify", "r", code=2)
    assert f"samples.jsonl{suffix}:1 is longer than 16 MiB: remove the line" in shown.err


def test_warnings_of_libraries_steer_nothing_and_are_shown_once(cli, capsys):
    cli("--version")
    for line in (1, 2):
        warnings.showwarning(f"Glyph 7 ({STEERING}) missing", UserWarning, "style.py", line)
    shown = capsys.readouterr().err
    assert shown.count("note: Glyph 7") == 1 and not steering(shown)
