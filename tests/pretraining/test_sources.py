"""Source code as training text: which files are read, and how an environment is recognised."""

import ast
import re
from pathlib import Path

import pytest
from pretraining import sources
from pretraining.sources import (
    Source,
    digest,
    documented,
    documents,
    first_sentence,
    read_package,
    read_splits,
    version_of,
)

from specbench.engine.pairs import PAIRS_FILE
from specbench.errors import UsageError
from specbench.schema import load_toml


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library with few files."""
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)


def test_tests_vendored_generated_and_large_files_are_left_out(library: Path) -> None:
    write(library, good="x = 1\n", sub__other="y = 2\n", empty="")
    write(library, test__a="a", sub__tests__b="b", sub__test_c="c", sub__conftest="d")
    write(library, _vendor__e="e", large="#" * 120_001, made="# Automatically generated\n")
    assert [(s.path, s.text) for s in read_package("python")] == [
        ("good.py", "x = 1\n"),
        ("sub/other.py", "y = 2\n"),
    ]


def test_a_digest_depends_on_paths_and_texts() -> None:
    found = {
        digest([Source("p", path, text)])
        for path, text in (("a.py", "x"), ("b.py", "x"), ("a.py", "y"))
    }
    assert len(found) == 3


def test_another_environment_is_refused_by_its_first_difference() -> None:
    right = f"{version_of('tabulate')} {digest(read_package('tabulate'))}"
    packages = {"train": {"tabulate": right}, "choice": {"six": "0.1 0123"}, "test": {}}
    with pytest.raises(UsageError, match=r"^six is \S+ \w{12} here, and 0\.1 0123 in the recipe"):
        read_splits(packages)
    with pytest.raises(UsageError, match="no-such-package is not installed"):
        read_splits({"train": {"no-such-package": "1 2"}, "choice": {}, "test": {}})


def test_a_text_occurs_once_and_rather_in_the_test_split(library: Path) -> None:
    write(library, a="x = 1\n", b="x = 1\n")
    wanted = f"{version_of('python')} {digest(read_package('python'))}"
    splits = read_splits({"train": {"python": wanted}, "choice": {}, "test": {"python": wanted}})
    assert [len(splits[name]) for name in ("train", "choice", "test")] == [0, 0, 1]


def test_documented_functions_become_code_and_sentence() -> None:
    text = '''
class A:
    def f(self, x):
        """Return twice the number.

        More text.
        """
        y = "kept"
        return 2 * x

    def g(self):
        """No code follows this docstring, so nothing can be summarised."""

    def h(self):
        return 1
'''
    ((code, sentence),) = documented(text)
    assert sentence == "Return twice the number."
    assert code == 'def f(self, x):\n    y = "kept"\n    return 2 * x\n"""'
    ast.parse(code.removesuffix('"""'))
    found = list(documents([Source("p", "a.py", text)], seed=0))
    assert sorted(map(len, found)) == sorted([len(text), len(code + sentence + '"""\n')])


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Return a thing that\n  is long. And more.", "Return a thing that is long."),
        ("Short.", ""),
        ("", ""),
        (">>> f(1)  # an example and no sentence", ""),
        ('Say "quoted" words in a sentence.', ""),
    ],
)
def test_first_sentences_are_on_one_line(docstring: str, expected: str) -> None:
    assert first_sentence(docstring) == expected


def test_the_recipe_keeps_its_splits_apart() -> None:
    packages = load_toml(PAIRS_FILE.parent / "python" / "recipe.toml", "recipe")["packages"]
    names = [name for split in sources.SPLITS for name in packages[split]]
    assert len(names) == len(set(names))
    for split in sources.SPLITS:
        assert all(re.fullmatch(r"\S+ [0-9a-f]{12}", v) for v in packages[split].values())
