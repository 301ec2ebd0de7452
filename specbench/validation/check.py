"""Execute a check: exact comparisons in float32, everything else in the dtype of runs.

A server is compared with its target in float32, see ``server``. Two checks have no law: the target
as its own draft, and whether the measured speed is possible.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, zip_longest
from pathlib import Path
from statistics import fmean
from traceback import extract_tb
from typing import Any

import torch

from specbench import __version__
from specbench.analysis.tables.table import Table, percent
from specbench.config import AUTO
from specbench.decoding.drafters.registry import MODEL
from specbench.decoding.heads.bind import bind
from specbench.decoding.heads.head import Head
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.device import choose_device, now
from specbench.engine.hardware import copy_bandwidth, free_memory
from specbench.engine.loading import choose_dtype
from specbench.engine.memory import check_memory
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import DUMMY
from specbench.errors import UsageError
from specbench.experiment.cells import Cell
from specbench.experiment.comparison import ROUNDING
from specbench.experiment.loader import Loader, largest
from specbench.experiment.plan import Plan, TaskPlan
from specbench.experiment.prompts import EncodedPrompts
from specbench.runs.labels import method_label
from specbench.serving.server import NEUTRAL_START, Server
from specbench.validation.draws import FALSE_ALARM
from specbench.validation.findings import (
    FAILED,
    LAW,
    REPORT,
    Finding,
    findings_table,
    judged,
    rounds_table,
)
from specbench.validation.greedy import TIE, check_greedy
from specbench.validation.outputs import choose_ends
from specbench.validation.rounds import TESTS, Case, check_rounds
from specbench.validation.server import CONTEXTS, ShowStep, TextsOfServer, check_server
from specbench.validation.texts import (
    Context,
    Ends,
    Setup,
    after_rounds,
    decode_one,
    informative,
    sample,
)

OWN_DRAFT, TIME = "own draft", "time"

MIN_ACCEPTANCE = 0.999  # mean acceptance probability; float32 rounding costs far less than 0.001
TEXTS = 32

TOKENS, WARM_UP, REPEATS, MOST_REPEATS = 64, 16, 3, 20
# Decoding may exceed the copy bandwidth a little: copies also write, and caches hold small models.
MAX_SHARE = 2.0
MIN_ACCOUNTED = 0.8  # minimum share of the elapsed time that the records account for


def check_own_draft(setup: Setup, contexts: Sequence[Context], *, exact: bool) -> Finding:
    """Decode with the target as its own draft: q equals p, so every draft must be accepted.

    The control is the pair's draft, which must be accepted less often.
    """
    setup = setup._replace(texts=max(1, TEXTS // len(contexts)))
    twins = replace(setup.pair, draft=setup.pair.target.twin())
    rounds, of_draft = (
        [record for texts in sample(s, contexts) for text in texts for record in text.rounds]
        for s in (setup._replace(pair=twins), setup)
    )
    mean, mean_of_draft = (
        fmean(chance for record in records for chance in record.expected)
        for records in (rounds, of_draft)
    )
    drafts = sum(record.accepted + (record.rejected is not None) for record in rounds)
    accepted = sum(record.accepted for record in rounds)
    sentence = (
        f"{accepted:,} of {drafts:,} drafts accepted, mean probability {mean:.6f} "
        f"(with the pair's draft {mean_of_draft:.3f})"
    )
    facts = {
        **{"judged": drafts, "accepted": accepted, "expected": mean},
        "expected_of_draft": mean_of_draft,
    }
    rejected, weak = min(mean, accepted / drafts) < MIN_ACCEPTANCE, mean_of_draft >= MIN_ACCEPTANCE
    finding = Finding(OWN_DRAFT, "sd, T=1", OWN_DRAFT, *judged(rejected, weak, sentence, facts))
    return finding if exact else replace(finding, verdict=REPORT)


def check_time(pair: LoadedPair, context: Context) -> Finding:
    """Time the target alone, and compare with the wall clock and the memory bandwidth."""
    endless = replace(pair, eos_ids=frozenset())
    device = pair.target.device
    decode_one(endless, context, WARM_UP, temperature=1.0)
    texts, shares = list[Generation](), list[float]()
    # Other processes can only lower the share that is accounted for: on a busy machine, try again.
    while len(texts) < REPEATS or (max(shares) < MIN_ACCOUNTED and len(texts) < MOST_REPEATS):
        pair.forget_prompts()  # the wall clock is that of reading it
        began = now(device)
        texts.append(text := decode_one(endless, context, TOKENS, temperature=1.0))
        shares.append((text.prefill_seconds + text.decode_seconds) / (now(device) - began))
    accounted = max(shares)
    rate = len(texts) * TOKENS / sum(text.decode_seconds for text in texts)
    size = pair.target.weight_bytes()
    reads = size + pair.target.cache_bytes(len(context.prompt) + TOKENS / 2)
    bandwidth = copy_bandwidth(device, size)
    share = rate * reads / bandwidth
    sentence = (
        f"{rate:,.0f} tokens/s read {rate * reads / 1e9:,.1f} GB/s, {percent(share)} of the copy "
        f"bandwidth; the records account for {percent(accounted)} of the elapsed time"
    )
    possible = share <= MAX_SHARE and MIN_ACCOUNTED <= accounted <= 1.01
    facts = {
        **{"tokens_per_second": rate, "bytes_per_token": reads, "copy_bandwidth": bandwidth},
        **{"bandwidth_share": share, "accounted": accounted},
    }
    subject = f"autoregressive, {str(pair.target.dtype).removeprefix('torch.')}"
    return Finding(TIME, subject, TIME, *judged(not possible, False, sentence, facts))


EXACT = "float32"
# The second uses every option, as a loop may forget to apply one of them to one of the models.
SAMPLINGS = (Sampling(), Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02))
WHOLE = Sampling(top_k=2)  # of whole outputs; there are so few that they can be enumerated
SHORTENED = 4, 8  # whole outputs continue prompts of which a fourth and an eighth is left
log = logging.getLogger(__name__)
Prompted = tuple[TaskPlan, Context]


@dataclass(frozen=True)
class Check:
    """The plan of a check."""

    plan: Plan
    draft_length: int  # N
    texts: int  # samples per method and sampling, over all prompts
    max_new_tokens: int  # of greedy texts
    server: Server | None = None  # to check in place of the pair; it runs the pair's target
    temperatures: Sequence[float] = ()  # of the server's sampled texts


def run_check(check: Check, show_step: ShowStep) -> Iterator[Finding]:
    """Check a pair and yield the findings; call ``show_step`` with the name of each step."""
    if check.server is not None:
        yield from _check_server(check, check.server, show_step)
        return
    working = _working_dtype(check)
    strict = _fits_exactly(check, working)
    dtype = EXACT if strict else working
    show_step(f"loading the models in {dtype}")
    pair = _load(check, dtype)
    strict &= pair.is_exact
    yield from ends_finding(pair)
    prompts = read_prompts(check.plan, pair)
    contexts = [context for _, context in prompts]
    show_step("greedy decoding, sd against the target alone")
    settings = check.plan.settings
    cells = [cell for task in check.plan.tasks for cell in task.cells]
    drafters = [*dict.fromkeys(cell.drafter for cell in cells)]
    greedy = partial(
        check_greedy,
        contexts=contexts,
        draft_length=check.draft_length,
        limit=check.max_new_tokens,
        drafters=drafters,
    )
    yield from findings_or_crash("greedy", partial(greedy, pair, strict=strict))
    setup = Setup(
        pair,
        bind("sd", {}, pair),
        draft_length=check.draft_length,
        ends=after_rounds(check.draft_length),
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
    cases = list(_cases(check, setup, prompts))
    alpha = FALSE_ALARM / (TESTS * len(cases))
    for case in cases:
        show_step(f"sampling {case.subject}")
        compare = partial(check_rounds, case, alpha, exact=strict)
        yield from findings_or_crash(case.subject, compare)
    show_step("the target as its own draft")
    own_draft = partial(check_own_draft, setup, contexts, exact=strict)
    yield from findings_or_crash("own draft", lambda: [own_draft()])
    if dtype != working:
        del pair, setup, own_draft
        free_memory()
        show_step(f"loading the models in {working}")
        pair = _load(check, working)
        show_step(f"greedy decoding in {working}")
        yield from findings_or_crash("greedy", partial(greedy, pair, strict=False))
    show_step("timing")
    yield from findings_or_crash("time", lambda: [check_time(pair, contexts[0])])


def _check_server(check: Check, server: Server, show_step: ShowStep) -> Iterator[Finding]:
    """Check a server, whose dtype is that of the plan; by default it rounds like float32."""
    show_step("loading the models")
    pair, dtype = _load(check, EXACT), check.plan.loading.dtype
    contexts = [context for _, context in read_prompts(check.plan, pair)]
    yield from ends_finding(pair)
    server = server.learned(contexts[0].prompt)
    if refused := server.unset:
        log.warning(
            f"the server refuses {', '.join(refused)}, so its own values apply: {NEUTRAL_START}"
        )
    texts = TextsOfServer(
        pair,
        server.complete,
        check.draft_length,
        check.texts,
        check.temperatures,
        check.plan.settings.seed,
        TIE if dtype == AUTO else ROUNDING[getattr(torch, dtype)],
    )
    yield from check_server(texts, contexts, show_step)


def content_of(check: Check, findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """Return the check and its findings in plain values, for a JSON file."""
    of_server: dict[str, Any] = {"working_dtype": _working_dtype(check)}
    if check.server is not None:
        of_server = {"server": check.server.url, "temperature": [*check.temperatures]}
    return {
        "specbench": __version__,
        "check": {
            **check.plan.describe(),
            "draft_length": check.draft_length,
            "samples": check.texts,
            **of_server,
        },
        "seconds": seconds,
        "verdicts": Counter(finding.verdict for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """Yield one table of the sampled rounds and one of all other checks."""
    rounds = [finding for finding in findings if finding.part == LAW]
    if rounds:
        yield rounds_table(rounds)
    title = "Other checks" if rounds else "Checks"
    yield findings_table((f for f in findings if f.part != LAW), title)


def findings_or_crash(subject: str, compare: Callable[[], Sequence[Finding]]) -> Sequence[Finding]:
    """Return the findings of a comparison, or its crash, which only a fault of decoding causes."""
    try:
        return compare()
    except (AssertionError, LookupError, ValueError) as error:
        frame = extract_tb(error.__traceback__)[-1]
        line = f"{Path(frame.filename).name}, line {frame.lineno}"
        reason = f"decoding stopped with {type(error).__name__} ({error}) in {line}"
        return [Finding("crash", subject, "decoding", FAILED, reason)]


def ends_finding(pair: LoadedPair) -> Iterator[Finding]:
    """Yield a failure if no text of the target can end."""
    dummy = pair.facts.get("load_format") == DUMMY
    if not dummy and not any(token < pair.target.vocabulary for token in pair.eos_ids):
        ids = ", ".join(map(str, sorted(pair.eos_ids))) or "none"
        reason = (
            f"every text runs to its limit: the end tokens are {ids}, and the target has "
            f"{pair.target.vocabulary} tokens; correct eos_token_id in generation_config.json"
        )
        yield Finding("ends", pair.name, "end tokens", FAILED, reason)


def _cases(check: Check, setup: Setup, prompts: Sequence[Prompted]) -> Iterator[Case]:
    """Yield what to sample for each label: rounds with the draft model, and whole outputs."""
    pair = setup.pair
    contexts: dict[tuple[str, int], Context] = {}
    ends: dict[tuple[str, ...], Ends] = {}
    heads: dict[Path, Head] = {}
    cells: dict[str, list[tuple[Cell, Context]]] = {}
    for task, context in prompts:
        for cell in task.cells:
            cells.setdefault(method_label(cell.columns()), []).append((cell, context))

    def shortened(context: Context, part: int) -> Context:
        key = context.name, part
        if key not in contexts:
            tokens = context.prompt[: max(1, len(context.prompt) // part)]
            contexts[key] = informative(pair, Context(f"{context.name}/{part}", tokens))
        return contexts[key]

    def case(label: str, chosen: Sequence[tuple[Cell, Context]], row: Setup) -> Case:
        row = row._replace(texts=max(1, check.texts // len(chosen)))
        groups: dict[Cell, tuple[Setup, list[Context]]] = {}
        for cell, context in chosen:
            if cell not in groups:
                method = bind(cell.method, dict(cell.parameters), pair, heads)
                drafter = cell.drafter.kind.load(pair)
                groups[cell] = row._replace(method=method, drafter=drafter), []
            groups[cell][1].append(context)
        return Case(label, [*groups.values()])

    limit = check.draft_length + 3  # it cuts the second round
    for label, every in cells.items():
        if every[0][0].drafter == MODEL:
            few = every[: min(CONTEXTS, check.texts)]
            unsure = [(cell, shortened(context, 1)) for cell, context in few]
            for sampling in SAMPLINGS:
                yield case(label, unsure, setup._replace(sampling=sampling))
        parts = zip(cycle(every), SHORTENED, strict=False)
        short = [(cell, shortened(context, part)) for (cell, context), part in parts]
        names = tuple(context.name for _, context in short)
        if names not in ends:
            ends[names] = choose_ends(pair, [context for _, context in short], WHOLE, limit)
        yield case(label, short, setup._replace(sampling=WHOLE, ends=ends[names]))


def _fits_exactly(check: Check, working: str) -> bool:
    """Return whether the pair fits in memory in float32; it must fit in the dtype of runs."""
    sizes = largest(check.plan)
    check_memory(check.plan.pair, check.plan.loading.updated(dtype=working), *sizes)
    try:
        check_memory(check.plan.pair, check.plan.loading.updated(dtype=EXACT), *sizes)
    except UsageError as error:
        log.warning(
            f"{error}. The check uses {working} instead of {EXACT}, so greedy texts and "
            "probabilities are only reported"
        )
        return False
    return True


def _load(check: Check, dtype: str) -> LoadedPair:
    loading = check.plan.loading.updated(dtype=dtype)
    return Loader().load(replace(check.plan, loading=loading))


def _working_dtype(check: Check) -> str:
    device = choose_device(check.plan.loading.device)
    return str(choose_dtype(check.plan.pair, check.plan.loading, device)).removeprefix("torch.")


def read_prompts(plan: Plan, pair: LoadedPair) -> list[Prompted]:
    """Return every prompt with its task, alternating between the tasks."""
    prompts = EncodedPrompts(plan, pair)
    by_task = [
        [
            (task, Context(f"{task.task.name}/{example.id}", prompts.of(task, example).ids))
            for example in task.examples
        ]
        for task in plan.tasks
    ]
    return [prompt for row in zip_longest(*by_task) for prompt in row if prompt is not None]
