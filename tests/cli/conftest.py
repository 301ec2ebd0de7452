"""Run command lines in this process, and return the exit code and both streams."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specbench.analysis import intervals
from specbench.cli.app import main

from ..training.conftest import measured_by_weight


class Result(NamedTuple):
    """The result of a command line."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run ``specbench`` with some arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        code = exit.value.code
        assert isinstance(code, int)
        return Result(code, *capsys.readouterr())

    return run


def measured(folder: Path, line: str, resamples: int) -> Path:
    """Measure the paper's main methods on the bundled pair with these further options."""
    methods = "run -m autoregressive,sd,static,diversed --device cpu --no-progress --output"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exit:
        patch.setattr(intervals, "RESAMPLES", resamples)
        main([*methods.split(), str(folder), *line.split()])
    assert exit.value.code == 0
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of the bundled pair with two tasks, four methods, two draft lengths and two prompts."""
    line = "-t mini-math,mini-headline --weight 0.4 -n 2 --draft-length 2,3 --max-new-tokens 12"
    return str(measured(tmp_path_factory.mktemp("runs") / "small", line, 50))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, mini: Any) -> list[tuple[str, str, str]]:
    """Provide the loaded pair, train without measurements, and record what is loaded."""
    from specbench.engine import loading
    from specbench.training import material, verifier

    loaded: list[tuple[str, str, str]] = []

    def load_pair(spec: Any, how: Any) -> Any:
        loaded.append((spec.name, how.device, how.dtype))
        return mini

    monkeypatch.setattr(loading, "load_pair", load_pair)
    monkeypatch.setattr(material, "HELD_OUT", 12)
    monkeypatch.setattr(material, "FINAL", 12)
    monkeypatch.setattr(verifier.Training, "measure", measured_by_weight)
    return loaded
