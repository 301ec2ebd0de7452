"""The command itself: help, completion, shared options, and output to any stream."""

import codecs
import logging
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from rich.text import Text

import specbench
from specbench.cli.commands import COMMANDS, load
from specbench.cli.measurement import Measurement
from specbench.cli.output import next_step, note, note_loading, picture, print_json, show_warnings

from .conftest import imported

HEAVY = {"torch", "transformers", "pandas", "numpy", "matplotlib", "datasets"}


def test_light_commands_import_nothing_heavy_and_help_of_all_loads_no_command():
    lists = (f"list {what}" for what in ("methods", "drafters", "tasks", "pairs"))
    assert not HEAVY & imported("run --help", *lists)
    # Imports dominate the time of the help.
    loaded = imported("--help")
    assert not loaded & {*HEAVY, "pydantic", "jinja2"}
    assert {name for name in loaded if name.startswith("specbench.")} <= {
        *(f"specbench.cli{part}" for part in ("", ".app", ".commands", ".output")),
        "specbench.errors",
    }


def test_a_summary_starts_the_help_of_a_command_and_without_one_three_ways_are_named(cli):
    for name, listed in COMMANDS.items():
        summary = (load(name).help or "").partition("\n\n")[0].replace("\n", " ")
        assert summary == listed.purpose
    result = cli()
    assert (result.code, result.err) == (0, "")
    assert re.findall(r"^  specbench (\S+)", result.out, re.MULTILINE) == ["run", "decide", "run"]
    decided = next(line for line in result.out.splitlines() if " decide " in line)
    assert cli(*decided.split()[1:]).out.startswith("Speculate at batch 1 to 16")
    assert cli("--version").out == f"specbench {specbench.__version__}\n"


def test_measuring_commands_share_their_options(cli):
    shown = {name: cli(name, "--help-all").out for name in ("run", "sweep-weights")}
    shared = {flag for name in Measurement.model_fields for flag in Measurement.flags(name)}
    assert {"--pair", "--temperature", "-n", "--workers", "--allow-code-execution"} <= shared
    for text in shown.values():
        assert all(f"{option} " in text for option in shared)
        assert "Example: specbench" in text
    assert "--weights " in shown["sweep-weights"]
    leading = [shown["run"].index(f"{flag} ") for flag in ("--task", "--method", "--pair")]
    assert leading == sorted(leading) and leading[-1] < shown["run"].index("--top-k ")


def test_help_shows_the_options_that_pages_use(cli):
    flags = r"(--[a-z-]+) "
    shown = {*re.findall(rf"│ {flags}", cli("run", "-h").out)} - {"--help", "--help-all"}
    used = "--server --models --data --threads --engine --allow-code-execution --batch-size"
    assert len(shown) == 19 and {"--task", "--target", "--drafter", *used.split()} <= shown
    every = cli("run", "--help-all")
    assert every.code == 0 and len({*re.findall(rf"│ {flags}", every.out)}) > 50
    assert "<bool>" not in every.out + cli("--help").out
    assert {*re.findall(rf"│ {flags}", cli("run", "-h").out)} - {"--help", "--help-all"} == shown
    decided = cli("decide", "--help").out
    assert all(flag in decided for flag in ("--acceptance", "--costs", "--machine"))
    folded = ("run", "sweep-weights", "bench", "check", "train", "decide", "price")
    assert all("--help-all" in cli(name, "--help").out for name in folded)
    assert "--help-all" not in cli("table", "--help").out
    above_servers = cli("check", "--help").out.partition("─ Servers ─")[0]
    assert all(f"{flag} " in above_servers for flag in ("--samples", "--drafter", "--batch-size"))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("run --method lossy,sp", {"lossy,speccascade"}),
        ("run --engine e", {"eager"}),
        ("table --format m", {"markdown"}),
        ("plot pa", {"pareto"}),
    ],
)
def test_the_shell_completes_names(cli, monkeypatch, typed, expected):
    words = f"specbench {typed}"
    monkeypatch.setenv("_SPECBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert set(cli().out.split()) == expected


def test_errors_and_notes_contain_no_control_characters(cli, capsys):
    result = cli("table", "no\x1b]0;owned\x07\u202efolder", code=2)
    assert "no�]0;owned��folder" in result.err
    assert "\x1b" not in cli("\x1b[2Jrun", code=2).err
    assert "is not UTF-8: rename the file" in cli("run", "--prompts", "caf\udce9.txt", code=2).err
    note("a\x1b[31m hf_AbCdEfGhIjKl", "b\nnote: c")
    next_step("\x9b2J")
    assert capsys.readouterr().err == "note: a�[31m hf_***\nnote: b note: c\nnext: �2J\n"


def test_what_is_loaded_is_said_once_with_its_size(tmp_path, capsys, monkeypatch):
    for name, size in (("model-1.safetensors", 2 * 10**9), ("model-2.safetensors", 5 * 10**8)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    show_warnings()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stderr)])
    for _ in range(2):  # said once, however many steps load them, and whatever a library logs to
        note_loading({"target": str(tmp_path), "draft": "owner/not-on-disk"})
    assert capsys.readouterr().err == "note: loading the target (2.5 GB)\n"
    note_loading({"target": str(tmp_path / "none")})
    assert not capsys.readouterr().err


def test_a_picture_has_every_line_and_needs_nothing_else():
    svg = picture(Text("one <two> & three", "bold red"), Text(8 * "four "), width=20)
    elements = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    texts = ["".join(text.itertext()).replace("\xa0", " ").strip() for text in elements]
    assert [text for text in texts if text] == ["one <two> & three", *["four four four four"] * 2]
    assert "font-weight: bold" in svg and "#800000" in svg
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


LIST = (sys.executable, "-m", "specbench", "list", "drafters")


def output(**variables: str) -> "subprocess.CompletedProcess[bytes]":
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | variables
    return subprocess.run(LIST, env=environment, capture_output=True, check=False)


@pytest.mark.parametrize(("encoding", "rule"), [("cp1252", "-"), ("ascii", "-"), ("utf-8", "─")])
def test_a_table_is_printed_in_any_encoding(encoding, rule):
    done = output(PYTHONIOENCODING=encoding)
    lines = codecs.decode(done.stdout, encoding).splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines[0].startswith("name") and lines[1].startswith(rule) and "suffix" in "".join(lines)


def test_a_width_of_0_is_none(cli, monkeypatch):
    usual = cli("list", code=0).out
    for width in ("0", ""):
        monkeypatch.setenv("COLUMNS", width)
        assert cli("list", code=0).out == usual


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&-"])
def test_closed_streams_are_no_error(closed):
    command = f'"$@" {closed}'
    done = subprocess.run(["sh", "-c", command, "sh", *LIST], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_json_keeps_every_character(monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stdout), "encoding", "cp1252", raising=False)
    print_json({"text": "Жук"})
    assert "\\u0416\\u0443\\u043a" in capsys.readouterr().out
