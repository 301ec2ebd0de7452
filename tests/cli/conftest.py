"""A runner of command lines: in this process, with the exit code and both streams."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from specbench.cli.app import main


class Result(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Run ``specbench`` with some arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        code = exit.value.code
        assert isinstance(code, int)
        return Result(code, *capsys.readouterr())

    return run
