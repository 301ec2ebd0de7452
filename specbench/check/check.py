"""Carrying out a check: all that needs exact numbers in float32, the rest as the user runs it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from specbench.analysis.labels import method_label
from specbench.check.controls import check_own_draft, check_time
from specbench.check.draws import FALSE_ALARM
from specbench.check.findings import WEAK, Finding
from specbench.check.greedy import check_greedy
from specbench.check.rounds import LAW, TESTS, check_rounds, rounds_table
from specbench.check.texts import Context, Sampled, informative
from specbench.decoding.sampling import Sampling
from specbench.engine.device import choose_device, free_memory
from specbench.engine.loading import LoadedPair, choose_dtype
from specbench.engine.memory import check_memory
from specbench.errors import UsageError
from specbench.experiment.plan import Cell, Plan, TaskPlan
from specbench.experiment.prompts import Prompts
from specbench.experiment.runner import Loader, largest
from specbench.heads.bind import bind
from specbench.methods.laws import LAWS
from specbench.methods.registry import get_method
from specbench.table import Column, Table
from specbench.version import __version__

EXACT = "float32"
# Two ways to process logits, the second with everything that a loop may forget for one model.
SAMPLINGS = (Sampling(), Sampling(temperature=0.7, top_k=20, top_p=0.9))
CONTEXTS = 4  # prompts that rounds are sampled from; the fewer, the more texts of each
Say = Callable[[str], object]
log = logging.getLogger(__name__)
Prompted = tuple[TaskPlan, Context]


@dataclass(frozen=True)
class Check:
    """What is checked."""

    plan: Plan
    draft_length: int  # N
    texts: int  # sampled of each method and sampling, from all prompts together


def run_check(check: Check, say: Say) -> Iterator[Finding]:
    """Check a pair and yield one comparison after the other; ``say`` is told what is next.

    Raises:
        SpecbenchError: The pair or a head cannot be had or does not fit.
    """
    working = _working_dtype(check)
    strict = _fits_exactly(check, working)
    dtype = EXACT if strict else working
    say(f"loading the models in {dtype}")
    pair = _load(check, dtype)
    prompts = _prompts(check, pair)
    contexts = [context for _, context in prompts]
    say("greedy decoding, sd against the target alone")
    yield from check_greedy(pair, contexts, check.draft_length, strict=strict)
    yield from _check_methods(check, pair, prompts, strict, say)
    say("the target as its own draft")
    yield check_own_draft(pair, contexts, _sampled(check, FALSE_ALARM, strict))
    if dtype != working:
        del pair
        free_memory()
        say(f"loading the models in {working}")
        pair = _load(check, working)
        say(f"greedy decoding in {working}")
        yield from check_greedy(pair, contexts, check.draft_length, strict=False)
    say("timing")
    yield check_time(pair, contexts[0])


def describe(check: Check, findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """Return everything in plain values, for a JSON file."""
    return {
        "specbench": __version__,
        "check": {
            **check.plan.describe(),
            "draft_length": check.draft_length,
            "samples": check.texts,
            "working_dtype": _working_dtype(check),
        },
        "seconds": seconds,
        "verdicts": Counter(finding.verdict for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """Yield a table of the sampled rounds and one of all other checks."""
    rounds = [finding for finding in findings if finding.part == LAW]
    if rounds:
        yield rounds_table(rounds)
    others = [f for f in findings if f.part != LAW]
    columns = [Column(name, align="left") for name in ("check", "of", "verdict", "found")]
    yield Table("Other checks", columns, [[f.name, f.subject, f.verdict, f.says] for f in others])


def _check_methods(
    check: Check, pair: LoadedPair, prompts: Sequence[Prompted], strict: bool, say: Say
) -> Iterator[Finding]:
    """Sample rounds of every method, each from a few prompts."""
    methods: dict[str, list[tuple[Context, Cell]]] = {}
    for task, context in prompts:
        for cell in task.cells:
            methods.setdefault(method_label(cell.columns()), []).append((context, cell))
    how = _sampled(check, FALSE_ALARM / (len(TESTS) * len(methods) * len(SAMPLINGS)), strict)
    extended: dict[str, Context] = {}
    for label, cases in methods.items():
        name = cases[0][1].method
        if get_method(name).rule is not None and name not in LAWS:
            says = "no closed form of this method is known here: its rounds are not compared"
            yield Finding(LAW, label, "closed form", WEAK, says)
            continue
        bound = []
        for context, cell in cases[: min(CONTEXTS, check.texts)]:
            if context.name not in extended:
                extended[context.name] = informative(pair, context)
            method = bind(cell.method, dict(cell.parameters), pair)
            bound.append((extended[context.name], method))
        for sampling in SAMPLINGS:
            say(f"sampling {label} at T={sampling.temperature:g}")
            yield from check_rounds(pair, label, bound, sampling, how)


def _sampled(check: Check, alpha: float, exact: bool) -> Sampled:
    settings = check.plan.settings
    size = settings.batch_size
    return Sampled(check.texts, check.draft_length, size, settings.seed, alpha, exact)


def _fits_exactly(check: Check, working: str) -> bool:
    """Return whether the pair fits in float32; it must fit as the user runs it."""
    sizes = largest(check.plan)
    check_memory(check.plan.pair, check.plan.loading.updated(dtype=working), *sizes)
    try:
        check_memory(check.plan.pair, check.plan.loading.updated(dtype=EXACT), *sizes)
    except UsageError as error:
        log.warning(
            f"{error}. What would be compared in {EXACT} is compared in {working}: greedy texts "
            "and probabilities only as a report"
        )
        return False
    return True


def _load(check: Check, dtype: str) -> LoadedPair:
    loading = check.plan.loading.updated(dtype=dtype)
    return Loader().load(replace(check.plan, loading=loading))


def _working_dtype(check: Check) -> str:
    device = choose_device(check.plan.loading.device)
    return str(choose_dtype(check.plan.pair, check.plan.loading, device)).removeprefix("torch.")


def _prompts(check: Check, pair: LoadedPair) -> list[Prompted]:
    """Return every prompt with its task, the tasks in turns."""
    prompts = Prompts(check.plan, pair)
    columns = [
        [
            (task, Context(f"{task.task.name}/{example.id}", prompts.of(task, example).ids))
            for example in task.examples
        ]
        for task in check.plan.tasks
    ]
    return [each for row in zip_longest(*columns) for each in row if each is not None]
