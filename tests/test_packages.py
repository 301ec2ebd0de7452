import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import specbench
from specbench.cli.commands import COMMANDS, load

ROOT = Path(specbench.__file__).parent
FACE = "specbench"  # its ``__init__``, the public interface
VERSION = f"{FACE}.__version__"
ROOMS = {
    *("analysis", "cli", "decoding", "engine", "experiment", "methods"),
    *("pricing", "runs", "serving", "tasks", "training", "validation"),
}
MEASURING = {"decoding", "engine", "experiment", "training", "validation"}
LOOSE = {"config", "errors", "files", "plugins", "schema"}
DATA = {"docs", "pairs"}
LOADED_LATER = re.compile(r"(specbench[\w.]+):\w+")  # as functions are named in registries


def room(name: str) -> str:
    part = f"{name}.".split(".")[1]
    return part if part in ROOMS | LOOSE | DATA | {"__main__"} else FACE


@cache
def module(name: str) -> str:
    path = ROOT.parent / name.replace(".", "/")
    return name if path.is_dir() or path.with_suffix(".py").is_file() else name.rpartition(".")[0]


def imports(path: Path, importing: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            within = importing.split(".")[: -node.level] if node.level else []
            source = ".".join([*within, *filter(None, [node.module])])
            names |= {f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(LOADED_LATER.findall(node.value))
    names.discard(VERSION)  # a constant of the face, which needs nothing
    return {name for name in names if name.split(".")[0] == FACE}


@cache
def needed() -> dict[str, set[str]]:
    """Return the full names that each module imports.

    Imports inside functions and for type checking count too, and functions that a registry names:
    they cannot fail at import, but a room cannot be read or moved without them.
    """
    paths = {dotted(path): path for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): imports(path, name) for name, path in paths.items()}


def dotted(path: Path) -> str:
    return ".".join([FACE, *path.relative_to(ROOT).with_suffix("").parts])


def test_twelve_rooms_import_each_other_in_one_direction():
    entries = {path.stem for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert entries == ROOMS | LOOSE | DATA | {"__init__", "__main__"}
    assert len(ROOMS) == 12
    assert not [path for name in DATA for path in (ROOT / name).rglob("__init__.py")]
    # No room, and no module of those that measure, depends on itself through others.
    graph = defaultdict[str, set[str]](set)
    for name, names in needed().items():
        graph[room(name)] |= {*map(room, names)} - {room(name)}
    assert {"methods", "engine"} <= graph["decoding"]
    assert "analysis" in graph[FACE]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle
    modules = {name: {*map(module, names)} - {name} for name, names in needed().items()}
    TopologicalSorter({n: of for n, of in modules.items() if room(n) in MEASURING}).prepare()


def reached_from(*packages: str, without: tuple[str, ...] = ()) -> set[str]:
    """Return the modules that packages need, but ``without`` those of some packages in them."""
    folders = [ROOT / name.replace(".", "/") for name in packages]
    paths = (path for folder in folders for path in folder.rglob("*.py"))
    left_out = tuple(f"{FACE}.{name}" for name in without)
    new = {dotted(path).removesuffix(".__init__") for path in paths}
    new = {name for name in new if not name.startswith(left_out)}
    reached = set[str]()
    while new:
        reached |= new
        new = {module(name) for user in new for name in needed().get(user, ())} - reached
    return {name.removeprefix(f"{FACE}.") for name in reached}


def test_the_halves_that_measure_and_analyse_need_nothing_of_each_other():
    measuring = reached_from("experiment", "runs")
    assert {"decoding.loop", "engine.runner"} <= measuring
    assert not {name for name in measuring if name.startswith("analysis")}
    # Only ``analysis.trace`` reads a tokenizer, which ``analysis.report`` shows.
    reading = reached_from("analysis", "runs", without=("analysis.trace", "analysis.report"))
    assert {"methods.registry", "analysis.tables.table", "engine.pairs"} <= reading
    models = ("engine", "decoding", "experiment", "training")
    assert {name for name in reading if name.startswith(models)} == {"engine.pairs"}
    assert "engine.sources" in reached_from("analysis.trace")


CORE = ("decoding", "methods")
MOST_FILES, MOST_LINES = 40, 5000


def test_the_core_reads_in_an_afternoon():
    """The round, rules, laws, drafters and records run without the rest of the package."""
    paths = [path for name in CORE for path in sorted((ROOT / name).glob("*.py"))]
    names = [dotted(path).removesuffix(".__init__") for path in paths]
    code = f"import sys, {', '.join(names)}\nfor name, module in sys.modules.items():\n"
    code += f"    if name.split('.')[0] == '{FACE}': print(module.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stdout.splitlines()]
    assert set(paths) <= set(files) and len(files) <= MOST_FILES
    lines = sum(file.read_text().count("\n") for file in files)
    assert lines <= MOST_LINES, {file.stem: file.read_text().count("\n") for file in files}


#: Lines of Python and functions; a commit that needs room takes away first.
CEILINGS = {"specbench": (46_150, 2500), "tests": (31_500, None)}
OPTIONS = 385  # of all commands together


def test_the_house_does_not_grow():
    for name, (most_lines, most_functions) in CEILINGS.items():
        texts = [path.read_text() for path in sorted((ROOT.parent / name).rglob("*.py"))]
        assert sum(text.count("\n") for text in texts) <= most_lines, name
        functions = sum(len(re.findall(r"^ *(?:async )?def ", text, re.M)) for text in texts)
        assert most_functions is None or functions <= most_functions, name
    parameters = [parameter for name in COMMANDS for parameter in load(name).params]
    assert sum(parameter.param_type_name == "option" for parameter in parameters) <= OPTIONS
