"""Benchmarks: their cells and prompts, their order, and the speed of batches that are refilled."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch

from specbench.analysis.tables.benchmark import Measured, bench_tables, repeats_of, with_forced
from specbench.config import AUTO, COMPILE, EAGER, GRAPH
from specbench.decoding import loop
from specbench.decoding.heads.bind import bind
from specbench.engine.engines import Engine
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.engine.runner import Runner
from specbench.errors import RunError, UsageError
from specbench.experiment import bench_runner, benchmark
from specbench.experiment.bench_runner import BenchRunner
from specbench.experiment.benchmark import BenchSettings, bench_cells, bench_plan
from specbench.experiment.cells import Cell, method_variants
from specbench.experiment.loader import Loader
from specbench.experiment.plan import Plan
from specbench.methods import Positions, registry
from specbench.runs.model import SampleRecord

from ..engine.tiny import tiny_pair

CPU = Loading(device="cpu")


def cells_of(*methods: str, pair: PairSpec | None = None, loading: Loading = CPU, **changes: Any):
    settings = BenchSettings(**({"engine": [EAGER]} | changes))
    return bench_cells(pair or get_pair("mini"), method_variants(methods, {}), loading, settings)


def plan_of(*methods: str, same_prompts: bool = False, **changes: Any) -> Plan:
    small = {"engine": [EAGER], "prompt_tokens": 4, "new_tokens": 8, "repeats": 2, "refill": 1}
    settings = BenchSettings(**(small | changes))
    cells, _ = bench_cells(get_pair("mini"), method_variants(methods, {}), CPU, settings)
    return bench_plan(get_pair("mini"), CPU, settings, cells, same_prompts=same_prompts)


def cell_of(method: str, n: int, engine: str = EAGER, **parameters: Any) -> Cell:
    return Cell(method, tuple(parameters.items()), n, engine=engine)


def test_every_method_is_combined_with_every_engine_length_and_acceptance():
    settings = {"draft_length": [3, 5], "acceptance": ["0.5", ".8/.60"]}
    cells, notes = cells_of("autoregressive", "sd", "lossy", engine=[EAGER, COMPILE], **settings)
    assert cells == [
        cell
        for engine in (EAGER, COMPILE)
        for cell in (
            cell_of("autoregressive", 0, engine),  # drafts nothing, so it is timed once
            *(
                cell_of("synthetic", n, engine, acceptance=rate, **of)
                for of in ({}, {"of": "lossy", "lenience": 0.5})
                for n in (3, 5)
                for rate in ("0.5", "0.8/0.6")
            ),
        )
    ]
    assert not notes


def test_random_weights_and_pairs_without_heads_use_an_untrained_head():
    def head(**changes):
        cells, notes = cells_of("diversed", **changes)
        return str(cells[0].columns()["head"]), notes

    assert head()[0] == "bundled"
    dummy, notes = head(loading=Loading(device="cpu", load_format="dummy"))
    assert dummy == "untrained"
    assert any("untrained" in text for text in notes)
    assert head(pair=get_pair("llama"))[0] == "untrained"


REFUSED: list[tuple[str, Any]] = [
    *(("acceptance", ["0.5", "1.2"]), ("acceptance", ["nan"]), ("acceptance", [".5/x"])),
    *(("engine", ["transformers"]), ("batch_size", [1, 0]), ("prompt_tokens", 0), ("refill", 0)),
    ("temperature", 1e-46),
]


def test_values_out_of_range_are_refused_by_the_name_of_their_option():
    for name, value in REFUSED:
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}"):
            BenchSettings(**{name: value})


def test_the_default_prompt_fits_and_engines_are_those_of_the_device(mini):
    def prompt(new, asked=None):
        plan = plan_of("sd", prompt_tokens=asked, new_tokens=new, repeats=1)
        source: Any = plan.tasks[0].task.source
        return int(source.tokens)

    context = mini.context
    assert prompt(128) == benchmark.DEFAULT_PROMPT and prompt(context - 100) == 100
    assert prompt(100, context - 100) == context - 100
    for new, asked in ((100, context - 99), (context, None)):
        with pytest.raises(UsageError, match=f"exceed the context of {context}"):
            prompt(new, asked)
    assert plan_of("sd", engine=[AUTO, EAGER]).tasks[0].cells == (cell_of("sd", 5),)
    with pytest.raises(UsageError, match="needs one CUDA device"):
        plan_of("sd", engine=[GRAPH])
    with pytest.raises(UsageError, match="batch-size"):
        Loader(lambda spec, loading: mini).load(plan_of("sd", batch_size=[10**5], repeats=1))


def test_every_repeat_has_every_cell_once_on_new_prompts():
    plan = plan_of("autoregressive", "sd", batch_size=[1, 3], repeats=4, refill=2)
    assert len(plan) == 2 * 4 * 2 * (1 + 3)
    prompts: set[str] = set()
    orders = set()
    for task in plan.tasks:
        batches = [batch for batch in plan.batches() if batch[0].plan is task]
        for block, of_block in groupby(batches, lambda b: plan.identify(b[0], EAGER).block):
            cells = [*of_block]
            assert len(cells[0]) == 2 * task.batch_size
            assert {batch[0].cell for batch in cells} == {*task.cells}
            assert len({tuple(step.example.id for step in batch) for batch in cells}) == 1
            prompts |= {f"{task.task.name} {step.example.prompt}" for step in cells[0]}
            orders.add((block, *(batch[0].cell.method for batch in cells)))
    assert len(prompts) == 4 * 2 * (1 + 3)
    assert len({order[1:] for order in orders}) == 2  # no cell always comes first
    alike = plan_of("sd", batch_size=[3], repeats=4, same_prompts=True)
    (task,) = alike.tasks
    assert len({example.prompt for example in task.examples}) == 3
    source = task.task.source
    ids = [source.ids(example, 100) for example in task.examples]
    assert len({tuple(prompt[:-1]) for prompt in ids}) == 1  # a cache may share these
    assert len({prompt[-1] for prompt in ids}) == 3


@pytest.fixture
def pair(monkeypatch) -> LoadedPair:
    monkeypatch.setattr(bench_runner, "copy_bandwidth", lambda device, size: 1e9)
    return tiny_pair("llama")


def records_of(plan: Plan, pair: LoadedPair) -> list[SampleRecord]:
    runner = BenchRunner(plan, pair)
    return [record for batch in plan.batches() for _, record in runner.run(batch)]


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, loop.DecodeOptions]]:
    calls = []

    def watched(pair, rule, requests, options):
        calls.append((len(requests), options))
        return loop.decode_all(pair, rule, requests, options)

    monkeypatch.setattr("specbench.experiment.runner.decode_all", watched)
    return calls


def test_all_cells_of_a_batch_size_are_warmed_up_before_the_first_is_timed(pair, calls):
    plan = plan_of("autoregressive", "sd", batch_size=[1, 3], new_tokens=40, refill=2)
    records = records_of(plan, replace(pair, eos_ids=frozenset(range(pair.target.vocabulary))))
    share = 40 // bench_runner.WARM_UP_SHARE
    sizes = [(o.batch_size, o.max_new_tokens, texts) for texts, o in calls]
    assert sizes == [size for b in (1, 3) for size in [*[(b, share, b)] * 2, *[(b, 40, 2 * b)] * 4]]
    assert len(records) == len(plan)
    assert {record.output_tokens for record in records} == {40}  # though every token ends a text
    assert not {"token_ids", "per_round"} & records[0].model_fields_set


def test_the_warm_up_covers_every_length_of_an_adaptive_round(pair, calls, monkeypatch):
    class Static(Engine):
        static = True

    monkeypatch.setattr(bench_runner, "Engine", Static)
    records_of(plan_of("sd-adaptive", draft_length=[3], repeats=1), pair)
    drafted = [getattr(options.control, "drafts", None) for _, options in calls]
    assert drafted == [1, 2, 3, None, None]


def test_out_of_memory_is_one_line(pair, monkeypatch):
    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr("specbench.experiment.runner.decode_all", full)
    with pytest.raises(RunError, match=r"a batch of 3 does not fit.*--batch-size"):
        records_of(plan_of("sd", batch_size=[3]), pair)


# A simulated machine: a round takes the same time whatever it accepts, and less if a row is empty.
ROUND, EMPTIER, PROMPT = 0.25, 0.9, 1.0


@pytest.fixture
def rounds(monkeypatch) -> list[int]:
    """Let a clock advance with rounds and prompts; count the rounds."""
    clock, counted = [0.0], [0]

    def step(*arguments: Any) -> Any:
        clock[0] += ROUND if bool(arguments[2].active.all()) else EMPTIER * ROUND
        counted[0] += 1
        return real_step(*arguments)

    def prefill(runner: Runner, *arguments: Any) -> Any:
        clock[0] += PROMPT / 2  # of two models
        runner.forget_prompts()
        return real_prefill(runner, *arguments)

    real_step: Callable[..., Any] = loop.speculative_step
    real_prefill: Callable[..., Any] = Runner.prefill
    monkeypatch.setattr(loop, "speculative_step", step)
    monkeypatch.setattr(Runner, "prefill", prefill)
    monkeypatch.setattr(loop, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(loop, "now", lambda device: clock[0])
    return counted


def rounds_of_a_text(rates: Sequence[float], tokens: int) -> float:
    """Return the expected number of rounds of a text: closed form of a renewal process."""
    reached = [1.0]
    for rate in rates:
        reached.append(reached[-1] * rate)
    emits = [a - b for a, b in zip(reached, [*reached[1:], 0.0], strict=True)]  # 1 to N + 1 tokens
    needed = [0.0]
    for length in range(1, tokens + 1):
        later = (p * needed[max(0, length - 1 - k)] for k, p in enumerate(emits))
        needed.append(1 + sum(later))
    return needed[tokens]


def speeds(plan: Plan, pair: LoadedPair) -> pd.DataFrame:
    samples = with_forced(pd.DataFrame(map(vars, records_of(plan, pair))))
    systems = [
        {**cell.columns(), "engine": cell.engine, "batch_size": task.batch_size}
        for task in plan.tasks
        for cell in task.cells
    ]
    shared = {"pair": "tiny", "device": "cpu", "dtype": "float32", "temperature": 1.0}
    shared |= {"prompt_tokens": 4, "new_tokens": plan.tasks[0].max_new_tokens}
    table = with_forced(pd.DataFrame(systems))
    table = table.assign(bytes_per_round=1.0, warm_up_seconds=0.0, **shared)
    return bench_tables(Measured(repeats_of(samples), table, 1e9))[0]


def test_a_refilled_batch_has_the_speed_of_a_server_and_one_that_drains_has_less(pair, rounds):
    rates, size, length = "0.7", 8, 40
    settings = {"acceptance": [rates], "batch_size": [size], "new_tokens": length, "repeats": 1}
    needed = rounds_of_a_text([float(rates)] * 5, length)
    server = size * length / (needed * ROUND)
    with_prompts = size * length / (needed * ROUND + size * PROMPT)

    (refilled,) = speeds(plan_of("sd", **settings, refill=20), pair).to_dict("records")
    assert refilled["tokens_per_second"] == pytest.approx(server, rel=0.02)
    assert refilled["tokens_per_second_with_prompts"] == pytest.approx(with_prompts, rel=0.02)
    assert EMPTIER * ROUND < refilled["round_seconds"] < ROUND

    # The control: without refilling, the tail of a batch counts, and the speed is too low.
    (drained,) = speeds(plan_of("sd", **settings | {"repeats": 6}), pair).to_dict("records")
    assert drained["tokens_per_second_of_all_rounds"] < 0.93 * server
    assert drained["tokens_per_second"] == pytest.approx(server, rel=0.03)


@pytest.mark.parametrize(("method", "rates"), [("autoregressive", "0"), ("sd", "1")])
def test_texts_that_end_together_leave_no_row_empty(pair, rounds, method, rates):
    """Where all texts have the same rounds, every number is exact, with or without refilling."""
    per_round = 6 if method == "sd" else 1
    for refill in (1, 3):
        settings = {"acceptance": [rates], "batch_size": [4], "new_tokens": 12, "refill": refill}
        (speed,) = speeds(plan_of(method, **settings), pair).to_dict("records")
        for name in ("", "_of_all_rounds"):
            assert speed[f"tokens_per_second{name}"] == pytest.approx(4 * per_round / ROUND)


def test_the_shares_of_all_texts_are_the_rounds_of_their_batches(pair, rounds):
    plan = plan_of("sd", batch_size=[3], new_tokens=20, refill=2, repeats=1)
    runner = BenchRunner(plan, pair)
    (batch,) = plan.batches()
    runner._warm_up([(step, runner._prompts.of(step.plan, step.example)) for step in batch])
    rounds[0] = 0
    records = [record for _, record in runner.run(batch)]
    assert sum((record.shared_rounds or 0) for record in records) == pytest.approx(rounds[0])
    full = sum((record.full_rounds or 0) for record in records) / 3
    assert full == round(full) and 0 < full < rounds[0]
    assert sum((record.full_seconds or 0) for record in records) == pytest.approx(full * ROUND)
    seconds = ROUND * (full + EMPTIER * (rounds[0] - full))
    assert sum((record.decode_seconds or 0) for record in records) == pytest.approx(seconds)


def test_a_forced_head_is_still_computed(pair):
    weighed = [0]

    class Counted:
        def weigh(self, at):
            weighed[0] += 1
            return at.p.new_full((len(at.p),), 0.5)

    (cell,), _ = cells_of("diversed", acceptance=["0.4"])
    assert cell.method == "synthetic" and cell.values["of"] == "diversed"
    bound = bind(cell.method, cell.values | {"head": Counted()}, pair)
    assert bound.rule is not None and bound.law is None
    p = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    at, x = Positions(p, p.flip(0), p, p.flip(0), p, p, False, n=2), torch.arange(4)
    verdict = bound.rule(at, x)
    assert verdict.accept.tolist() == pytest.approx([0.4] * 4) and weighed == [1]
    own = registry.get_method("diversed").rule
    assert own is not None
    expected = own(at, x, head=Counted().weigh)
    assert torch.equal(verdict.residual, expected.residual)
    assert verdict.weight is not None and expected.weight is not None
    assert replace(cell).columns()["settings"] == "acceptance=0.4 of=diversed"
