"""Carrying out a check: all that needs exact numbers in float32, the rest as the user runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from specbench.check.chance import FALSE_ALARM
from specbench.check.findings import WEAK, Finding
from specbench.check.greedy import check_greedy
from specbench.check.own_draft import check_own_draft
from specbench.check.plan import SAMPLINGS, Check, Place
from specbench.check.rounds import PART, TESTS, check_rounds
from specbench.check.texts import Context, Rule, telling
from specbench.check.timing import check_time
from specbench.engine.available import free_memory
from specbench.engine.loading import LoadedPair, choose_device, choose_dtype
from specbench.engine.memory import check_memory
from specbench.errors import UsageError
from specbench.experiment.execute import largest, load
from specbench.experiment.plan import Cell
from specbench.experiment.prompts import Prompts
from specbench.heads.files import load_head
from specbench.methods.laws import LAWS
from specbench.methods.registry import get_method
from specbench.version import __version__

EXACT = "float32"
Say = Callable[[str], object]


def run_check(check: Check, say: Say, note: Say) -> Iterator[Finding]:
    """Check a pair.

    Args:
        check: What is checked.
        say: Told what is done next.
        note: Told what the user should know.

    Yields:
        What was found, one thing after the other.

    Raises:
        SpecbenchError: The pair or a head cannot be had or does not fit.
    """
    working = _working_dtype(check)
    strict = _fits_exactly(check, working, note)
    chosen = EXACT if strict else working
    say(f"loading the models in {chosen}")
    pair = _load(check, chosen, note)
    yield from _in_exact_numbers(check, pair, strict, say)
    if chosen != working:
        del pair
        free_memory()
        say(f"loading the models in {working}")
        pair = _load(check, working, note)
        say(f"greedy decoding in {working}")
        yield from check_greedy(pair, _contexts(check, pair), check.draft_length, strict=False)
    say("timing")
    yield check_time(pair, _contexts(check, pair)[0])


def describe(check: Check, findings: list[Finding], seconds: float) -> dict[str, Any]:
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
        "verdicts": {
            verdict: sum(finding.verdict == verdict for finding in findings)
            for verdict in dict.fromkeys(finding.verdict for finding in findings)
        },
        "findings": [finding.describe() for finding in findings],
    }


def _in_exact_numbers(check: Check, pair: LoadedPair, strict: bool, say: Say) -> Iterator[Finding]:
    say("greedy decoding, sd against the target alone")
    contexts = _contexts(check, pair)
    yield from check_greedy(pair, contexts, check.draft_length, strict=strict)
    methods = check.methods()
    how = check.sampled(FALSE_ALARM / (len(TESTS) * len(methods) * len(SAMPLINGS)), strict)
    prompts = Prompts(pair, check.plan.settings)
    starts: dict[str, Context] = {}

    def begun(place: Place) -> Context:
        context = _context(prompts, place)
        if context.name not in starts:
            starts[context.name] = telling(pair, context)
        return starts[context.name]

    for label, places in methods.items():
        name = places[0][1].method
        if get_method(name).rule is not None and name not in LAWS:
            says = "no closed form of this method is known here: its rounds are not compared"
            yield Finding(PART, label, "closed form", WEAK, says)
            continue
        rules = [(begun(place), _rule(cell, pair)) for place, cell in places]
        for sampling in SAMPLINGS:
            say(f"sampling {label} at T={sampling.temperature:g}")
            yield from check_rounds(pair, label, rules, sampling, how)
    say("the target as its own draft")
    yield check_own_draft(pair, contexts, how)


def _fits_exactly(check: Check, working: str, note: Say) -> bool:
    """Tell whether the pair fits in float32; that it fits as it is run is required."""
    sizes = largest(check.plan)
    check_memory(check.plan.pair, replace(check.plan.loading, dtype=working), *sizes)
    try:
        check_memory(check.plan.pair, replace(check.plan.loading, dtype=EXACT), *sizes)
    except UsageError as error:
        note(
            f"{error}. What would be compared in {EXACT} is compared in {working}: greedy texts "
            "and probabilities only as a report"
        )
        return False
    return True


def _load(check: Check, dtype: str, note: Say) -> LoadedPair:
    loading = replace(check.plan.loading, dtype=dtype)
    return load(replace(check.plan, loading=loading), note)


def _working_dtype(check: Check) -> str:
    device = choose_device(check.plan.loading.device)
    return str(choose_dtype(check.plan.pair, check.plan.loading, device)).removeprefix("torch.")


def _contexts(check: Check, pair: LoadedPair) -> list[Context]:
    prompts = Prompts(pair, check.plan.settings)
    return [_context(prompts, place) for place in check.places()]


def _context(prompts: Prompts, place: Place) -> Context:
    task, example = place
    return Context(f"{task.task.name}/{example.id}", prompts.of(task, example).ids)


def _rule(cell: Cell, pair: LoadedPair) -> Rule:
    """A method with its parameters and its head bound."""
    parameters, head = dict(cell.parameters), None
    if "head" in parameters:
        head = load_head(parameters["head"].path, pair)
    bound = parameters if head is None else {**parameters, "head": head.weigh}
    verify, control = get_method(cell.method).bind(bound)
    # What controls the number of drafts changes no law.
    return Rule(cell.method, verify, {} if control else parameters, head, control)
