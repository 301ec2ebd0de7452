import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from specbench.errors import RunError, UsageError
from specbench.figures import FIGURES, load_figure, style
from specbench.methods.registry import METHODS


def test_every_method_has_a_look_of_its_own():
    assert set(style.LOOKS) == set(METHODS)
    for part in ("label", "colour", "marker"):
        assert len({getattr(look, part) for look in style.LOOKS.values()}) == len(METHODS)


def test_a_new_method_gets_a_stable_look():
    assert style.look("mentored") == style.look("mentored")
    assert style.look("mentored").label == "mentored"
    assert style.look("mentored").colour not in {look.colour for look in style.LOOKS.values()}


def test_legend_order_is_that_of_the_looks_then_the_rest():
    assert style.ordered(["new", "diversed", "sd"]) == ["sd", "diversed", "new"]


HEADS = ("mini-math", "mini-news")  # so that there is a transfer table to draw, too


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_saved_twice_alike(name, summary, tmp_path):
    draw = load_figure(name)
    first = style.save(draw(summary(heads=HEADS)), tmp_path / "a", name)
    second = style.save(draw(summary(heads=HEADS)), tmp_path / "b" / "c", name)
    assert [path.name for path in first] == [f"{name}.png", f"{name}.svg"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [p.name for p in first]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_pictures_are_sharp_enough_for_print(summary, tmp_path):
    figure = load_figure("pareto")(summary())
    png, svg = style.save(figure, tmp_path, "pareto")
    assert imread(png).shape[1] == round(figure.get_figwidth() * 300)
    assert svg.read_text().startswith("<?xml")


@pytest.mark.parametrize("name", FIGURES)
def test_ink_does_not_run_off_the_page(name, summary, tmp_path):
    (png, _) = style.save(load_figure(name)(summary(heads=HEADS)), tmp_path, name)
    picture = imread(png)[..., :3]
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        np.testing.assert_array_equal(edge, 1.0)


def test_drawing_leaves_no_settings_behind(summary, tmp_path):
    before = dict(matplotlib.rcParams)
    style.save(load_figure("weights")(summary()), tmp_path, "weights")
    assert dict(matplotlib.rcParams) == before


def test_a_failed_write_leaves_the_old_figure_and_nothing_else(summary, tmp_path, monkeypatch):
    def full(self, path, **_kwargs):
        path.write_bytes(b"half a pict")
        raise OSError(28, "No space left on device")

    (tmp_path / "weights.png").write_bytes(b"old")
    figure = load_figure("weights")(summary())
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(RunError, match="No space left on device") as raised:
        style.save(figure, tmp_path, "weights")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.png"]
    assert (tmp_path / "weights.png").read_bytes() == b"old"


def test_a_folder_that_cannot_be_made_is_one_line(summary, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(RunError, match="cannot be written to"):
        style.save(load_figure("weights")(summary()), tmp_path / "taken", "weights")


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
