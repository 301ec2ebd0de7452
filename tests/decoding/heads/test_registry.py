"""The search for the head of a pair and a task, its description, and the bundled heads."""

from pathlib import Path

import pytest

from specbench.decoding.heads.head import fingerprints, load_head
from specbench.decoding.heads.registry import (
    HeadFile,
    bundled_heads,
    describe_heads,
    expand_family,
    find_head,
    listed_heads,
    named_by_recipe,
    read_description,
    training_of,
)
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.errors import UsageError
from specbench.tasks.task import default_task_names, load_task

from ...synthetic import make_head
from ...told import refusals


def test_heads_are_found_in_all_their_places(tmp_path):
    bundled = make_head(tmp_path / "heads" / "math")
    spec = PairSpec("p", "t", "d", heads=tmp_path / "heads")
    alone = make_head(tmp_path / "alone")
    for given, folder in [
        (alone, alone),
        (alone / "head.safetensors", alone),
        (tmp_path / "heads", bundled),  # the task's folder takes precedence over the folder itself
        (bundled / "head.json", bundled),
    ]:
        assert find_head(spec, "math", str(given)) == HeadFile(str(given), folder)


def test_bundled_heads_take_precedence_unless_one_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = PairSpec("p", "t", "d", heads=tmp_path / "heads")
    trained = make_head(tmp_path / "results" / "heads" / "p" / "math")
    head = find_head(spec, "math")
    assert (head.name, head.path.resolve()) == ("results", trained)
    with pytest.raises(UsageError, match="has no bundled head for math"):
        find_head(spec, "math", "bundled")
    bundled = make_head(tmp_path / "heads" / "math")
    assert find_head(spec, "math") == HeadFile("bundled", bundled)
    assert find_head(spec, "math", "results").path.resolve() == trained
    assert find_head(spec, "math", "bundled").path == bundled


def test_a_missing_head_is_refused(tmp_path, stored):
    """Prompt files take a head by its task and cannot train one."""
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "head.safetensors").touch()
    spec = PairSpec("p", "t", "d", heads=tmp_path / "heads")
    heads = {task: make_head(tmp_path / "heads" / task) for task in ("math", "code")}
    assert find_head(spec, "q", "code", trainable=False) == HeadFile("code", heads["code"])
    stored(
        refusals(
            lambda: find_head(spec, "news"),
            lambda: find_head(spec, "news", str(tmp_path / "half")),
            lambda: find_head(get_pair("mini"), "news"),
            lambda: find_head(spec, "q", trainable=False),
            lambda: find_head(spec, "q", "bundled", trainable=False),
        )
    )


def test_a_bundled_head_has_one_name_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, folder in bundled_heads().items():
        assert find_head(PairSpec("p", "t", "d"), "q", name) == HeadFile(name, folder)
    assert {"python/python-line", "mini/mini-math"} <= {*bundled_heads()}
    own = make_head(tmp_path / "python" / "python-line")  # a folder of the user's has precedence
    head = find_head(get_pair("python"), "q", "python/python-line")
    assert head.path == own.relative_to(tmp_path)
    for wrong in ("python/none", "mini/../python", "none/python-line"):
        with pytest.raises(UsageError, match="one of `specbench list heads`"):
            find_head(get_pair("python"), "q", wrong)
    trained = make_head(tmp_path / "results/heads/p/acceptance-0.9/math", task="math")
    listed = {row["head"]: row["task"] for row in listed_heads()}
    assert listed == {
        **{name: name.partition("/")[2] for name in bundled_heads()},
        str(trained.relative_to(tmp_path)): "math",
    }


def test_a_family_lists_its_members_in_order(tmp_path):
    for name in ("acceptance-0.9", "acceptance-0.75", "other"):
        make_head(tmp_path / "f" / name / "math")
    family = str(tmp_path / "f")
    assert expand_family(family) == [f"{family}/acceptance-0.75", f"{family}/acceptance-0.9"]
    assert expand_family(f"{family}/") == expand_family(family)
    assert expand_family(f"{family}/other/") == [f"{family}/other"]
    assert expand_family("bundled") == ["bundled"]
    for name in ("seed-0", "seed-1"):
        make_head(tmp_path / "both" / "acceptance-0.9" / name / "math")
    both = [Path(each).parts[-2:] for each in expand_family(str(tmp_path / "both"))]
    assert both == [("acceptance-0.9", "seed-0"), ("acceptance-0.9", "seed-1")]
    (tmp_path / "loop").mkdir()
    for name in ("seed-0", "seed-1"):  # endless, if followed
        (tmp_path / "loop" / name).symlink_to(tmp_path / "loop", target_is_directory=True)
    assert len(expand_family(str(tmp_path / "loop"))) == 4
    for name in ("loss-10", "loss-2", "loss-old"):
        make_head(tmp_path / "l" / name / "math")
    names = [Path(each).name for each in expand_family(str(tmp_path / "l"))]
    assert names == ["loss-2", "loss-10", "loss-old"]


@pytest.mark.parametrize(
    ("other", "joined"),
    [
        ({}, True),
        ({"recipe": {"steps": 2, "seed": 0}}, False),
        ({"recipe": {"steps": 3, "seed": 1}}, False),
        ({"recipe": {"steps": 2}}, False),
        ({"task": "math"}, False),
        ({"kind": "features"}, False),
        ({"models": {"target": "other"}}, False),
    ],
)
def test_heads_that_differ_in_their_seed_alone_are_named_by_their_recipe(tmp_path, other, joined):
    told = {"recipe": {"steps": 2, "seed": 0}, "task": "news", "kind": "linear"}
    one = HeadFile("h/a", make_head(tmp_path / "a", **told))
    told |= {"recipe": {"steps": 2, "seed": 1}, **other}
    two = HeadFile("h/b/", make_head(tmp_path / "b", **told))
    in_place = HeadFile("seed-2", make_head(tmp_path / "seed-2", **told))
    names = named_by_recipe([one, two, in_place, HeadFile("untrained", Path("untrained"))])
    pairs = [
        (one, HeadFile("h.a+h.b/seed-0", one.path)),
        (two, HeadFile("h.a+h.b/seed-1", two.path)),
    ]
    assert names == (dict(pairs) if joined else {})


def test_the_note_names_the_head_and_its_training(tmp_path, stored):
    wish, loss = {"target_acceptance": 0.85}, {"max_quality_loss": 2.5}
    bundled = HeadFile("bundled", make_head(tmp_path / "b", task="news", kind="linear"))
    trained = make_head(tmp_path / "r" / "news", task="news", kind="linear", recipe=wish)
    assert training_of(HeadFile("r", trained)) == {"kind": "linear", "task": "news", **wish}
    worths = (("y", False, "no better than anything"), ("z", True, "above the front"))
    described = [
        *((task, bundled) for task in ("news", "math")),
        *(("news", HeadFile("results", trained)), ("code", HeadFile("typed", trained))),
        ("code", HeadFile("loss", make_head(tmp_path / "l", kind="linear", recipe=loss))),
        *((task, HeadFile("x/head.bin", Path("x/head.bin"))) for task in ("news", "math")),
    ]
    for name, better, sentence in worths:
        worth = {"better": better, "sentence": sentence}
        folder = make_head(tmp_path / name, task="news", kind="linear", worth=worth)
        described.append(("news", HeadFile(name, folder)))
    of_pair = make_head(tmp_path / "q", task="news", kind="features", pair="q")
    described += [(task, HeadFile("other", of_pair)) for task in ("news", "math")]
    described.append(("news", HeadFile("same", make_head(tmp_path / "p", task="news", pair="p"))))
    folder = make_head(tmp_path / "h")
    for content in ("{", "[]", "3", '{"recipe": 1}'):
        (folder / "head.json").write_text(content)
        faulty = describe_heads([("news", HeadFile("h", folder))], "p")
        assert faulty == "h (of unknown kind) on news"
    stored(*describe_heads(described + described, "p").split("; "))


MINI = get_pair("mini")


@pytest.mark.parametrize("task", default_task_names())
def test_a_bundled_head_describes_its_task_and_recipe(task):
    """The bundled heads were trained by an earlier recipe, which their descriptions state."""
    description = read_description(find_head(MINI, task).path)
    assert description["recipe"]["head_kind"] == description["kind"] == "linear"
    assert (description["task"], description["pair"]) == (task, "mini")
    assert description["task_version"] == load_task(task).version


def test_bundled_heads_load_and_differ(mini):
    heads = [load_head(find_head(MINI, task).path, mini) for task in default_task_names()]
    weights = [head.summary.weight.sum(1).tolist() for head in heads]
    assert len({tuple(row) for row in weights}) == len(default_task_names())
    for task in default_task_names():
        assert read_description(find_head(MINI, task).path)["models"] == fingerprints(mini)


def test_the_heads_of_the_pair_python_follow_its_recipe():
    """Their descriptions say that none is better than static weights."""
    loaded = load_pair(pair := get_pair("python"), Loading(device="cpu"))
    for task in ("python-line", "python-block", "python-docstring"):
        path = find_head(pair, task).path
        description = read_description(path)
        assert (description["task"], description["pair"]) == (task, "python")
        recipe = {**pair.training, "temperature": [pair.training["temperature"]]}  # then a list
        assert description["recipe"].items() >= recipe.items()
        assert description["worth"]["better"] is False
        load_head(path, loaded)
