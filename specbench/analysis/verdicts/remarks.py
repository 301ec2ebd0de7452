"""Remarks on a run: what a person would notice, each by one small function.

A function receives the cells of one run and the run, and yields sentences. ``DOUBTS`` say that
figures do not mean what they seem to, so the page ``summary.md`` has them too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from statistics import median

import pandas as pd

from specbench.analysis.statistics.estimates import AT_LIMIT, QUALITY, ZERO_P
from specbench.analysis.statistics.summary import prompt_counts
from specbench.analysis.tables.shown import span
from specbench.analysis.tables.table import number, percent
from specbench.analysis.verdicts.arm_remarks import CONTENT_WORDS
from specbench.errors import UsageError, shown
from specbench.runs.configuration import GreedyFacts
from specbench.runs.model import ERROR
from specbench.runs.records import prompts_of
from specbench.runs.run import COMPLETE, Run

NEARLY_ALL, SOME = 0.95, 0.02  # of answers
SEVERAL = 5  # prompts from which scores of 0 are no accident
GIB = 2**30
_ADDRESS = re.compile(r"^https?://\S+ ")  # at which a request failed

Remark = Callable[[pd.DataFrame, Run], Iterable[str]]


def same_prompts(cells: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say how many examples have the prompt of an earlier one."""
    repeated = Counter(task for task, _ in prompts_of(*run.folders))
    for task in cells["task"].unique():
        if count := repeated[task]:
            plural = "s repeat" if count > 1 else " repeats"
            yield (
                f"{task}: {count} example{plural} the prompt of another one; they count as one "
                "prompt in every interval"
            )


def cut_answers(cells: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say which answers were nearly all cut by the limit."""
    for task, judged in _scored_by_task(cells):
        limit = run.task(task).max_new_tokens
        at = f" at {limit} tokens" if limit else ""
        cut = judged[judged[AT_LIMIT] >= NEARLY_ALL]
        if len(cut):
            least = cut[AT_LIMIT].min()
            share = "all" if least == 1 else f"{percent(least, '.0f')} or more of"
            whose = "" if len(cut) == len(judged) else f" of {_named(cut)}"
            yield (
                f"{task}: quality{whose} cannot be judged: {share} answers were cut{at}; raise "
                "--max-new-tokens"
            )


def some_cut_answers(cells: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say what share of all answers was cut by the limit, if it is not nearly all."""
    for task, judged in _scored_by_task(cells):
        share, limit = judged[AT_LIMIT].mean(), run.task(task).max_new_tokens
        if share > SOME and (judged[AT_LIMIT] < NEARLY_ALL).all():
            at = f" at {limit} tokens" if limit else ""
            named = percent(share, ".0f")
            yield f"{task}: {named} of the answers were cut{at}: see --max-new-tokens"


def zero_scores(cells: pd.DataFrame, _: Run) -> Iterator[str]:
    """Say where no answer of any method has a score above 0."""
    for task, judged in _scored_by_task(cells):
        is_cut = (judged[AT_LIMIT] >= NEARLY_ALL).all()  # which is said already
        enough = judged[f"{QUALITY}_n"].max() >= SEVERAL
        if enough and not is_cut and (judged[QUALITY] == 0).all():
            yield (
                f"{task}: every answer of every method scored 0, so no difference can show: check "
                "the prompts, the references and the metric"
            )


def failed_prompts(cells: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say how many prompts of a finished run are in no figure."""
    progress = run.progress
    ended = progress is not None and progress.state == COMPLETE and progress.failed > 0
    for task, of_task in cells.groupby("task", sort=False) if ended else ():
        repeated = sum(name == task for name, _ in prompts_of(*run.folders))
        planned, n = run.task(str(task)).examples - repeated, prompt_counts(of_task)
        if (missing := planned - n[n < planned]).any():
            methods = _named(of_task.loc[missing.index])
            yield (
                f"{task}: {span(missing)} of {planned} prompts of {methods} "
                f"failed, and no figure contains them{_reasons(run, str(task))}: see their status "
                "in samples.jsonl"
            )


def _reasons(run: Run, task: str) -> str:
    """Return the most frequent reason of failures of each method in parentheses, if recorded."""
    reasons: dict[str, Counter[str]] = {}
    with suppress(UsageError):  # a run without its records
        for record in run.records():
            if record.status == ERROR and record.task == task:
                error = _ADDRESS.sub("", record.error or "")
                reason = error.rpartition(": ")[0] or error  # without what to do
                reasons.setdefault(record.method, Counter())[shown(reason)] += 1
    by_method = [
        f"{method} {number} times: {reason}"
        for method, counts in reasons.items()
        for reason, number in counts.most_common(1)
    ]
    return f" ({'; '.join(by_method)})" if by_method else ""


def without_text(_: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say how many answers of servers have no text to score, and what they have instead."""
    counts: Counter[tuple[str, str]] = Counter()
    contents: Counter[tuple[str, str, str]] = Counter()
    with suppress(UsageError):  # a run without its records
        for record in run.records() if run.servers else ():
            arm = (record.task, record.method)
            counts[arm] += record.status != ERROR
            contents[(*arm, record.content or "")] += 1
    for (task, method, content), count in contents.items():
        if words := CONTENT_WORDS.get(content):
            yield f"{task}: {count} of {counts[task, method]} answers of {method} {words}"


def plain_prompts(_: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say that prompts for a chat model were sent to one without a template."""
    formats = run.environment.prompt_formats
    for task, form in () if not formats or run.pair_with().bundled else formats.items():
        if form != (run.task(task).prompt_format or form):
            yield f"{shown(task)}: prompts are plain text, since the target has no chat template"


def greedy_texts(_: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say how many greedy texts equal those without speculation, and why others do not."""
    methods: dict[tuple[str, str], list[str]] = {}
    for cell in run.environment.greedy_texts:
        methods.setdefault((cell.task, _equality(cell)), []).append(cell.method)
    for (task, equality), names in methods.items():
        yield f"{task}: greedy texts of {', '.join(names)} equal {equality}"


def _equality(cell: GreedyFacts) -> str:
    """Say with what the greedy texts of a cell are equal, and what explains the others."""
    if cell.equal == cell.texts:
        return f"those of {cell.alone} on all {cell.texts} prompts"
    sentence = f"those of {cell.alone} on {cell.equal} of {cell.texts} prompts"
    if not cell.margins:
        return sentence
    forks, beyond = cell.forks, cell.beyond
    sentence += (
        "; where they first differ, the two likeliest tokens are "
        f"{number(median(cell.margins), '.2g')} apart in probability (median), "
    )
    if not beyond:
        explains = "explains" if cell.lossless else "or the rule may explain"
        return f"{sentence}which rounding {explains}"
    more = f"{beyond} of {forks} first differences are more than rounding explains"
    if cell.lossless:
        return f"{sentence}but {more}: find the fault with `specbench check`"
    if cell.lossless is None:  # of a server
        return f"{sentence}and {more}: by a lossy rule, or a fault (`specbench check --server URL`)"
    return f"{sentence}and {more}, since {cell.method} may change greedy texts"


def zero_p_tokens(cells: pd.DataFrame, _: Run) -> Iterator[str]:
    """Say how many tokens of each method the target would never emit, if there are any."""
    share = f"{ZERO_P}_share"
    for task, of_task in cells.groupby("task", sort=False) if share in cells else ():
        shares = zip(of_task["label"], of_task[share], strict=True)
        named = [f"{percent(value, '.2g')} of {label}'s" for label, value in shares if value > 0]
        if named:
            yield f"{task}: tokens that the target would never emit (p = 0): {', '.join(named)}"


DOUBTS: tuple[Remark, ...] = (
    *(cut_answers, zero_scores, failed_prompts, without_text, plain_prompts, greedy_texts),
)
REMARKS: tuple[Remark, ...] = (*DOUBTS, same_prompts, some_cut_answers, zero_p_tokens)


def remarks(
    cells: pd.DataFrame, runs: Mapping[str, Run], functions: Iterable[Remark] = REMARKS
) -> list[str]:
    """Return the remarks on the cells of runs, which are named by their ``run_id``."""
    return [
        f"{run_id}: {sentence}" if len(runs) > 1 else sentence
        for run_id, of_run in cells.groupby("run_id", sort=False)
        if run_id in runs  # a table may name any
        for function in functions
        for sentence in function(of_run, runs[str(run_id)])
    ]


def measured_on(run: Run) -> str:
    """Return the machine, the weights and the library of a run, as far as they are recorded."""
    environment = run.environment
    models, packages = environment.models, environment.packages
    if not isinstance(models.get("device"), str):
        return ""
    gpus = environment.torch.gpus
    if files := environment.weights:
        sizes = {role: file.get("bytes") for role, file in files.items()}
        weights = ", ".join(
            f"{role} {files[role].get('type')}"
            + (f" of {size / GIB:.2f} GiB" if isinstance(size, int) else "")
            for role, size in sizes.items()
        )
        library = f"llama.cpp (xllamacpp {packages.get('xllamacpp')})"
    else:
        weights = str(models.get("quantization") or models.get("dtype"))
        library = f"PyTorch {packages.get('torch')}"
    machine = (gpus[0].name if gpus else None) or environment.cpu.model
    count = environment.torch.threads
    of_threads = f", {count} thread{'s' * (count != 1)}"
    threads = "" if gpus or not isinstance(count, int) else of_threads
    return f"Measured on {shown(str(machine))}{threads}: {shown(str(weights))}, {shown(library)}."


def _scored_by_task(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the cells of each task that have a quality."""
    for task, of_task in cells[cells[f"{QUALITY}_n"] > 0].groupby("task", sort=False):
        yield str(task), of_task


def _named(cells: pd.DataFrame) -> str:
    first, *further = cells["label"].unique()
    return f"{first} and {len(further)} others" if further[1:] else " and ".join([first, *further])
