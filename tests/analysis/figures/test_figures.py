"""Every figure is drawn and saved; appearance, pages and errors."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.markers import MarkerStyle
from scipy.ndimage import uniform_filter

from specbench import plugins
from specbench.analysis.figures import FIGURES, figure, load_figure, style
from specbench.analysis.results import Results
from specbench.errors import RunError, UsageError
from specbench.methods.registry import METHODS

from ...synthetic import samples
from ...told import refusals
from .made import made, rounds_of, summary_of, training_of

HEADS = ("mini-math", "h/acceptance-0.7", "h/acceptance-0.8")
KINDS = ("png", "svg", "pdf", "csv")
SETTINGS = (("eager", 1), ("graph", 8))


def draw(name: str, folder: Path) -> style.Drawing:
    if name == "training":
        return load_figure(name)([training_of(folder / "a"), training_of(folder / "b")])
    if name == "positions":
        return load_figure(name)(rounds_of({"sd": [[0, 1], [3]], "diversed": [[3, 3], [2]]}))
    if name == "latency":
        served = [{"method": arm, "latency_seconds": s} for arm in ("a", "b") for s in (1.0, 2.0)]
        times = {"first_token_seconds": 0.1, "inter_token_seconds": 0.01, "draft_length": 0}
        times["retries"] = 0.0
        table = samples(*served, **times).assign(**times)
        return load_figure(name)(Results.of(samples=table, cells=table))
    one: dict[str, Any] = {"tasks": ("mini-math",)}
    if name == "acceptance-time":
        return load_figure(name)(made(pairs=("mini", "llama"), settings=SETTINGS, **one))
    return load_figure(name)(made(heads=HEADS[: 1 if name == "transfer" else None], **one))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_within_its_page_and_saved(name, tmp_path):
    files = style.save(draw(name, tmp_path / "1"), tmp_path / "a", name)
    assert [path.name for path in files] == [f"{name}.{kind}" for kind in KINDS]
    assert len(pd.read_csv(files[-1])) > 0
    with style.page("screen"):
        screen = BytesIO(style.rendered(draw(name, tmp_path / "2").figure, "png"))
    paper, wide = imread(files[0]), imread(screen)
    for picture in (paper[..., :3], wide[..., :3]):
        edges = (picture[0], picture[-1], picture[:, 0], picture[:, -1])
        assert (picture < 0.9).any() and all((edge == 1.0).all() for edge in edges)
    assert wide.shape[1] > paper.shape[1]


@pytest.mark.parametrize("factor", [1, 1.01, 1.6, 8, 12, 60, 900, 1e5])
def test_times_of_answers_can_be_read_at_any_spread(factor):
    times = [{"method": arm, "latency_seconds": s} for arm, s in (("a", 1.7), ("b", 1.7 * factor))]
    told = {"first_token_seconds": [0.31, 0.31 * factor], "inter_token_seconds": [0.02] * 2}
    told["retries"] = [0.0, 0.0]
    table = samples(*times, draft_length=0).assign(**told)
    for axes in load_figure("latency")(Results.of(samples=table, cells=table)).figure.axes:
        low, high = axes.get_xlim()
        assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2
        assert "log scale" in axes.get_xlabel()


@pytest.mark.parametrize("name", ["acceptance-time", "weights", "pareto"])
def test_titles_of_long_names_stay_in_their_panels(name):
    long = "answers_to_$x^2$_" + "and-so-on_" * 9
    figure = load_figure(name)(made(tasks=(long, "mini-math", f"our {long}"), lengths=(5,))).figure
    style.settle(figure)
    boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    assert len(boxes) == 3 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert figure.bbox.x0 <= boxes[0].x0 and boxes[2].x1 <= figure.bbox.x1


@pytest.mark.parametrize("name", ["acceptance-time", "transfer"])  # with a legend, and without
def test_a_figure_has_the_users_width(name, tmp_path):
    with style.page("paper", width=4.0):
        assert draw(name, tmp_path).figure.get_figwidth() == 4.0
    with style.page("paper", width=1.0), pytest.raises(UsageError, match="--width 1 is too narrow"):
        draw(name, tmp_path)


def test_the_same_figure_gives_the_same_bytes_and_leaves_no_settings_behind(tmp_path):
    first = style.save(draw("pareto", tmp_path), tmp_path / "a", "pareto")
    assert b"Date" not in first[1].read_bytes() + first[2].read_bytes()
    with matplotlib.rc_context({"ytick.labelsize": 30, "font.size": 30}):  # has no effect
        before = dict(matplotlib.rcParams)
        second = style.save(draw("pareto", tmp_path), tmp_path / "b" / "c", "pareto")
        with style.page("screen"):
            draw("pareto", tmp_path)
        assert dict(matplotlib.rcParams) == before
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert style.scaled(1) == 1


def test_a_method_has_its_own_style_and_a_new_one_a_stable_style():
    assert set(style.LOOKS) <= set(METHODS)
    for part in ("colour", "marker"):
        assert len({getattr(look, part) for look in style.LOOKS.values()}) == len(style.LOOKS)
    assert style.look("new")[:2] == ("#44AA99", (4, 1, 0))  # in every process
    new = {style.look(f"method-{i}").marker for i in range(200)}
    assert not new & {look.marker for look in style.LOOKS.values()}
    assert all(MarkerStyle(marker).is_filled() for marker in new)  # since the edge is white
    style.legend(Figure(), [long := style.handle(f"{'m' * 99}:last"), style.handle("sd")])
    assert len(long.get_label()) <= 60 and long.get_label().endswith("last")
    assert style.ordered(["new", "diversed", "sd"]) == ["sd", "diversed", "new"]
    assert style.look("vllm-gated").open and not style.look("gated-diversed").open  # not a server


def shade(method: str) -> np.ndarray:
    """Return the grey levels of a method's marker in print, slightly blurred; white is 0."""
    drawing = Figure((0.3, 0.3), dpi=300)
    axes = drawing.add_axes((0, 0, 1, 1), frame_on=False, xticks=[], yticks=[])
    style.method_points(axes, pd.DataFrame({"x": [0.0], "y": [0.0]}), method, "x", "y")
    picture = imread(BytesIO(style.rendered(drawing, "png")))[..., :3] @ [0.299, 0.587, 0.114]
    return uniform_filter(1 - picture, 4)


def test_methods_are_told_apart_in_grey_print():
    shades = {method: shade(method) for method in style.LOOKS}
    for (one, a), (two, b) in combinations(shades.items(), 2):
        unlike = abs(a - b).sum() / max(a.sum(), b.sum())
        assert unlike > 0.25, (one, two)


def test_a_failed_write_leaves_the_old_figure(tmp_path, monkeypatch):
    drawing = load_figure("pareto")(made(tasks=("mini-math",)))
    (tmp_path / "taken").touch()
    with pytest.raises(UsageError, match="taken"):
        style.save(drawing, tmp_path / "taken", "pareto")

    def full(path):
        raise OSError(28, "No space left on device")

    (tmp_path / "taken").unlink()
    (tmp_path / "pareto.png").write_bytes(b"old")
    monkeypatch.setattr("specbench.files.sync", full)
    with pytest.raises(RunError, match="No space left on device"):
        style.save(drawing, tmp_path, "pareto")
    assert [path.name for path in tmp_path.iterdir()] == ["pareto.png"]
    assert (tmp_path / "pareto.png").read_bytes() == b"old"


def test_the_table_of_figures_names_what_each_reads():
    sources = {name: plugins.declared(load_figure(name), str) for name in FIGURES}
    assert sources == {name: figure.source for name, figure in FIGURES.items()}


def test_heavy_imports_wait_until_drawing_and_pyplot_is_never_used():
    code = (
        "import sys, specbench.analysis.figures as f;"
        "early = [m for m in ('matplotlib', 'pandas') if m in sys.modules];"
        "[f.load_figure(n) for n in f.FIGURES]; print(early, 'matplotlib.pyplot' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "[] False", answer.stderr


def changed(metric: str | None = None, column: str = "value", value: Any = float("nan")) -> Results:
    """Results with another value in the rows of a metric, or without this metric for sd."""
    frame = summary_of()
    frame.loc[frame["metric"] == metric if metric else frame["method"] == "sd", column] = value
    return Results.of(summary=frame)


REFUSED: list[tuple[str, Callable[[Path], Any]]] = [
    ("histogram", lambda _: made()),
    ("pareto", lambda _: Results.of(summary=summary_of().iloc[:0])),
    ("pareto", lambda _: made(lengths=(3, 5))),
    ("pareto", lambda _: changed(None, "temperature", 0.0)),
    ("pareto", lambda _: made(methods=("autoregressive",))),
    ("acceptance-time", lambda _: made(methods=("autoregressive",))),
    ("acceptance-time", lambda _: changed(None, "temperature", 0.0)),
    ("acceptance-time", lambda _: made(lengths=(3, 5))),
    ("positions", lambda _: Results.of(positions=rounds_of({"sd": [[0]]}).positions.iloc[:0])),
    ("weights", lambda _: made(methods=("autoregressive", "sd"))),
    ("weights", lambda _: changed(None, "temperature", 0.0)),
    ("transfer", lambda _: made(methods=("sd", "static"))),
    ("transfer", lambda _: made()),  # the head has no task
    ("transfer", lambda _: made(heads=HEADS, pairs=("mini", "llama"))),
    ("transfer", lambda _: made(heads=HEADS, lengths=(3, 5))),
    ("training", lambda folder: [folder]),
    ("training", lambda folder: [training_of(folder / "head", steps=0)]),
]


def test_refusals(tmp_path, stored):
    def draw(name: str, source: Callable[[Path], Any]) -> None:
        load_figure(name)(source(tmp_path))

    stored(refusals(*(partial(draw, name, source) for name, source in REFUSED)))


USER_FIGURES = """
from specbench.analysis.figures import figure, style

@figure()
def speeds(results):
    drawing, grid = style.panels(1, 1, height=2.0)
    style.points(grid[0, 0], results.cells, "tokens_per_second", "100*quality")
    return style.Drawing(drawing, results.cells[["label", "tokens_per_second"]])

@figure()
def broken(results):
    raise KeyError("tokens")

def plain(results):
    return None
"""


def test_a_file_of_the_users_own_declares_figures_by_the_same_decorator(tmp_path, stored):
    file = tmp_path / "own.py"
    file.write_text(USER_FIGURES)
    results = made(tasks=("mini-math",))
    files = style.save(load_figure(f"{file}:speeds")(results), tmp_path, "speeds")
    assert list(pd.read_csv(files[-1])) == ["label", "tokens_per_second"]
    refused = (
        partial(lambda n: load_figure(f"{file}:{n}")(results), n) for n in ("broken", "plain", "no")
    )
    stored(refusals(*refused, lambda: figure("mine")))
