"""Pairs in a user's own file: found beside it, and checked with every error located."""

import random
import re
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.pairs.registry import PAIRS_FILE, get_pair, read_pairs

ONE = """
[mine]
target = "./models/big"
draft = "org/small"
"""
FULL = """
[mine]
description = "two of mine"
target = "../big"
draft = "/models/small"
heads = "./heads"
dtype = "float32"
target_revision = "v1"
draft_revision = "abc123"
thinking = true
training = { learning_rate = 0.1 }

[mine.architecture.target]
model_type = "llama"
hidden_size = 64
rope_theta = 10000

[other]
target = "org/a"
draft = "org/b"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "my pairs.toml"


def test_the_only_pair_of_a_file_needs_no_name(file: Path) -> None:
    file.write_text(ONE)
    pair = get_pair(str(file))
    assert (pair.name, pair.target, pair.draft) == (
        "mine",
        str(file.parent / "models/big"),
        "org/small",
    )
    assert pair == get_pair(f"{file}:mine")
    assert (pair.thinking, pair.target_revision, pair.heads) == (False, None, None)


def test_every_key_is_read(file: Path) -> None:
    file.write_text(FULL)
    pair = get_pair(f"{file}:mine")
    assert (pair.target, pair.draft) == (str(file.parent / "../big"), "/models/small")
    assert pair.heads == file.parent / "heads"
    assert (pair.target_revision, pair.draft_revision) == ("v1", "abc123")
    assert (pair.dtype, pair.thinking) == ("float32", True)
    assert pair.training == {"learning_rate": 0.1}
    assert pair.architecture["target"]["rope_theta"] == 10000.0
    assert type(pair.architecture["target"]["rope_theta"]) is float
    assert get_pair(f"{file}:other").target == "org/a"


def test_one_of_several_pairs_must_be_named(file: Path) -> None:
    file.write_text(FULL)
    with pytest.raises(UsageError, match=r"holds several pairs \(mine, other\); name one, as in"):
        get_pair(str(file))
    with pytest.raises(UsageError, match=r"my pairs\.toml: unknown pair `mime`; did you mean"):
        get_pair(f"{file}:mime")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no pair; add a table"),
        ("x = 1", "`x` must be a table"),
        ("[mine", "not valid TOML: "),
        ("['../up']\ntarget = 'a/b'\ndraft = 'a/c'", "cannot name a pair"),
        ("[m]\ndraft = 'a/b'", "[m] missing key `target`; add it"),
        ("[m]\ntarget = 'a/b'\ndraft = 3", "[m] `draft` must be a string that is not empty, not 3"),
        ("[m]\ntarget = ''", "[m] `target` must be a string that is not empty"),
        ("[m]\ntarge = 'a/b'", "[m] unknown key `targe`; did you mean `target`?"),
        ("[m]\nthinking = 'no'", "[m] `thinking` must be true or false, not 'no'"),
        ("[m]\ntraining = 1", "[m] `training` must be a table"),
        (
            "[m]\ntarget = 'a/b'\ndraft = 'a/c'\ndtype = 'float31'",
            "[m] unknown dtype `float31`; did you mean `float32`?",
        ),
        ("[m]\ntarget = 'a/b'\ndraft = 'a/c'\n[m.architecture.big]", "unknown key `big`"),
        (
            "[m]\ntarget = 'a/b'\ndraft = 'a/c'\narchitecture.target = 1",
            "[m.architecture.target] must be a table, not 1",
        ),
        (
            "[m]\ntarget = 'a/b'\ndraft = 'a/c'\n[m.architecture.target]",
            "[m.architecture.target] missing key `model_type`",
        ),
        *(
            (
                "[m]\ntarget = 'a/b'\ndraft = 'a/c'\n[m.architecture.draft]\n"
                f"model_type = 'llama'\n{line}",
                f"[m.architecture.draft] {told}",
            )
            for line, told in {
                "hiden_size = 1": "unknown key `hiden_size`; did you mean `hidden_size`?",
                "hidden_size = 0": "`hidden_size` must be a positive integer, not 0",
                "hidden_size = true": "`hidden_size` must be a positive integer, not True",
                "rope_theta = nan": "`rope_theta` must be a positive number, not nan",
                "layer_types = [1]": "`layer_types` must be a list of strings",
                "rope_scaling = 'llama3'": "`rope_scaling` must be a table",
            }.items()
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=f"^{re.escape(str(file))}: .*{re.escape(told)}"):
        get_pair(str(file))


@pytest.mark.parametrize("name", ["no.toml", "no.toml:mine", "."])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"cannot read the pair file .*: [NI]"):
        get_pair(str(tmp_path / name)) if name != "." else read_pairs(tmp_path)


def test_a_broken_file_never_gives_more_than_one_line(file: Path) -> None:
    """Bytes of the package's own file, changed at random: read or refused, nothing else."""
    original, chance = PAIRS_FILE.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(150):
        broken = bytearray(original)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(broken))
            broken[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 2))
        file.write_bytes(broken)
        try:
            read_pairs(file)
        except UsageError as error:
            refused += 1
            assert str(file) in str(error) and "\n" not in str(error)
    assert refused > 75


@pytest.mark.parametrize("raw", [b"\xff\xfe[m]", b"[m]\ntarget = '\x00'", b"[" * 20_000])
def test_bytes_that_are_no_text_are_refused(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)
    with pytest.raises(UsageError, match="not valid TOML"):
        get_pair(str(file))
