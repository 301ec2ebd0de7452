import random
from typing import Any, Literal

import pytest
from pydantic import Field, model_validator

from specbench.errors import UsageError
from specbench.schema import StrictModel, Text, Texts, read_toml, validated

from .told import refusals


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


def layers(**values: Any) -> dict[str, Any]:
    return {"name": "a", "layers": {"q": {"size": 1, **values}}}


WRONG: list[Any] = [
    *(
        *({}, {"name": ""}, {"name": 1}, {"nam": "a"}, {"name": "a", "zzz": 1}),
        {"name": "a", "x\ny": 1},
    ),
    *({"name": "a", "stop": stop} for stop in ("x", ["x", ""], ["a"])),
    *({"name": "a", "layer": layer} for layer in (3, *({"size": size} for size in (0, True, 1.0)))),
    *({"name": "a", "layer": {"size": 1, "rate": rate}} for rate in (float("nan"), 0)),
    *(layers(rte=1), layers(dtype="float31"), 3),
]


def test_a_mistake_is_one_sentence_with_its_place(stored):
    messages = []
    for values in WRONG:
        message = refusals(lambda values=values: validated(Document, values, "file.toml"))
        assert message.count("\n") == 1
        messages.append(f"{values}\n{message}")
    stored(*messages)


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
