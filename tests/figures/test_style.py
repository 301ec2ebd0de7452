import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.markers import MarkerStyle

from specbench.errors import RunError, UsageError
from specbench.figures import FIGURES, RUNS, STYLES, load_figure, style
from specbench.figures.saving import save
from specbench.methods.registry import METHODS
from specbench.report.figures import outline

from .made import Made, rounds_of


def test_every_method_has_a_look_of_its_own():
    assert set(style.LOOKS) == set(METHODS)
    for part in ("label", "colour", "marker"):
        assert len({getattr(look, part) for look in style.LOOKS.values()}) == len(METHODS)


def test_a_new_method_gets_a_stable_look():
    assert style.look("guessed") == style.look("guessed")
    assert style.look("guessed").label == "guessed"
    assert style.look("guessed").marker not in {look.marker for look in style.LOOKS.values()}
    assert style.look("guessed").colour not in {look.colour for look in style.LOOKS.values()}


def test_every_new_method_has_a_filled_marker_of_its_own_outline():
    """Edges are white: of a marker without a face nothing would be seen."""
    seen = {style.look(f"method-{i}").marker for i in range(200)}
    assert len(seen) == len(style._OTHER_MARKERS)
    assert all(MarkerStyle(marker).is_filled() for marker in seen)
    assert not seen & {look.marker for look in style.LOOKS.values()}
    assert all(outline(marker) for marker in seen)


def test_legend_order_is_that_of_the_looks_then_the_rest():
    assert style.ordered(["new", "diversed", "sd"]) == ["sd", "diversed", "new"]


def test_what_is_no_method_has_no_method_s_colour():
    methods = {look.colour for look in style.LOOKS.values()}
    assert not methods & {*style.PARTS.values(), *style.PAIR_COLOURS}


HEADS = ("mini-math", "mini-news")  # so that there is a transfer table to draw, too
OF_RUNS = [name for name, figure in FIGURES.items() if figure.source == RUNS]
KINDS = ("png", "svg", "pdf", "csv")


@pytest.fixture(params=[name for name in FIGURES if name != "theory"])  # it needs records
def drawn(request, summary, tmp_path):
    """The name of each figure with a function that draws it."""
    if request.param in OF_RUNS:
        source = Made(
            summary=summary(heads=HEADS),
            rounds=rounds_of({"sd": [[0, 1], [3]], "diversed": [[3, 3], [2]]}).rounds,
        )
    else:
        source = [tmp_path / "head"]
        source[0].mkdir()
        (source[0] / "training.csv").write_text(
            "step,reward,acceptance,weight,disagreement,loss\n"
            + "".join(f"{i},0.{i},0.8,0.{i},0.2,-{i}\n" for i in range(1, 10))
        )
    return request.param, lambda: load_figure(request.param)(source)


def ink_stays_on_the_page(png):
    picture = imread(png)[..., :3]
    edges = (picture[0], picture[-1], picture[:, 0], picture[:, -1])
    return (picture < 0.9).any() and all((edge == 1.0).all() for edge in edges)


def test_every_figure_is_drawn_and_saved_twice_alike_within_its_page(drawn, tmp_path):
    name, draw = drawn
    first = save(draw(), tmp_path / "a", name)
    second = save(draw(), tmp_path / "b" / "c", name)
    assert [path.name for path in first] == [f"{name}.{kind}" for kind in KINDS]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(
        path.name for path in first
    )
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    with style.page("screen"):
        screen = save(draw(), tmp_path / "screen", name)
    assert ink_stays_on_the_page(first[0]) and ink_stays_on_the_page(screen[0])


@pytest.fixture
def weights(summary):
    return load_figure("weights")(Made(summary=summary()))


def test_pictures_are_sharp_enough_for_print(weights, tmp_path):
    png, svg, pdf, csv = save(weights, tmp_path, "weights")
    assert imread(png).shape[1] == round(weights.figure.get_figwidth() * 300)
    assert svg.read_text().startswith("<?xml")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"/Subtype /Type0" in pdf.read_bytes()  # letters, in a font that is part of the file
    assert not any(b"Date" in path.read_bytes() for path in (svg, pdf))
    frame = pd.read_csv(csv)
    assert list(frame) == list(weights.data)
    np.testing.assert_allclose(frame["draft_acceptance"], weights.data["draft_acceptance"])


def test_a_screen_gets_larger_type_and_a_wider_figure(summary):
    def sizes(look):
        with style.page(look):
            figure = load_figure("weights")(Made(summary=summary())).figure
        axes = figure.axes[0]
        line = axes.containers[0].lines[0]
        ticks = axes.get_xticklabels()[0].get_fontsize()
        width, height = figure.get_size_inches()
        return np.array([axes.title.get_fontsize(), ticks, line.get_markersize()]), width, height

    (paper, width, height), (screen, wide, high) = map(sizes, STYLES)
    scale = screen / paper
    assert scale.min() == pytest.approx(scale.max())
    assert scale[0] > 1.3
    assert wide / high > width / height
    assert sizes(STYLES[0])[1] == width  # nothing of the screen is left behind


def test_what_is_saved_later_is_what_was_drawn(weights, tmp_path):
    with matplotlib.rc_context({"ytick.labelsize": 30, "font.size": 30}):
        late, *_ = save(weights, tmp_path, "late")
    soon, *_ = save(weights, tmp_path, "soon")
    assert late.read_bytes() == soon.read_bytes()


def test_a_cloud_has_no_bars():
    axes = Figure().subplots()
    for count, bars in ((style.MOST_BARS, 1), (style.MOST_BARS + 1, 0)):
        x = np.arange(count, dtype=float)
        table = pd.DataFrame({"x": x, "y": x, "y_low": x - 1, "y_high": x + 1})
        assert len(style.points(axes, table, "x", "y").lines[2]) == bars


def test_drawing_leaves_no_settings_behind(summary, tmp_path):
    before = dict(matplotlib.rcParams)
    with style.page("screen"):
        save(load_figure("weights")(Made(summary=summary())), tmp_path, "weights")
    assert dict(matplotlib.rcParams) == before


def test_a_failed_write_leaves_the_old_figure_and_nothing_else(weights, tmp_path, monkeypatch):
    def full(self, data):
        self.touch()
        raise OSError(28, "No space left on device")

    (tmp_path / "weights.png").write_bytes(b"old")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RunError, match="No space left on device") as raised:
        save(weights, tmp_path, "weights")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.png"]
    assert (tmp_path / "weights.png").read_bytes() == b"old"


def test_a_folder_that_cannot_be_made_is_one_line(weights, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(UsageError, match=r"cannot write .*taken"):
        save(weights, tmp_path / "taken", "weights")


def test_unknown_figure_names_the_known_ones():
    with pytest.raises(UsageError, match="choose from pareto, acceptance-time, weights"):
        load_figure("histogram")


def test_nothing_heavy_before_drawing_and_never_pyplot():
    code = (
        "import sys, specbench.figures as f;"
        "early = [m for m in ('matplotlib', 'pandas') if m in sys.modules];"
        "[f.load_figure(name) for name in f.FIGURES];"
        "print(early, 'matplotlib.pyplot' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[] False"
