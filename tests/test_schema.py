import random
from typing import Literal

import pytest
from pydantic import Field, model_validator

from specbench.errors import UsageError
from specbench.schema import StrictModel, Text, Texts, problems, read_toml, validated


class Layer(StrictModel):
    size: int = Field(ge=1)
    rate: float = Field(1.0, gt=0, lt=10)
    dtype: Literal["float32", "bfloat16"] = "float32"


class Document(StrictModel):
    name: Text
    stop: Texts = ()
    layer: Layer | None = None
    layers: dict[str, Layer] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_clash(self) -> "Document":
        if self.name in self.stop:
            raise ValueError("`stop` holds `name`; leave one out")
        return self


def test_values_are_of_the_declared_types():
    made = validated(Document, {"name": "a", "stop": ["b"], "layer": {"size": 1, "rate": 3}})
    assert made.stop == ("b",)
    assert made.layer is not None and type(made.layer.rate) is float
    assert validated(dict[str, Layer], {"a": {"size": 2}})["a"] == Layer(size=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "`name` is missing; add it"),
        ({"name": ""}, "`name` is empty; fill it in"),
        ({"name": 1}, "`name` must be a string, not 1"),
        ({"nam": "a"}, "`nam` is unknown; did you mean `name`? (and 1 more problem)"),
        ({"name": "a", "zzz": 1}, "`zzz` is unknown; choose one of `name`, `stop`, `layer`"),
        ({"name": "a", "x\ny": 1}, "`x y` is unknown; choose one of"),
        ({"name": "a", "stop": "x"}, "`stop` must be a list, not 'x'"),
        ({"name": "a", "stop": ["x", ""]}, "`stop[1]` is empty; fill it in"),
        ({"name": "a", "stop": ["a"]}, "`stop` holds `name`; leave one out"),
        ({"name": "a", "layer": 3}, "`layer` must be a table, not 3"),
        ({"name": "a", "layer": {"size": 0}}, "`layer.size` must be 1 or more, not 0"),
        ({"name": "a", "layer": {"size": True}}, "`layer.size` must be an integer, not True"),
        ({"name": "a", "layer": {"size": 1.0}}, "`layer.size` must be an integer, not 1.0"),
        (
            {"name": "a", "layer": {"size": 1, "rate": float("nan")}},
            "`layer.rate` must be a finite",
        ),
        ({"name": "a", "layer": {"size": 1, "rate": 0}}, "`layer.rate` must be above 0, not 0"),
        (
            {"name": "a", "layers": {"q": {"size": 1, "rte": 1}}},
            "`layers.q.rte` is unknown; did you mean `layers.q.rate`?",
        ),
        (
            {"name": "a", "layers": {"q": {"size": 1, "dtype": "float31"}}},
            "`layers.q.dtype` must be one of `float32`, `bfloat16`, not 'float31'; did you mean "
            "`float32`?",
        ),
        (3, "must be a table, not 3"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(values, message):
    with pytest.raises(UsageError) as caught:
        validated(Document, values, "file.toml")
    assert str(caught.value).startswith(f"file.toml: {message}")
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_found():
    mistakes = problems(Document, {"name": "", "layer": {"size": 0}, "zzz": 1})
    assert [problem.key for problem in mistakes] == ["zzz", "name", "layer.size"]
    assert problems(Document, {"name": "a"}) == []


def test_a_file_is_read_or_refused_in_one_line(tmp_path):
    """A file with random changes is either read or refused in one line."""
    path, chance, refused = tmp_path / "a.toml", random.Random(0), 0
    original = b'name = "a"\nstop = ["b"]\n[layer]\nsize = 1\n[layers.q]\nsize = 2\nrate = 0.5\n'
    path.write_bytes(original)
    assert read_toml(path, Document).layers["q"].rate == 0.5
    for _ in range(200):
        broken = bytearray(original)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(broken))
            broken[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 2))
        path.write_bytes(broken)
        try:
            read_toml(path, Document)
        except UsageError as error:
            refused += 1
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    assert refused > 100
    for raw in (b"\xff\xfe", b"name = '\x00'", b"a = " + b"[" * 20_000):
        path.write_bytes(raw)
        with pytest.raises(UsageError, match=r"a\.toml: not valid TOML: "):
            read_toml(path, Document)
    with pytest.raises(UsageError, match=r"cannot read the list .*no\.toml: No such"):
        read_toml(tmp_path / "no.toml", Document, "list")
