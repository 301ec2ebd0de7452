import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import specbench

ROOT = Path(specbench.__file__).parent
FACE = "specbench"  # its ``__init__``, the public interface
PACKAGES = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
LOADED_LATER = re.compile(r"(specbench[\w.]+):\w+")  # as functions are named in registries


def package(name: str) -> str:
    """Return the package or single module that contains a dotted name."""
    part = f"{name}.".split(".")[1]
    return part if part in PACKAGES - {"__init__"} else FACE


def imports(path: Path, module: str) -> set[str]:
    """Return the full names that a module imports from specbench."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            within = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*within, *filter(None, [node.module])])
            found |= {f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(LOADED_LATER.findall(node.value))
    return {name for name in found if name.split(".")[0] == FACE}


def needs_of_packages() -> dict[str, set[str]]:
    """Return the packages that each package imports, see the tests."""
    graph: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        module = ".".join([FACE, *path.relative_to(ROOT).with_suffix("").parts])
        needs = {package(name) for name in imports(path, module)} - {package(module)}
        graph.setdefault(package(module), set()).update(needs)
    return graph


def test_the_packages_import_each_other_in_one_direction() -> None:
    """No package depends on itself, directly or through others.

    Imports inside functions and for type checking count too, and functions that a registry names:
    they cannot fail at import, but a package cannot be read or moved without them.
    """
    graph = needs_of_packages()
    assert {"methods", "engine"} <= graph["decoding"]
    assert "loaded" in graph[FACE]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def reached_from(*names: str) -> set[str]:
    """Return the packages that these packages import, directly or through others."""
    graph, reached, new = needs_of_packages(), set[str](), set(names)
    while new:
        reached |= new
        new = set().union(*(graph.get(name, set()) for name in new)) - reached
    return reached


def test_the_half_that_measures_needs_nothing_of_the_half_that_analyses() -> None:
    measuring = reached_from("experiment", "runs")
    assert {"decoding", "engine"} <= measuring
    assert not measuring & {"analysis", "figures", "report", "results"}


def test_the_half_that_analyses_needs_no_models() -> None:
    """Only ``trace`` reads a tokenizer, which ``report`` shows."""
    reading = reached_from("analysis", "figures", "results", "loaded", "runs")
    assert {"table", "methods"} <= reading
    assert not reading & {"engine", "decoding", "heads", "experiment", "training", "cluster"}
    assert "engine" in reached_from("trace")


CORE = ("decoding", "methods")
MOST_FILES, MOST_LINES = 40, 5000


def test_the_core_reads_in_an_afternoon() -> None:
    """The round, rules, laws, drafters and records run without the rest of the package."""
    paths = [path for name in CORE for path in sorted((ROOT / name).glob("*.py"))]
    modules = [".".join([FACE, *path.relative_to(ROOT).with_suffix("").parts]) for path in paths]
    code = f"""
import sys
from importlib import import_module

for name in {modules}:
    import_module(name.removesuffix(".__init__"))
print(*(m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "{FACE}"), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stdout.splitlines()]
    assert set(paths) <= set(files) and len(files) <= MOST_FILES
    lines = sum(file.read_text().count("\n") for file in files)
    assert lines <= MOST_LINES, {file.stem: file.read_text().count("\n") for file in files}
