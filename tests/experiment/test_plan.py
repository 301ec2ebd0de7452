import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import pytest

from specbench.decoding.drafters.registry import MODEL, parse_drafter
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.errors import UsageError
from specbench.experiment.cells import Cell, method_variants, with_baselines
from specbench.experiment.plan import Plan
from specbench.experiment.planning import Systems, build_plan
from specbench.files import shown_path
from specbench.methods.registry import METHODS
from specbench.runs.configuration import DEFAULT_LIMIT, CellConfig, Settings
from specbench.runs.labels import recipe_of
from specbench.serving.arm import Arm
from specbench.tasks.example import Example
from specbench.tasks.prompts import PromptList
from specbench.tasks.task import Generated, Task, load_task

from ..synthetic import make_head
from ..told import refusals

PAIR = PairSpec("p", "t", "d")
LOOKUP = parse_drafter("prompt-lookup")


def make_task(name: str = "t", rows: int = 3, generator: str | None = None) -> Task:
    examples = tuple(Example(f"{name}-{i}", f"prompt {i}") for i in range(rows))
    source = Generated(generator) if generator else PromptList(examples)
    return Task(name, "1", "", (), (), 16, source, Path(f"{name}.toml"))


def plan_of(names: list[str], tasks: list[Task] | None = None, **changes: Any) -> Plan:
    arguments: dict[str, Any] = {"draft_lengths": [5], "settings": Settings()} | changes
    chosen = {name: arguments.pop(name) for name in Systems._fields if name in arguments}
    systems = Systems(method_variants(names, {}), **chosen)
    return build_plan(PAIR, tasks or [make_task()], systems, **arguments)


def test_all_cells_decode_an_example_before_the_next():
    tasks = [make_task("a", 2), make_task("b", 1)]
    plan = plan_of(["autoregressive", "sd"], tasks, settings=Settings(repeats=2))

    def steps():
        return [(s.plan.task.name, s.repeat, s.example.id, s.cell.method[0]) for s in plan.steps()]

    order = steps()
    pairs = [("a", 0, "a-0"), ("a", 0, "a-1"), ("a", 1, "a-0"), ("a", 1, "a-1")]
    pairs += [("b", 0, "b-0"), ("b", 1, "b-0")]
    assert sorted(order) == [(*pair, method) for pair in pairs for method in "as"]
    assert [step[:3] for step in order[::2]] == [step[:3] for step in order[1::2]] == pairs
    assert len(plan) == len(order) and order == steps()


def test_no_cell_always_follows_the_same_one():
    plan = plan_of(["autoregressive", "sd", "lossy"], [make_task("a", 300)])
    methods = [step.cell.method for step in plan.steps()]
    first = Counter(methods[::3])
    behind = Counter(pair for pair in pairwise(methods) if pair[0] != pair[1])
    assert min(first.values()) > 80 and len(behind) == 6
    assert min(behind.values()) > 110


def test_cells_take_turns_block_by_block():
    """With batches of 4, each block of 4 prompts is decoded by all cells before the next."""
    plan = plan_of(["autoregressive", "sd"], [make_task("a", 10)], settings=Settings(batch_size=4))
    batches = list(plan.batches())
    ids = [[step.example.id for step in batch] for batch in batches]
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 2, 2] and ids[::2] == ids[1::2]
    assert all(len({step.cell for step in batch}) == 1 for batch in batches)
    blocks = [{plan.identify(step, "eager").block for step in batch} for batch in batches]
    assert blocks == [{0}, {0}, {1}, {1}, {2}, {2}]
    # Blocks of two sizes, of an interrupted run of servers, must not share a number.
    arm = Arm("fast", "http://127.0.0.1:1", "m", "tokens")
    for concurrency, blocks in (([2], [0, 2, 4, 6, 8]), ([2, 4], [0, 4, 8])):
        served = plan_of([], [make_task("a", 10)], arms=[arm], concurrency=concurrency)
        numbers = {served.identify(batch[-1], "").block for batch in served.batches()}
        assert sorted(numbers) == blocks
    alone = plan_of(["sd"])
    assert alone.identify(next(alone.steps()), "eager").block is None
    # Batches that share their rows do so for all cells alike.
    refilled = replace(plan, settings=Settings(batch_size=2, refill=3))
    batches = list(refilled.batches())
    assert [len(batch) for batch in batches] == [6, 6, 4, 4]
    assert refilled.identify(batches[0][0], "eager").block is None


def test_every_drafting_method_runs_with_each_length_and_cells_share_their_draws():
    plan = plan_of(["autoregressive", "sd", "lossy"], draft_lengths=[3, 7])
    cells = [(cell.method, cell.draft_length) for cell in plan.tasks[0].cells]
    assert cells == [("autoregressive", 0), ("sd", 3), ("sd", 7), ("lossy", 3), ("lossy", 7)]
    tasks = [make_task("a", 2), make_task("b", 2)]
    plan = plan_of(["sd", "lossy"], tasks, settings=Settings(repeats=2))
    keys: dict[str, set[str]] = {}
    for step in plan.steps():
        keys.setdefault(step.sample_key, set()).add(step.cell.method)
    assert len(keys) == 2 * 2 * 2
    assert all(methods == {"sd", "lossy"} for methods in keys.values())


def test_tasks_and_user_decide_examples_and_lengths():
    listed, generated = [make_task(rows=30)], [make_task(generator="mini-math")]
    assert [len(plan_of(["sd"], listed, limit=limit)) for limit in (None, 4)] == [30, 4]
    counts = [len(plan_of(["sd"], generated, limit=limit)) for limit in (None, 25)]
    assert counts == [DEFAULT_LIMIT, 25]
    plans = [plan_of(["sd"], generated, settings=Settings(seed=seed)) for seed in (0, 1)]
    ids = [{example.id for example in plan.tasks[0].examples} for plan in plans]
    assert not ids[0] & ids[1] and plan_of(["sd"]).tasks[0].max_new_tokens == 16
    assert plan_of(["sd"], settings=Settings(max_new_tokens=9)).tasks[0].max_new_tokens == 9


def test_what_a_plan_leaves_out_is_noted_or_refused(stored):
    both, code = [make_task("a"), make_task("b")], replace(make_task("code"), metrics=("pass@1",))
    plan = plan_of(["sd", "diversed"], both, optional={"diversed"})
    assert {step.cell.method for step in plan.steps()} == {"sd"}

    def lookup(*names):
        return plan_of(["sd", *names], optional=names, drafters=[LOOKUP]).notes[0]

    refused = refusals(
        lambda: plan_of(["sd", "diversed"]),
        lambda: plan_of(["diversed"], optional={"diversed"}),
        lambda: plan_of(["sd"], [*both, make_task("a", 2)]),
    )
    (withheld,) = plan_of(["sd"], [code, make_task("other")]).notes
    skipped = (lookup("sd-adaptive"), lookup("diversed", "sd-adaptive"))
    stored(*plan.notes, *skipped, withheld, refused)
    assert plan_of(["sd"], [code], may_execute=True).notes == plan_of(["sd"]).notes == ()


def test_a_head_is_found_for_each_task(tmp_path):
    for name, kind, task in (("a", "linear", "math"), ("b", "mlp", "b")):
        make_head(tmp_path / name, kind=kind, task=task)
    variants = method_variants(["diversed"], {"head": [str(tmp_path)]})
    systems = Systems(variants, [5])
    plan = build_plan(PAIR, [make_task("a"), make_task("b")], systems, Settings())
    heads = [dict(task.cells[0].parameters)["head"] for task in plan.tasks]
    assert [head.path for head in heads] == [tmp_path / "a", tmp_path / "b"]
    # The same name on all tasks, so that rows match.
    assert {head.name for head in heads} == {str(tmp_path)}
    note = f"heads: {tmp_path} (linear, trained for math) on a; {tmp_path} (mlp) on b"
    assert plan.notes == (note,)
    described = plan.describe()["tasks"][0]["cells"][0]["head"]
    path = str(tmp_path / "a")
    assert described == {"name": str(tmp_path), "path": path, "kind": "linear", "task": "math"}


def test_heads_in_any_folders_are_of_one_recipe_if_only_their_seed_differs(tmp_path):
    for seed, name in enumerate("ab"):
        recipe = {"steps": 2, "seed": seed}
        make_head(tmp_path / name, kind="linear", task="a", recipe=recipe)
    heads = [str(tmp_path / name) for name in "ab"]
    systems = Systems(method_variants(["diversed"], {"head": heads}), [5])
    (task,) = build_plan(PAIR, [make_task("a")], systems, Settings()).tasks
    names = [dict(cell.parameters)["head"].name for cell in task.cells]
    assert len({recipe_of(name) for name in names} - {None}) == 1
    assert [PurePath(name).name for name in names] == ["seed-0", "seed-1"]


def test_methods_run_with_every_combination_of_their_values():
    variants = method_variants(["sd", "diversed"], {"head": ["x", "y"], "weight": None})
    assert variants == [("sd", {}), ("diversed", {"head": "x"}), ("diversed", {"head": "y"})]
    mixed = dict(method_variants(["sd", "lossy", "static"], {"weight": 0.25, "lenience": None}))
    assert mixed == {"sd": {}, "lossy": {"lenience": 0.5}, "static": {"weight": 0.25}}
    swept = method_variants(["sd", "static"], {"weight": [0.0, 0.5, 0.5, 1.0]})
    assert [parameters.get("weight") for _, parameters in swept] == [None, 0.0, 0.5, 1.0]
    given = {"rule": ["chow", "diff"], "alpha": [0.1, 0.2]}
    combined = [tuple(p.values()) for _, p in method_variants(["speccascade"], given)]
    assert combined == [("chow", 0.1), ("chow", 0.2), ("diff", 0.1), ("diff", 0.2)]


def test_the_description_is_complete_and_names_no_path_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    revisions = {"target_revision": "abc", "draft_revision": "v2"}
    pair = PairSpec("p", str(tmp_path / "models" / "t"), "org/d", **revisions)
    variants = method_variants(["static"], {"weight": 0.3})
    loading = Loading(dtype="float32")
    plan = build_plan(pair, [make_task()], Systems(variants, [4]), Settings(), loading=loading)
    described = plan.describe()
    assert described["pair"] == {"name": "p", "target": "models/t", "draft": "org/d", **revisions}
    assert described["loading"]["dtype"] == "float32"
    cell = {"method": "static", "weight": 0.3, "draft_length": 4}
    assert described["tasks"][0]["cells"] == [cell]
    assert shown_path("/elsewhere/x") == "/elsewhere/x"


def test_every_drafter_is_a_cell_of_its_own():
    def cells(*methods, **how):
        variants = [(m, {"head": "untrained"} if m == "diversed" else {}) for m in methods]
        plan = build_plan(PAIR, [make_task()], Systems(variants, [5], **how), Settings())
        cell_columns = [cell.columns() for cell in plan.tasks[0].cells]
        return [(columns["method"], columns["drafter"]) for columns in cell_columns]

    both = [MODEL, LOOKUP]
    assert cells("autoregressive", "sd", "diversed", drafters=both) == [
        *(("autoregressive", None), ("sd", "model"), ("sd", "prompt-lookup")),
        ("diversed", "model"),
    ]
    alone: dict[str, Any] = {"drafters": [LOOKUP]}
    assert cells("sd", "diversed", optional={"diversed"}, **alone) == [("sd", "prompt-lookup")]
    for method in ("diversed", "sd-adaptive"):
        with pytest.raises(UsageError):
            cells(method, **alone)


def test_a_described_cell_can_be_read():
    pair, task = get_pair("mini"), load_task("mini-math")
    variants = method_variants(METHODS, {"alpha": [0.1, 0.9]})
    systems = Systems(variants, [1, 5], [parse_drafter("greedy"), LOOKUP])
    plan = build_plan(pair, [task], systems, Settings())
    (cells,) = (planned.cells for planned in plan.tasks)
    described = (CellConfig.model_validate_json(json.dumps(cell.describe())) for cell in cells)
    read = [Cell.recorded(values).resolved(pair, task.name) for values in described]
    assert tuple(read) == cells and len(set(cells)) > 2 * len(METHODS)


def test_shards_share_the_prompts_and_their_blocks_differ():
    def planned(shard):
        settings = Settings(batch_size=2, shard=shard)
        plan = plan_of(["sd"], [make_task("a", 7)], settings=settings)
        identities = [plan.identify(step, "eager") for step in plan.steps()]
        assert len(plan) == len(identities)
        return [(identity.sample_id, identity.block) for identity in identities]

    assert planned(None) == [(f"a-{i}", i // 2) for i in range(7)]
    assert planned("1/2") == [("a-0", 0), ("a-2", 0), ("a-4", 2), ("a-6", 2)]
    assert planned("2/2") == [("a-1", 1), ("a-3", 1), ("a-5", 3)]


@pytest.mark.parametrize("names", [["sd"], ["sd", "typical"], ["static", "autoregressive"]])
def test_drafts_are_compared_with_no_speculation(names):
    chosen = method_variants(names, {})
    methods = [method for method, _ in with_baselines(chosen)]
    assert sorted(methods) == sorted({"autoregressive", *names})
    assert with_baselines(with_baselines(chosen)) == with_baselines(chosen)
