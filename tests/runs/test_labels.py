"""Short labels of methods, unique within a run."""

from typing import Any

from specbench.methods.registry import PARAMETER_COLUMNS
from specbench.runs.labels import method_label, method_labels

BLANK = dict.fromkeys(PARAMETER_COLUMNS)


def cells(*heads: str, task: str = "math") -> list[dict[str, Any]]:
    return [{"method": "diversed", "task": task, **BLANK, "head": head} for head in heads]


def test_heads_have_the_shortest_unambiguous_names() -> None:
    for heads, labels in (
        ("bundled", "diversed"),
        ("results", "diversed"),
        ("bundled results", "diversed bundled, diversed results"),
        ("bundled out/a", "diversed, diversed a"),
        ("results/h/x-0.7 results/h/x-0.8", "diversed x-0.7, diversed x-0.8"),
        # The ends are equal, so these two need more of the path.
        ("x/a/math x/b/math x/c", "diversed a/math, diversed b/math, diversed c"),
        ("math x/math", "diversed math, diversed x/math"),
        ("/heads/mlp", "diversed mlp"),
        # Heads of one recipe have names of one length.
        (
            "f/seed-0 f/seed-1 g/seed-0",
            "diversed f/seed-0, diversed f/seed-1, diversed g/seed-0",
        ),
    ):
        assert ", ".join(method_labels(cells(*heads.split()))) == labels


def test_an_automatic_head_is_one_row_over_all_tasks() -> None:
    found = cells("bundled") + cells("results", task="news")
    assert method_labels(found) == ["diversed", "diversed"]


def test_methods_name_their_parameters() -> None:
    for cell, label in (
        ({"method": "static", "weight": 0.5, "head": float("nan")}, "static w=0.5"),
        ({"method": "mentored", "budget": 0.1}, "mentored D=0.1"),
        ({"method": "typical", "epsilon": 0.09, "delta": 0.3}, "typical ε=0.09 δ=0.3"),
        ({"method": "cactus", "divergence": 1.0}, "cactus d=1"),
        ({"method": "sharpened", "target_temperature": 0.6}, "sharpened t=0.6"),
        ({"method": "gated", "weight": 0.5, "gate": 0.05}, "gated g=0.05 w=0.5"),
        ({"method": "gated-diversed", "gate": 0.1, "head": "x"}, "gated-diversed g=0.1 x"),
        ({"method": "block"}, "block"),
    ):
        assert method_label(BLANK | cell) == label
