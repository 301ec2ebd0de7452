"""Run command lines in this process, and return the exit code and both streams."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from specbench.analysis.figures import style
from specbench.cli.app import main
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.experiment.loader import Loader
from specbench.experiment.progress import LINES

from ..training.conftest import measured_by_weight
from .made import reduce_run


class Result(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Result]
LOADED: dict[str, LoadedPair] = {}  # the bundled pair by its options


def load_once(spec: PairSpec, loading: Loading) -> LoadedPair:
    """Load a pair; the bundled one is kept as ``Loader`` keeps the last pair."""
    if spec != get_pair("mini"):
        return load_pair(spec, loading)
    if (key := repr(loading)) not in LOADED:
        LOADED[key] = load_pair(spec, loading)
    LOADED[key].drop_caches()
    return LOADED[key]


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch) -> None:
    """Load the bundled pair once for all runs; ``tests/engine`` tests loading."""
    initialise = Loader.__init__

    def keeping(loader: Loader, load: Any = load_once, *more: Any, **named: Any) -> None:
        initialise(loader, load, *more, **named)

    monkeypatch.setattr(Loader, "__init__", keeping)


@pytest.fixture(autouse=True)
def vectors_alone(monkeypatch) -> None:
    """Write each figure once; ``tests/analysis/figures`` writes it in every format."""
    monkeypatch.setattr(style, "_CANVASES", {"svg": style._CANVASES["svg"]})


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys) -> Cli:
    """Run ``specbench`` with some arguments in an empty folder; it must end with ``code``.

    With ``--no-progress`` it must print none.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # that of the terminal, or of pytest-xdist
    monkeypatch.setattr("specbench.serving.client.PAUSE", 0.01)  # before a request is repeated

    monkeypatch.setattr(LINES, "printed", printed := Mock(wraps=LINES.printed))

    def run(*arguments: str, code: int | None = None) -> Result:
        printed.reset_mock()
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert isinstance(exit.value.code, int)
        assert not ("--no-progress" in arguments and printed.called)
        result = Result(exit.value.code, *capsys.readouterr())
        assert code in (None, result.code), result
        return result

    return run


def imported(*lines: str, code: int = 0) -> set[str]:
    """Return the modules that command lines, which end with a code, import in a new process."""
    program = (
        "import sys\n"
        "from specbench.cli.app import main\n"
        "for line in sys.argv[1:]:\n"
        "    try: main(line.split())\n"
        f"    except SystemExit as end: assert end.code == {code}\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.fixture
def report_without_figures(monkeypatch) -> None:
    """Draw no figures in reports: it is slow, and ``tests/analysis/report`` tests them."""
    monkeypatch.setattr("specbench.analysis.report.build.figures", lambda *cells: [])


def measured(folder: Path, line: str) -> None:
    """Measure the paper's main methods on the bundled pair with these further options."""
    methods = "run -m autoregressive,sd,static,diversed --device cpu --no-progress --output"
    with pytest.raises(SystemExit) as exit:
        main([*methods.split(), str(folder), *line.split()])
    assert exit.value.code == 0


@pytest.fixture(scope="session")
def finished(once) -> str:
    """A run of the bundled pair with two tasks, four methods, two draft lengths and two prompts."""
    line = "-t mini-math,mini-headline --set weight=0.4 -n 2 --draft-length 2,3 --max-new-tokens 12"
    return str(once("small", lambda folder: measured(folder, line)))


@pytest.fixture(scope="session")
def one_task(once, finished) -> Path:
    """The finished run with one of its tasks, one of its draft lengths and no static ensemble."""

    def fits(row: dict[str, Any]) -> bool:
        left_out = row["method"] == "static" or row["draft_length"] == 2
        return row["task"] == "mini-math" and not left_out

    def reduce(folder: Path) -> None:
        shutil.copytree(finished, folder)
        reduce_run(folder, fits)

    return once("one task", reduce)


@pytest.fixture
def run(one_task, tmp_path) -> Path:
    """A copy of the run with one task, which a test may change; some files have another run."""
    return Path(shutil.copytree(one_task, tmp_path / "r"))


@pytest.fixture
def models(monkeypatch, mini) -> list[tuple[str, str, str]]:
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
