"""Finding one sample among the records of a run, and the run's tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.trace import find_sample, run_decoder
from specbench.engine.pairs import get_pair
from specbench.errors import UsageError
from specbench.runs.run import read_run

from .made import made

TEXT = ("ab", "x", "c")
STATICS = [made(TEXT, method="static", weight=w) | {"weight": w} for w in (0.4, 0.8)]
MINI = get_pair("mini").target


LENGTHS = [made(TEXT, draft_length=n) for n in (3, 7)]
REPEATS = [made(TEXT, repeat=r) for r in (0, 1)]
TURNS = [made(TEXT, turn=t) for t in (1, 2)]
TASKS = [made(TEXT), *STATICS, made(TEXT, task="code")]
FAILED = made(TEXT, status="error", error="no memory")


@pytest.mark.parametrize(
    ("records", "asked", "name", "values"),
    [
        ([made(TEXT), made(TEXT, sample_id="b")], {}, "sd", {"sample_id": "a"}),
        (TASKS, {"task": "sums", "method": "static w=0.8"}, "static w=0.8", {"weight": 0.8}),
        (TASKS, {"task": "code"}, "sd", {"task": "code"}),
        (LENGTHS, {"method": "sd N=7"}, "sd N=7", {"draft_length": 7}),
        ([FAILED, made(TEXT)], {}, "sd", {"status": "ok"}),  # the last attempt counts
        (REPEATS, {}, "sd", {"repeat": 0}),
        (TURNS, {"method": "sd turn 2"}, "sd turn 2", {"turn": 2}),
    ],
)
def test_a_sample_is_found(records: Any, asked: Any, name: str, values: dict[str, Any]) -> None:
    record, found = find_sample(records, "a", **asked)
    assert found == name
    assert record.items() >= values.items()


@pytest.mark.parametrize(
    ("records", "asked", "place"),
    [
        (TASKS, {}, "--task from `sums`, `code`"),
        (TASKS, {"task": "sums"}, "from `sd`, `static w=0.4`, `static w=0.8`"),
        (TASKS, {"task": "sums", "method": "static"}, "from `static w=0.4`, `static w=0.8`"),
        (TASKS, {"task": "sum"}, "did you mean `sums`?"),
        (TASKS, {"task": "sums", "method": "ds"}, "--method of this sample `ds`"),
        (LENGTHS, {"method": "sd"}, "from `sd N=3`, `sd N=7`"),
        ([made(TEXT), FAILED], {}, "no memory"),
        (TURNS, {"method": "sd"}, "from `sd turn 1`, `sd turn 2`"),
        ([made(TEXT, sample_id="b")], {}, "no sample `a`"),
    ],
)
def test_choices_are_named(records: Any, asked: Any, place: str) -> None:
    with pytest.raises(UsageError) as error:
        find_sample(records, "a", **asked)
    assert place in str(error.value)


def test_a_sample_worth_seeing_is_chosen() -> None:
    everything = made(("ABCD", "", "e"), method="static") | {"weight": 0.0}
    relaxed = made(("aB", "x", "c"), method="lossy")
    learned = made(("aBc", "x", "d"), ("a", "x", "b"), method="diversed", weight=0.5, head="h")
    shy = made(("abc", "x", "d"), method="diversed", weight=0.5, head="h", sample_id="b")
    records = [shy, everything, relaxed, learned]
    assert find_sample(records)[0] is learned
    assert find_sample([everything, relaxed])[0] is relaxed
    assert find_sample([everything])[0] is everything
    assert find_sample(records, method="static w=0")[0] is everything


@pytest.mark.parametrize(
    "config",
    [
        {"pair": {"name": "mini", "target": "/another/place/specbench/pairs/mini/target"}},
        {"pair": {"name": "mini+other", "target": "specbench/pairs/mini/target", "draft": "o"}},
        {"pair": {"name": "mine", "target": MINI, "draft": "o", "target_revision": None}},
        {
            "pair": {"name": "llama", "target": "a/b", "draft": "c/d"},
            "loading": {"load_format": "dummy", "device": "cpu"},
        },
    ],
)
def test_the_tokenizer_of_a_run_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run_decoder(read_run(tmp_path))([900, 897]) == " Step one"


def test_a_run_without_a_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run"):
        run_decoder(read_run(tmp_path))
    nowhere = {"pair": {"target": "./nowhere", "draft": "d"}}
    for text in ("{}", "[]", "{", json.dumps(nowhere)):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UsageError):
            run_decoder(read_run(tmp_path))
