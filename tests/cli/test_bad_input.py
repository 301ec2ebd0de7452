"""Failures that no command line shows: of the code, of permissions and of an installation."""

import errno
import os
import sys
from pathlib import Path

import pytest


def test_an_unexpected_failure_is_one_line(cli, monkeypatch):
    def broken():
        raise ZeroDivisionError("by nothing")

    from specbench.cli import lookup as module
    from specbench.cli.app import main

    monkeypatch.setitem(module.LISTS, "methods", broken)
    result = cli("list", "methods", code=1)
    assert "ZeroDivisionError: by nothing" in result.err and result.err.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "list", "methods"])


@pytest.mark.parametrize("line", ["run --output locked/r", "train"])
def test_a_folder_without_write_permission_is_refused(cli, engine, models, monkeypatch, line):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", denied)
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = cli(*line.split())
    assert (result.code, result.err.count("error: ")) == (2, 1)
    assert ("locked/r" if "locked" in line else "results/heads/mini/mini-code") in result.err
    assert engine.calls == models == []


@pytest.mark.parametrize("command", ["run -m sd -n 2", "train"])
def test_a_missing_extra_is_refused_with_its_install_command(cli, models, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = cli(*command.split(), "-t", "mini-math", "--workers", "2", code=2)
    assert "pip install '.[ray]'" in result.err
    assert models == [] and not list(Path().iterdir())
