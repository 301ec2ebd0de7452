"""The columns of a sample's record that come from its generation and its scores, by turns."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest
from statistics import fmean
from typing import Any

from specbench.decoding.records import Generation, RoundRecord
from specbench.errors import RunError, SpecbenchError, mask_tokens, shown
from specbench.experiment.plan import SampleIndex, Step
from specbench.plugins import short_name
from specbench.runs.columns import BLEU_TERMS
from specbench.runs.model import OK, UNSCORED, RecordedRounds, SampleRecord
from specbench.tasks.example import Example
from specbench.tasks.metrics import BLEU, get_metric, score
from specbench.tasks.thoughts import answer_in, begins_thoughts, doubtful_mark, end_of, family_of

_TAKEN = (
    *("prompt_tokens", "output_tokens", "prefill_seconds", "decode_seconds", "draft_seconds"),
    *("verify_seconds", "accept_seconds", "latency_seconds", "stopped_by", "text", "token_ids"),
)
_UNTIMED = ("token_ids", "per_round")
_PIECE = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|\w{1,8}|[^\w\s]")
SampleResult = tuple[Step, SampleRecord]
# The texts of a conversation's turns so far, None if a turn failed, by the index of its step.
Answers = defaultdict[SampleIndex, list[str | None]]


def columns_of(generation: Generation, drafts: bool) -> dict[str, Any]:
    """Return a generation's fields of the record; None where a quantity does not apply.

    ``drafts`` tells whether the method drafts; with prompt lookup, a text may have no draft.
    """
    rounds = generation.rounds
    proposed = sum(r.proposed for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    emitted = sum(r.emitted for r in rounds)
    seconds = generation.prefill_seconds + generation.decode_seconds
    return {
        "rounds": len(rounds),
        "proposed": proposed,
        "accepted": accepted if drafts else None,
        "judged": sum(len(r.expected) for r in rounds) if drafts else None,
        "draft_acceptance_rate": accepted / proposed if proposed else None,
        "acceptance_length": emitted / len(rounds) if drafts else None,
        "tokens_per_second": generation.output_tokens / seconds if seconds else None,
        "repetition": repetition(generation.token_ids),
        **{name: getattr(generation, name) for name in _TAKEN},
        **columns_of_rounds(rounds),
    }


def columns_of_rounds(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the columns that are about single positions; None without values."""
    return {
        "expected_acceptance": _mean([value for r in rounds for value in r.expected]),
        "mean_weight": _mean([value for r in rounds for value in r.weights]),
        "zero_p": sum(r.zero_p for r in rounds) or None,
        "per_round": {
            name: [
                [round(v, 4) if isinstance(v, float) else v for v in value]
                if isinstance(value, tuple)  # flags and probabilities of the round
                else value
                for value in (getattr(r, name) for r in rounds)
            ]
            for name in RecordedRounds.model_fields
        },
    }


def recorded_rounds(per_round: RecordedRounds) -> list[RoundRecord]:
    """Return the rounds whose columns ``columns_of_rounds`` returned."""
    names = [f.name for f in fields(RoundRecord) if getattr(per_round, f.name, None) is not None]
    values = zip(*(getattr(per_round, name) for name in names), strict=False)
    return [RoundRecord(**dict(zip(names, row, strict=True))) for row in values]


def times_of(generation: Generation, drafts: bool) -> dict[str, Any]:
    """Return the columns of a sample that is decoded again for its times, without rounds."""
    columns = columns_of(generation, drafts)
    timed = {name: value for name, value in columns.items() if name not in _UNTIMED}
    return {**timed, "quality": None, "scores": {}, "status": OK}


def score_text(
    metrics: Sequence[str], record: SampleRecord, example: Example, *, may_execute: bool
) -> dict[str, Any]:
    """Return the fields of a sample's record that come from scoring its text.

    The first metric is the quality. Metrics that execute generated code need ``may_execute``.
    Thoughts before an answer are not scored. A score is None if the example lacks the reference,
    the metric failed, which makes the status ``unscored``, or code may not be executed.
    """
    scores: dict[str, float | None] = dict.fromkeys(map(short_name, metrics))
    fields: dict[str, Any] = {}
    errors: list[str] = []
    text = answer_in(str(record.text), begun=record.thought_tokens is not None)
    for name in metrics:
        metric = get_metric(name)
        if not metric.suits(example) or (metric.executes and not may_execute):
            continue
        try:
            scores[short_name(name)] = score(name, text, example)
            if name == BLEU:
                from specbench.tasks.metrics.overlap import bleu_terms

                fields[BLEU_TERMS] = bleu_terms(text, example)
        except Exception as error:
            errors.append(describe_error(error))
    fields |= {"quality": next(iter(scores.values()), None), "scores": scores}
    if not errors:
        return {**fields, "status": OK}
    return {**fields, "status": UNSCORED, "error": "; ".join(dict.fromkeys(errors))}


def thought_tokens(
    tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], output_tokens: int
) -> int | None:
    """Return the number of tokens up to the end of the thoughts, None without thoughts.

    The prompt may have begun the thoughts, as the templates of some models do. ``output_tokens``
    counts the end token too, which thoughts without an end include.
    """
    text = tokenizer.decode(tokens)
    if (end := end_of(text)) is not None:
        sizes = range(len(tokens) + 1)
        return bisect_left(sizes, end, key=lambda k: len(tokenizer.decode(tokens[:k])))
    begun = family_of(text) is not None or begins_thoughts(tokenizer, prompt)
    return output_tokens if begun else None


def doubtful_thoughts(records: Iterable[SampleRecord]) -> list[str]:
    """Say how many texts of each method begin with marks of thoughts that do not end or are new."""
    marked = [(record.method, doubtful_mark(record.text or "")) for record in records]
    texts = Counter(method for method, _ in marked)
    return [
        f"{count} of {texts[method]} texts of {method} begin with {shown(mark[0])}, "
        + (
            "thoughts that do not end, which score as empty answers: raise --max-new-tokens"
            if mark[1]
            else "which is no mark of thoughts that specbench knows, so all of a text is scored: "
            "remove it, for example with the server's reasoning parser"
        )
        for (method, mark), count in Counter(marked).items()
        if mark
    ]


def repetition(tokens: Sequence[int] | str) -> float | None:
    """Return the share of 4-grams that repeat an earlier one, None below 4 tokens.

    Words of up to 8 letters and signs stand for the tokens of a text; a letter of a script without
    spaces between words is a part of its own.

    Source: seq-rep-4 of Welleck et al. 2020, arXiv:1908.04319.
    """
    token_ids = _PIECE.findall(tokens) if isinstance(tokens, str) else tokens
    grams = list(zip(*(token_ids[start:] for start in range(4)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else None


def describe_error(error: Exception) -> str:
    """Return the error message for a record."""
    kind = "" if isinstance(error, SpecbenchError) else f"{type(error).__name__}: "
    return mask_tokens(f"{kind}{error}")


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def by_turns(
    steps: Sequence[Step], decode: Callable[[Sequence[Step], Answers], Iterator[SampleResult]]
) -> Iterator[SampleResult]:
    """Decode the first turn of all steps together, then the second ones, and so on.

    ``decode`` gets steps of one turn each, with the answers to the turns before.
    """
    answers: Answers = defaultdict(list)
    for turn in zip_longest(*(step.turns for step in steps)):
        for step, result in decode([step for step in turn if step is not None], answers):
            answers[step.place].append(result.text)
            yield step, result


def earlier_answers(step: Step, answers: Answers) -> list[str]:
    """Return the answers to the turns before a step."""
    texts = [text for text in answers[step.place] if text is not None]
    if len(texts) < len(answers[step.place]):
        raise RunError("an earlier turn of the conversation could not be decoded")
    return texts
