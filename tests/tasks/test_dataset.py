"""Datasets: local files of every format, disjoint splits, few-shot examples."""

import json
from collections.abc import Callable
from hashlib import sha256

import pytest

from specbench.errors import UsageError
from specbench.tasks.dataset import DataOptions
from specbench.tasks.example import Example
from specbench.tasks.task import Task, load_task

from ..told import DATA, listed
from .files import QUIZ, WRITERS, pack, quiz_folder, quiz_row, quiz_rows, write_jsonl


@pytest.fixture
def quiz(tmp_path) -> Callable[..., Task]:
    path = quiz_folder(tmp_path)
    return lambda **asked: load_task(path, DataOptions(folder=tmp_path / "data", **asked))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_same_examples(suffix, packed, tmp_path):
    task = load_task(quiz_folder(tmp_path, test=1), DataOptions(folder=tmp_path / "data"))
    path = tmp_path / f"data/quiz/test{suffix}"
    (tmp_path / "data/quiz/test.jsonl").unlink()
    WRITERS[suffix](quiz_rows(2), path)
    digest = sha256(path.read_bytes()).hexdigest()
    path = pack(path) if packed else path
    assert task.examples("test", None)[1] == Example(
        id="test-1",
        prompt="Q: Wie viel, test 1? test \\boxed{x} {0} {}",
        reference="#### 1",
        tests=("assert 1", "assert True", "run(1)"),
        passage="Wie viel, test 1?",
        code_prefix="def test",
        entry_point="test",
    )
    assert task.provenance()["splits"] == {"test": {"file": str(path), "sha256": digest, "rows": 2}}


def test_rows_without_a_name_are_counted(tmp_path):
    path = quiz_folder(tmp_path)
    path.write_text(QUIZ.replace('id = "{kind}-{nr}"\n', ""))
    task = load_task(path, DataOptions(folder=tmp_path / "data"))
    assert [e.id for e in task.examples("test", 2)] == ["test-0", "test-1"]
    # A name identifies the row, whatever the split and the order.
    for split in ("train", "held-out"):
        for example in task.examples(split, None, seed=4):
            assert example.passage == f"Wie viel, train {example.id.removeprefix('train-')}?"


LOCAL = (DATA / "tasks/mine.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_task_of_local_files_needs_no_hub_licence_or_metric(suffix, tmp_path):
    path = tmp_path / "mine.toml"
    turns = ["one", "two"]
    data = tmp_path / f"questions{suffix}"
    if suffix == ".csv":
        quoted = json.dumps(turns).replace('"', '""')
        data.write_text(f'turns,category\n"{quoted}",math\n')
    else:
        write_jsonl([{"turns": turns, "category": "math"}], data)
    for text in (LOCAL, LOCAL.replace('"questions"', f'"questions{suffix}"')):
        path.write_text(text)
        task = load_task(path)
        assert (task.metric, task.licence, task.stop) == (None, "", ())
        assert task.examples("test", None) == [Example("test-0", "one", category="math")]
        assert task.provenance()["dataset"] is None
    # An index that a row lacks is found on reading; a folder given with --data is used instead.
    path.write_text(LOCAL.replace("{turns.0}", "{turns.2}"))
    with pytest.raises(UsageError, match=rf"questions{suffix}:.*`turns` has no entry 2"):
        load_task(path).examples("test", 1)
    path.write_text(LOCAL)
    with pytest.raises(UsageError, match=r"no test split in .*mine.*--data"):
        load_task(path, DataOptions(folder=tmp_path)).examples("test", 1)
    data.unlink()
    with pytest.raises(UsageError, match=r"put `questions\.jsonl`"):
        load_task(path).examples("test", 1)


def test_a_fixed_tenth_is_held_out_of_data_that_is_read_on_request(quiz):
    task = quiz()
    splits = ([e.id for e in task.examples(split, None)] for split in ("train", "held-out"))
    train, held_out = splits
    assert len(held_out) == 2
    assert sorted(train + held_out) == sorted(f"train-{i}" for i in range(20))
    shuffled = [e.id for e in task.examples("train", None, seed=3)]
    assert sorted(shuffled) == sorted(train) and shuffled != train
    assert [e.id for e in task.examples("train", 5, seed=3)] == shuffled[:5]
    assert {e.id for e in task.examples("held-out", None, seed=3)} == set(held_out)
    task = quiz(shots=1)
    data = {"dataset": "somebody/quiz", "config": "main", "revision": None}
    assert task.provenance() == data | {"shots": 1, "splits": {}}
    task.examples("test", 1)
    assert set(task.provenance()["splits"]) == {"test", "train"}


def test_shots_are_the_same_for_all_prompts_and_come_from_training(quiz):
    task = quiz(shots=3)
    held_out = {e.passage for e in task.examples("held-out", None)}
    for seed in range(4):
        test = task.examples("test", None, seed)
        plain = quiz().examples("test", None, seed)
        (shots,) = {e.prompt[: -len(q.prompt)] for e, q in zip(test, plain, strict=True)}
        assert shots.count("Q: Wie viel, train ") == shots.count(" A: ") == 3
        assert shots.endswith("\n\n")
        assert not any(passage in shots for passage in held_out)
        # No training example is among its own few-shot examples.
        train = task.examples("train", None, seed)
        assert len(train) == 18 - 3
        assert not any(f"{e.passage} A:" in e.prompt for e in train)
    assert len({task.examples("test", 1, seed)[0].prompt[:60] for seed in range(4)}) > 1


def test_a_task_file_s_own_shots_and_the_users_go_before(tmp_path):
    path = quiz_folder(tmp_path)
    path.write_text(QUIZ.replace("shot =", "shots = 2\nshot ="))
    for asked, count in ((None, 2), (0, 0), (5, 5)):
        task = load_task(path, DataOptions(folder=tmp_path / "data", shots=asked))
        assert task.examples("test", 1)[0].prompt.count(" A: ") == count
        assert task.provenance()["shots"] == count


@pytest.mark.parametrize(("shots", "old", "new", "split", "message"), listed("tasks/missing.txt"))
def test_missing_data(shots, old, new, split, message, tmp_path):
    path = quiz_folder(tmp_path)
    assert old in QUIZ
    path.write_text(QUIZ.replace(old, new) if old else QUIZ)
    task = load_task(path, DataOptions(folder=tmp_path / "data", shots=shots))
    with pytest.raises(UsageError) as caught:
        task.examples(split, None)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"nr": None}, "`nr` is empty"),
        ({"nr": {"a": 1}}, "`nr` must be text, a number or a list, not dict"),
        ({"checks": [["x"]]}, "`checks` must be text, a number or a list, not list"),
        ({"checks": "['assert False']"}, "`checks` must be a list of texts; write it as JSON"),
        ({"checks": '["assert False'}, "`checks` must be a list of texts; write it as JSON"),
        ({"gold": "\ud800"}, "`gold` has half a surrogate pair"),
    ],
)
def test_values_that_no_example_can_hold(row, message, tmp_path):
    task = load_task(quiz_folder(tmp_path), DataOptions(folder=tmp_path / "data"))
    write_jsonl([quiz_row(0), {**quiz_row(1), **row}], tmp_path / "data/quiz/test.jsonl")
    assert len(task.examples("test", 1)) == 1
    with pytest.raises(UsageError, match=rf"test\.jsonl:2: {message}"):
        task.examples("test", None)


def test_line_ends_of_windows_are_replaced_and_two_files_of_a_split_refused(quiz, tmp_path):
    write_jsonl([{**quiz_row(0), "gold": "a\r\nb"}], tmp_path / "data/quiz/test.jsonl")
    assert quiz().examples("test", 1)[0].reference == "#### a\nb"
    pack(tmp_path / "data/quiz/test.jsonl")
    write_jsonl(quiz_rows(1), tmp_path / "data/quiz/test.jsonl")
    with pytest.raises(UsageError, match=r"contains test\.jsonl and test\.jsonl\.gz: keep one"):
        quiz().examples("test", 1)
