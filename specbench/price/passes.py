"""Scoring texts: one teacher-forced pass of each model over prompts and texts of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.example import Example
from specbench.experiment.prompts import answers_before, recorded_prompt
from specbench.heads.files import describe_models
from specbench.methods.verdict import pick
from specbench.price.scores import COLUMNS, DIGITS, StoredScores, TextName
from specbench.proofs.passes import plain_pass
from specbench.runs.records import EXAMPLES
from specbench.runs.run import Run
from specbench.verification.plan import task_of

MOST_NUMBERS = 2**24  # of distributions that are compared at once


class Text(NamedTuple):
    """A text to score."""

    name: TextName
    prompt: Sequence[int]
    tokens: Sequence[int]  # with the end token


def texts_of(run: Run, pair: LoadedPair, records: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield the texts of a run's records, with their prompts as the run encoded them.

    Raises:
        UsageError: The examples are gone, or a prompt has another number of tokens now.
    """
    examples = {name: examples_of(run, name) for name in {record["task"] for record in records}}
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        cells.setdefault(f"{record['task']} {name_of(record).method}", []).append(record)
    for cell in cells.values():
        for record in cell:
            answers = answers_before(cell, record)
            example = examples[record["task"]][record["sample_id"]]
            prompt = recorded_prompt(run, pair, example, record, answers)
            yield Text(name_of(record), prompt, output_of(record, pair))


def examples_of(run: Run, task: str) -> Mapping[str, Example]:
    """Return a run's examples of a task by id: its own, or those of a bundled task.

    Raises:
        UsageError: The run does not store them, and the task is not bundled.
    """
    if (run.folder / EXAMPLES).is_file():
        return run.examples[task]
    described = run.tasks[task]
    examples = task_of(task, described, {}).examples(
        "test", described["examples"], run.settings.seed
    )
    return {example.id: example for example in examples}


def name_of(record: Mapping[str, Any]) -> TextName:
    """Return the name of a record's text."""
    cell = [record["method"], record["draft_length"] or "", record.get("drafter") or ""]
    return TextName(
        record["task"],
        record["sample_id"],
        " ".join(str(part) for part in cell if part),
        record["repeat"],
        record.get("turn"),
        record.get("category"),
    )


def output_of(record: Mapping[str, Any], pair: LoadedPair) -> list[int]:
    """Return the tokens of a record's text, with the end token if there was one."""
    tokens = list(record["token_ids"] or ())
    if record["stopped_by"] != "eos" or not pair.eos_ids:
        return tokens
    usual = pair.tokenizer.eos_token_id
    return [*tokens, usual if usual in pair.eos_ids else min(pair.eos_ids)]


def conditions(pair: LoadedPair, sampling: Sampling) -> dict[str, Any]:
    """Return what decides the scores of a text, in plain values."""
    return {"models": describe_models(pair), "sampling": sampling.model_dump()}


def score(
    pair: LoadedPair,
    texts: Iterable[Text],
    sampling: Sampling,
    into: StoredScores,
    show: Callable[[str], object] = lambda text: None,
) -> None:
    """Score the texts that are not scored yet; call ``show`` with the name of each."""
    for text in texts:
        show(f"scoring {text.name.task} {text.name.sample_id}")
        if text.name not in into:
            into.add(
                {
                    "name": text.name,
                    "prompt": list(text.prompt),
                    "tokens": list(text.tokens),
                    **scores_of(pair, text, sampling),
                }
            )
    into.finish()


@torch.inference_mode()
def scores_of(pair: LoadedPair, text: Text, sampling: Sampling) -> dict[str, list[float]]:
    """Return the columns of ``Scores`` for a text of at least one token."""
    size = len(text.tokens)
    if not size:
        return {name: [] for name in COLUMNS}
    models = (pair.target, pair.draft)
    read = [[*text.prompt, *text.tokens]]
    logits = [plain_pass(model, read, size).logits[0] for model in models]
    tokens = torch.tensor(text.tokens, device=logits[0].device)
    step = max(1, MOST_NUMBERS // logits[0].shape[-1])
    slices = zip(*(rows.split(step) for rows in (*logits, tokens)), strict=True)
    parts = [_compared(p, q, drawn, sampling) for p, q, drawn in slices]
    columns = {name: torch.cat([part[name] for part in parts]).tolist() for name in COLUMNS}
    return {name: [_rounded(value) for value in values] for name, values in columns.items()}


def _compared(
    logits_p: Tensor, logits_q: Tensor, tokens: Tensor, sampling: Sampling
) -> dict[str, Tensor]:
    """Return the columns for tokens ``[K]`` and the logits ``[K, V]`` that predict them."""
    columns: dict[str, Tensor] = {}
    laws = []
    for name, logits in (("p", logits_p), ("q", logits_q)):
        law, plain = sampling.distributions(logits)
        shown = plain if sampling.greedy else law
        token = pick(logits, tokens)[:, None]
        earlier = torch.arange(logits.shape[-1], device=logits.device) < tokens[:, None]
        ahead = (logits > token) | ((logits == token) & earlier)
        columns[name] = pick(law, tokens)
        columns[f"rank_{name}"] = 1 + ahead.sum(-1)
        columns[f"top_{name}"] = shown.amax(-1)
        columns[f"entropy_{name}"] = torch.special.entr(shown).sum(-1)
        laws.append(law)
    columns["tv"] = (laws[0] - laws[1]).abs().sum(-1) / 2
    return columns


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
