"""Output in any encoding, at any width, and to streams that are closed."""

import codecs
import os
import subprocess
import sys

import pytest

LIST = (sys.executable, "-m", "specbench", "list", "drafters")


def output(*further: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | variables
    return subprocess.run([*LIST, *further], env=environment, capture_output=True, check=False)


@pytest.mark.parametrize(
    ("encoding", "rule"),
    [("cp1252", "---"), ("latin-1", "---"), ("ascii", "---"), ("cp437", "───"), ("utf-8", "───")],
)
def test_a_table_is_printed_in_any_encoding(encoding, rule):
    done = output(PYTHONIOENCODING=encoding)
    lines = codecs.decode(done.stdout, encoding).splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines[0].startswith("name") and lines[1].startswith(rule) and "suffix" in "".join(lines)


@pytest.mark.parametrize("columns", ["0", "00", ""])
def test_a_width_of_0_is_none(columns):
    assert output(COLUMNS=columns).stdout == output().stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&-"])
def test_closed_streams_are_no_error(closed):
    command = f'"$@" {closed}'
    done = subprocess.run(["sh", "-c", command, "sh", *LIST], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_json_keeps_every_character(monkeypatch, capsys):
    from specbench.cli.output import print_json

    monkeypatch.setattr(type(sys.stdout), "encoding", "cp1252", raising=False)
    print_json({"text": "Жук"})
    assert "\\u0416\\u0443\\u043a" in capsys.readouterr().out
