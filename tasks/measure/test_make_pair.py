"""Pretraining: source code as text, which tokens have loss, builds at toy size, and resuming."""

import ast
import lzma
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from make_pair import make_pair
from pretraining import loop, sources
from pretraining.corpus import SEED, Corpus
from pretraining.models import EOS, build_tokenizer
from pretraining.texts import IGNORED, Generated
from safetensors.torch import load_file

from specbench.engine.loading import load_pair
from specbench.engine.pairs import PAIRS_FILE, ROLES, Loading, PairSpec
from specbench.errors import UsageError
from specbench.schema import load_toml
from specbench.tasks.mini import MODULES, generate

RECIPE = """
[tokenizer]
vocabulary = 400
examples = 30

[examples]
mini-headline = 4

[target]
hidden = 16
layers = 2
heads = 2
intermediate = 32
steps = 30
learning_rate = 0.01
style = "target"
seed = 1

[draft]
hidden = 16
layers = 1
heads = 2
intermediate = 32
steps = 10
learning_rate = 0.01
style = "draft"
seed = 2
"""


SOURCES = """
[tokenizer]
vocabulary = 400
characters = 50000

[corpus]
rows_per_step = 8

[target]
hidden = 16
layers = 1
heads = 2
intermediate = 32
steps = 3
learning_rate = 0.01
seed = 1

[packages.train]
tabulate = "{tabulate}"

[packages.choice]
six = "{six}"

[packages.test]
safetensors = "{safetensors}"
"""


UNITS = ("token", "character")


class Killed(Exception):
    """Stands for a kill in the middle of a step."""


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(Generated({}, 50).for_tokenizer(), vocabulary=600)


def test_digits_stay_single_and_any_text_survives(tokenizer):
    assert "12" not in tokenizer.get_vocab()
    text = "Zoë paid 1234 € for 56?\n\tYes."
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("name", MODULES)
def test_only_answers_carry_loss(tokenizer, name):
    texts = Generated({name: 3}, 0)
    texts.encode(tokenizer)
    ((_, _, ids, labels),) = texts.batches(0, "target")
    assert ids.shape == labels.shape
    assert ids.shape[1] % 16 == 0
    for row in range(3):
        example = generate(name, "train", row, "target")
        wanted = labels[row][labels[row] != IGNORED]
        assert wanted[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(wanted[:-1]) == example.reference
        first = int((labels[row] != IGNORED).nonzero()[0])
        # The first answer token is predicted at the prompt's last token.
        prompt = tokenizer.decode(ids[row, : first + 1], skip_special_tokens=True)
        assert prompt == example.prompt


def test_the_models_of_a_pair_fit_each_other(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    make_pair(recipe, tmp_path / "out", ROLES)
    spec = PairSpec("toy", *(str(tmp_path / "out" / role) for role in ROLES))
    pair = load_pair(spec, Loading(device="cpu"))
    assert (pair.target.hidden_size, pair.draft.hidden_size) == (16, 16)


def test_a_killed_build_resumes_to_the_same_model(tmp_path, monkeypatch):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    make_pair(recipe, tmp_path / "whole", ["draft"])

    honest = Generated.batches

    def batches(self, step, style):
        if step == 6:
            raise Killed
        return honest(self, step, style)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Generated, "batches", batches)
        make_pair(recipe, tmp_path / "killed", ["draft"])
    used: list[int] = []

    def noted(self, step, style):
        used.append(step)
        return honest(self, step, style)

    monkeypatch.setattr(Generated, "batches", noted)
    make_pair(recipe, tmp_path / "killed", ["draft"])
    assert used == [6, 7, 8, 9]
    whole, resumed = (
        load_file(tmp_path / name / "draft" / "model.safetensors") for name in ("whole", "killed")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    recipe.write_text(RECIPE.replace("learning_rate = 0.01", "learning_rate = 0.02"))
    with pytest.raises(UsageError, match="is of another recipe"):
        make_pair(recipe, tmp_path / "killed", ["draft"])


def test_a_pair_is_built_from_source_code(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "can_compile", lambda: False)  # compiling takes half a minute
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    packages = {name: described(name) for name in ("tabulate", "six", "safetensors")}
    recipe.write_text(SOURCES.format_map(packages))
    make_pair(recipe, out, ["target"])
    curve = pd.read_csv(out / "target" / "training.csv")
    assert curve["step"].tolist() == [3]
    # A token has several characters.
    per_token, per_character = (curve[f"held_out_test_per_{u}"].item() for u in UNITS)
    assert 1.2 < per_token / per_character < 4


def test_packed_source_code_stands_for_the_packages(tmp_path, monkeypatch):
    packages = {"train": {"tabulate": described("tabulate")}, "choice": {"six": described("six")}}
    packages["test"] = {}
    packed = tmp_path / "sources.jsonl.xz"
    sources.pack_sources(packages, packed)
    installed = sources.read_splits(packages)
    monkeypatch.setattr(sources, "distribution", None)  # nothing is installed
    assert sources.read_splits(packages, packed) == installed
    lines = lzma.decompress(packed.read_bytes())
    packed.write_bytes(lzma.compress(lines.replace(b"import", b"export", 1)))
    with pytest.raises(UsageError, match="are not the recipe's: pack them again"):
        sources.read_splits(packages, packed)


def test_blocks_are_the_texts_without_a_gap(tmp_path):
    packages = {"train": {"tabulate": described("tabulate")}, "choice": {}, "test": {}}
    corpus = Corpus(packages, for_merges=50_000, folder=tmp_path, rows_per_step=8)
    tokenizer = build_tokenizer(corpus.for_tokenizer(), 400)
    corpus.encode(tokenizer)
    used = []
    for step in range(2):
        (batch,) = corpus.batches(step, None)
        assert (batch.ids[:, 0] == tokenizer.bos_token_id).all()
        assert torch.equal(batch.ids[:, 1:], batch.labels[:, :-1])
        used += batch.labels.tolist()
    assert used == corpus.blocks[corpus.order[:16]].tolist()
    stream = tokenizer.decode(corpus.blocks.flatten())
    whole = "".join(text + EOS for text in sources.documents(corpus.splits["train"], SEED))
    assert whole.startswith(stream)
    assert len(whole) - len(stream) < 512 * 10


def described(name: str) -> str:
    """Return the package's entry in a recipe."""
    return f"{sources.version_of(name)} {sources.digest(sources.read_package(name))}"


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A standard library with few files."""
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)


def test_tests_vendored_generated_and_large_files_are_left_out(library):
    write(library, good="x = 1\n", sub__other="y = 2\n", empty="")
    write(library, test__a="a", sub__tests__b="b", sub__test_c="c", sub__conftest="d")
    write(library, _vendor__e="e", large="#" * 120_001, made="# Automatically generated\n")
    assert [(s.path, s.text) for s in sources.read_package("python")] == [
        ("good.py", "x = 1\n"),
        ("sub/other.py", "y = 2\n"),
    ]


def test_a_digest_depends_on_paths_and_texts():
    digests = {
        sources.digest([sources.CorpusSource("p", path, text)])
        for path, text in (("a.py", "x"), ("b.py", "x"), ("a.py", "y"))
    }
    assert len(digests) == 3


def test_another_environment_is_refused_by_its_first_difference():
    packages = {"train": {"tabulate": described("tabulate")}, "choice": {"six": "0.1 0123"}}
    packages["test"] = {}
    with pytest.raises(UsageError, match=r"^six is \S+ \w{12} here, and 0\.1 0123 in the recipe"):
        sources.read_splits(packages)
    with pytest.raises(UsageError, match="no-such-package is not installed"):
        sources.read_splits({"train": {"no-such-package": "1 2"}, "choice": {}, "test": {}})


def test_a_text_occurs_once_and_rather_in_the_test_split(library):
    write(library, a="x = 1\n", b="x = 1\n")
    python = {"python": described("python")}
    splits = sources.read_splits({"train": python, "choice": {}, "test": python})
    assert [len(splits[name]) for name in ("train", "choice", "test")] == [0, 0, 1]


def test_documented_functions_become_code_and_sentence():
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
    ((code, sentence),) = sources.documented(text)
    assert sentence == "Return twice the number."
    assert code == 'def f(self, x):\n    y = "kept"\n    return 2 * x\n"""'
    ast.parse(code.removesuffix('"""'))
    texts = list(sources.documents([sources.CorpusSource("p", "a.py", text)], seed=0))
    assert sorted(map(len, texts)) == sorted([len(text), len(code + sentence + '"""\n')])


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
def test_first_sentences_are_on_one_line(docstring, expected):
    assert sources.first_sentence(docstring) == expected


def test_the_recipe_keeps_its_splits_apart():
    packages = load_toml(PAIRS_FILE.parent / "python" / "recipe.toml", "recipe")["packages"]
    names = [name for split in sources.SPLITS for name in packages[split]]
    assert len(names) == len(set(names))
    for split in sources.SPLITS:
        assert all(re.fullmatch(r"\S+ [0-9a-f]{12}", v) for v in packages[split].values())
