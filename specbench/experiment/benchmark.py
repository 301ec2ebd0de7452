"""Benchmarks: runs of random prompts whose cells have engines, and may accept drafts by force.

A plan has a task for each batch size, since all cells of a task share caches. Its blocks are the
repeats: in each of them, every cell decodes the same new prompts, as many as fill its batch several
times. ``decide`` needs short times only: those of plain and strict rounds at some batch sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from specbench import config
from specbench.decoding.heads.registry import HeadFile, find_head
from specbench.engine.choice import choose_engine
from specbench.engine.pairs import Loading, PairSpec
from specbench.errors import UsageError, require
from specbench.experiment.cells import Cell, Variant, cells_of, method_variants, with_head
from specbench.experiment.plan import Plan, TaskPlan
from specbench.experiment.progress import progress_bar
from specbench.methods.method import COMPUTED, Rates
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.configuration import Settings
from specbench.runs.labels import UNTRAINED
from specbench.runs.model import SampleRecord
from specbench.tasks.random_prompts import RandomPrompts, random_task
from specbench.tasks.task import default_task_names

if TYPE_CHECKING:
    from specbench.experiment.loader import Loader

SYNTHETIC = "synthetic"
DEFAULT_PROMPT = 512
# New tokens of a batch for `decide`: at most, at least, and of all its texts. They are some rounds,
# which is all that is timed.
MOST_TOKENS, LEAST_TOKENS, TOKENS = 8, 2, 24
# At least three repeats, up to eight until they agree, or until those of all sizes took as long.
FEW_REPEATS, REPEATS, SECONDS = 3, 8, 95.0
STEADY = 0.02  # standard error of the seconds of a round, relative, that suffices
ACCEPTED = "0.6"  # by force, so that rounds take the same time for all pairs


class BenchSettings(config.DraftLengths, config.OneTemperature, config.Seeded):
    """What to time, on which prompts, and how often."""

    panel = "Sampling"

    engine: list[str] = config.option(
        [config.AUTO],
        "Several values are all timed; auto means graph on a GPU, else eager.",
        metavar="NAME[,NAME...]",
        shown=config.AUTO,
        choices=config.ENGINES,
    )
    batch_size: list[config.Count] = config.option(
        [1], "Texts per batch; several values are all timed.", metavar="B[,B...]"
    )
    acceptance: list[str] = config.option(
        [],
        "Accept every drafted token with this probability instead of the rule's, which is still "
        "computed; .8/.6/.5 are probabilities by position; several values are all timed.",
        metavar="RATE[,RATE...]",
        shown="the rules' own, on random prompts",
    )
    prompt_tokens: int | None = config.option(
        None, "Length of the random prompts.", ge=1, shown="512, or less if the context is shorter"
    )
    new_tokens: int = config.option(128, "Length of the answers; end tokens are ignored.", ge=1)
    # With fewer repeats there are no intervals.
    repeats: int = config.option(10, "Number of times to time each system, with new prompts.", ge=1)
    refill: int = config.option(
        2,
        "Texts per row of a batch in each repeat: the next text takes an ended one's row, and "
        "tokens/s are those of the rounds without an empty row.",
        ge=1,
        metavar="K",
    )

    @field_validator("acceptance")
    @classmethod
    def _rates(cls, texts: list[str]) -> list[str]:
        try:
            return [*map(Rates, texts)]
        except ValueError as error:
            raise ValueError(f"must be rates from 0 to 1, not {', '.join(texts)}") from error


def bench_cells(
    pair: PairSpec, variants: Iterable[Variant], loading: Loading, settings: BenchSettings
) -> tuple[list[Cell], list[str]]:
    """Return every method with every engine, draft length and forced acceptance.

    Also returns one sentence each on what is skipped, and why.

    Raises:
        UsageError: A head is missing.
    """
    notes: list[str] = []
    task, *_ = default_task_names()

    def find(head: str | None) -> HeadFile:
        """Return the named head; the default is the pair's head, else an untrained one."""
        if head is None and not loading.dummy:
            with suppress(UsageError):
                return find_head(pair, task)
        if head is None:
            notes.append(f"pair {pair.name} has no suitable head: an untrained one is used")
        return find_head(pair, task, head or UNTRAINED)

    with_heads = [(method, with_head(parameters, find)) for method, parameters in variants]
    cells = cells_of(with_heads, settings.draft_length)
    rates: Sequence[str | None] = settings.acceptance or [None]
    forced: dict[Cell, None] = {}
    for engine, cell, rate in product(settings.engine, cells, rates):
        if rate is not None and cell.draft_length:  # accepts at the rate, and computes its own rule
            computed = {} if cell.method in ("sd", SYNTHETIC) else {COMPUTED: cell.method}
            parameters = {"acceptance": rate} | computed | (cell.values if computed else {})
            cell = replace(cell, method=SYNTHETIC, parameters=tuple(parameters.items()))
        forced[replace(cell, engine=engine)] = None
    return list(forced), notes


def bench_plan(
    pair: PairSpec,
    loading: Loading,
    settings: BenchSettings,
    cells: Sequence[Cell],
    notes: Sequence[str] = (),
    *,
    same_prompts: bool = False,
) -> Plan:
    """Plan a benchmark on this machine: its engines, and prompts that fit into the context.

    With ``same_prompts`` all repeats have the same prompts, which are read once, and which share
    all tokens but the last.

    Raises:
        UsageError: The benchmark cannot run on this machine.
    """
    from specbench.engine.device import choose_device
    from specbench.engine.memory import check_memory

    device, spread = str(choose_device(loading.device)), loading.device_map is not None
    names = dict.fromkeys(cell.engine for cell in cells)
    chosen = {name: choose_engine(name, device, spread, pair.gguf) for name in names}
    systems = tuple(dict.fromkeys(replace(cell, engine=chosen[cell.engine]) for cell in cells))
    prompt_tokens, tasks = _prompt_tokens(pair, loading, settings), []
    drafts, texts = max(cell.draft_length for cell in systems), max(settings.batch_size)
    check_memory(pair, loading, prompt_tokens, settings.new_tokens, drafts, texts)
    for size in settings.batch_size:
        source = RandomPrompts(prompt_tokens, settings.seed, size if same_prompts else None)
        task = random_task(size, settings.new_tokens, source)
        examples = source.examples("test", settings.repeats * settings.refill * size, settings.seed)
        tasks.append(TaskPlan(task, (*examples,), systems, settings.new_tokens, size))
    values: dict[str, Any] = {
        "engine": systems[0].engine,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "batch_size": settings.batch_size[0],
        "refill": settings.refill if settings.refill > 1 else None,
    }
    times: Literal["all", "rounds"] = "rounds" if same_prompts else "all"
    return Plan(pair, loading, Settings(**values), tuple(tasks), notes=tuple(notes), times=times)


def _prompt_tokens(pair: PairSpec, loading: Loading, settings: BenchSettings) -> int:
    """Return the prompt length: the requested one, or the default if it fits."""
    from specbench.engine.cache import context_length
    from specbench.engine.sources import load_config

    context = context_length(load_config(pair, "target", loading))
    new, requested = settings.new_tokens, settings.prompt_tokens
    if context is None:
        return requested or DEFAULT_PROMPT
    length = requested or min(DEFAULT_PROMPT, context - new)
    require(
        0 < length <= context - new,
        f"{max(length, 1)} prompt and {new} new tokens exceed the context of {context}: lower "
        "--prompt-tokens or --new-tokens",
    )
    return length


def time_rounds(
    pair: PairSpec, loading: Loading, settings: BenchSettings, loader: Loader, show_progress: bool
) -> Iterator[list[SampleRecord]]:
    """Time rounds of `sd` and of no speculation; yield the records of each batch size.

    An interrupt ends the repeats of a size; it goes on after those were yielded, if they suffice.

    Raises:
        UsageError: The benchmark cannot run on this machine.
        RunError: The device runs out of memory, or a graph cannot be captured.
    """
    from specbench.experiment.bench_runner import BenchRunner

    settings = settings.updated(acceptance=[ACCEPTED], repeats=REPEATS, refill=1)
    cells, _ = bench_cells(pair, method_variants([AUTOREGRESSIVE, "sd"], {}), loading, settings)
    left, sizes = SECONDS, settings.batch_size
    for number, size in enumerate(sizes):
        tokens = max(LEAST_TOKENS, min(MOST_TOKENS, TOKENS // size))
        of_size = settings.updated(batch_size=[size], new_tokens=tokens)
        plan = bench_plan(pair, loading, of_size, cells, same_prompts=True)
        runner, batches = BenchRunner(plan, loader.load(plan)), plan.batches()
        began, budget, repeats = time.perf_counter(), left / (len(sizes) - number), 0
        records, seconds = list[SampleRecord](), dict[Any, list[float]]()  # of rounds, by cell
        interrupt: KeyboardInterrupt | None = None
        try:
            with progress_bar(len(plan), show_progress, name="measurements") as report:
                while repeats < REPEATS:
                    needed = (time.perf_counter() - began) * (repeats + 1) / max(repeats, 1)
                    is_steady = repeats > FEW_REPEATS and all(
                        stdev(of_cell) <= STEADY * mean(of_cell) * repeats**0.5
                        for of_cell in seconds.values()
                    )
                    if repeats >= FEW_REPEATS and (needed > budget or is_steady):
                        break
                    for batch in islice(batches, len(cells)):
                        decoded = [record for _, record in runner.run(batch)]
                        for record in decoded:
                            report(vars(record))
                        records += decoded
                        rounds = sum(record.shared_rounds or 0.0 for record in decoded)
                        total = sum(record.decode_seconds or 0.0 for record in decoded)
                        seconds.setdefault(batch[0].cell, []).append(total / rounds)
                    repeats += 1
        except KeyboardInterrupt as pressed:
            if repeats < FEW_REPEATS:
                raise
            interrupt = pressed
        left -= time.perf_counter() - began
        yield [record for record in records if (record.block or 0) < repeats]
        if interrupt is not None:
            raise interrupt
