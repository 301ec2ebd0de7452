"""Options generated from the fields of models; options that would be ignored are refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import typer

from specbench.cli.generate import grouped, split
from specbench.cli.methods import Methods
from specbench.cli.options import Models, RunSettings, Tasks
from specbench.config import Options, option
from specbench.engine.pairs import Loading, custom_pair, get_pair, with_draft
from specbench.errors import RunError, UsageError
from specbench.methods.registry import METHODS
from specbench.runs.configuration import Settings


class Drawing(Options):
    size: float = option(2.0, "How large.", gt=0)
    shades: list[int] = option([3, 5], "Numbers.", flags=("--shades", "-s"))
    names: list[str] | None = option(None, "Words.", complete=lambda: ["red", "blue"])
    paper: Literal["a4", "a5"] = option("a4", "Its format.")
    inks: list[str] | None = option(None, "Colours.", choices=("black", "blue"))
    frame: bool = option(False, "Draw a frame.")


class Sketch(Drawing):
    """More options, which the help lists first."""

    pencil: str = option(..., "What with.", shown="none")


def typed(*arguments: str) -> Sketch:
    """The parameters that a command receives."""
    got: list[Sketch] = []

    @grouped
    def draw(sketch: Sketch) -> None:
        """Draw."""
        got.append(sketch)

    app = typer.Typer()
    app.command()(draw)
    app(arguments, standalone_mode=False)
    return got[0]


def test_a_command_that_a_library_ends_is_an_error():
    @grouped
    def ends(sketch: Sketch) -> None:
        """End the process with the exit code of success."""
        sys.exit(0)

    app = typer.Typer()
    app.command()(ends)
    with pytest.raises(RunError, match=r"called sys\.exit\(0\)"):
        app(["--pencil", "red"], standalone_mode=False)


def test_a_field_is_an_option_with_its_type_and_default():
    assert typed("--pencil", "2b", "--names", "a,b", "--names", "a").names == ["a", "b"]
    assert typed("--pencil", "2b").model_dump() == {
        **{"size": 2.0, "shades": [3, 5], "names": None, "inks": None},
        **{"paper": "a4", "frame": False},
        "pencil": "2b",
    }
    line = (
        "--pencil hb --size 3 -s 1,2 --shades 2,4 --names red,blue --paper a5 --inks blue --frame"
    )
    sketch = typed(*line.split())
    assert (sketch.size, sketch.shades, sketch.names) == (3.0, [1, 2, 4], ["red", "blue"])
    assert (sketch.paper, sketch.frame) == ("a5", True)
    assert sketch.model_fields_set == set(Sketch.model_fields)
    assert Sketch.ordered_fields()[0] == "pencil"


def test_explicit_options_override_a_preset_and_become_arguments_where_they_differ():
    preset = RunSettings(preset="paper")
    assert (preset.limit, preset.max_new_tokens, preset.draft_length) == (100, 128, [5])
    changed = RunSettings(preset="paper", limit=3, max_new_tokens=None)
    assert (changed.limit, changed.max_new_tokens, changed.max_prompt_tokens) == (3, None, 2048)
    assert set(preset.part(Settings).model_dump()) == set(Settings.model_fields)
    assert Models().retyped() == Tasks().retyped() == []
    models = Models(pair="llama", threads=2, dtype="bfloat16", trust_remote_code=True)
    tasks = Tasks(task=["gsm8k", "my task.toml"], folder=Path("files"), shots=0)
    assert models.retyped() == [
        *("--pair", "llama", "--dtype", "bfloat16", "--threads", "2"),
        "--trust-remote-code",
    ]
    assert tasks.retyped() == [
        *("--task", "gsm8k", "--task", "my task.toml", "--data", "files", "--shots", "0")
    ]
    assert models.updated(pair="mini").part(Loading).threads == 2


def test_a_pair_is_named_or_made_of_models_and_paper_is_the_papers_methods():
    assert Models().spec() == get_pair("mini")
    assert Models(pair="llama", draft="a/b").spec() == with_draft(get_pair("llama"), "a/b")
    assert Models(target="a/b", draft="a/c").spec() == custom_pair("a/b", "a/c")
    paper = ["autoregressive", "sd", "lossy", "speccascade", "static", "diversed"]
    assert Methods().names == Methods(method=["paper"]).names == paper
    assert Methods(method=["all"]).names == list(METHODS)
    some = Methods(method=["sd", "paper"])
    assert some.names[:2] == ["sd", "autoregressive"]
    assert some.optional == {*paper} - {"sd"}  # only methods named explicitly need a head


def test_offline_applies_to_models_too():
    """This needs a new process, because the hub's library reads the variable on import."""
    program = (
        "from specbench.cli.options import Tasks; Tasks(offline=True)\n"
        "from huggingface_hub.constants import HF_HUB_OFFLINE\n"
        "assert HF_HUB_OFFLINE"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_any_parameter_can_be_set_by_name_and_a_list_may_name_a_value_twice():
    asked = Methods(method=["relaxed", "static"], set_values=["margin=0.1", "0.2", "weight=0.3"])
    assert [(name, p.get("margin"), p.get("weight")) for name, p in asked.variants()] == [
        *(("relaxed", 0.1, None), ("relaxed", 0.2, None)),
        ("static", None, 0.3),
    ]
    for text in ("0.3", "margin=", "=3"):
        with pytest.raises(UsageError, match="--set cannot be"):
            Methods(method=["relaxed"], set_values=[text]).variants()
    assert split("--set", ["margin=0.1,0.3, ratio=0.1", "0.3"]) == [
        *("margin=0.1", "0.3", "ratio=0.1", "0.3")
    ]
    asked = Methods(method=["static"], set_values=["weight=0.1", "0.2", "0.1"])
    assert [values["weight"] for _, values in asked.variants()] == [0.1, 0.2]
    assert Methods(method=["sd", "lossy", "sd"]).a_a
    assert not Methods(method=["sd", "paper"]).a_a


def test_values_behind_a_name_are_those_of_this_method_alone():
    texts = ["static:weight=0.5,sd", "static", "relaxed:form=ratio,ratio=0.2", "lossy:"]
    asked = Methods(method=split("--method", texts), set_values=["weight=0.3"])
    assert asked.names == ["static", "sd", "relaxed", "lossy"] and not asked.optional
    assert [
        (name, {n: v for n, v in values.items() if n in ("weight", "form", "ratio")})
        for name, values in asked.variants()
        if name != "lossy"
    ] == [
        ("static", {"weight": 0.5}),
        ("sd", {}),
        ("static", {"weight": 0.3}),
        ("relaxed", {"form": "ratio", "ratio": 0.2}),
    ]
    for text, said in (
        ("static:weight", "'weight' in static:weight is not NAME=VALUE"),
        ("static:weight=2", "weight"),
        ("sd:weight=0.5", "weight is a parameter of"),
        ("static:wieght=0.5", "wieght"),
    ):
        with pytest.raises(UsageError, match=said):
            Methods(method=[text]).variants()
