"""Scoring texts: one teacher-forced pass of each model over prompts and texts of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafting import context_of
from specbench.decoding.heads.head import describe_models
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.engine.passes import plain_pass
from specbench.engine.prompts import encode_prompt
from specbench.errors import UsageError
from specbench.experiment.progress import Steps
from specbench.files import make_folder, stored
from specbench.methods.verdict import entropy_of, pick
from specbench.plugins import content_digest
from specbench.pricing import scores
from specbench.runs.model import SampleRecord
from specbench.runs.records import EXAMPLES
from specbench.runs.run import Run
from specbench.tasks.example import PLAIN, Example
from specbench.tasks.task import local_task

MOST_NUMBERS = 2**24  # of distributions that are compared at once
SAVED_EVERY = 60  # seconds, since a process that is ended from outside keeps only what is saved


@dataclass(frozen=True)
class PairScores:
    """Scores by the models of a pair."""

    pair: LoadedPair
    sampling: Sampling
    drafter: DrafterKind = ModelDrafter()  # noqa: RUF009 (frozen)
    depths: int = 1  # of its rounds, if it has weights of its own

    @property
    def conditions(self) -> dict[str, Any]:
        """What decides the scores beside a text."""
        models = {"models": describe_models(self.pair), "sampling": self.sampling.model_dump()}
        if not (weights := self.drafter.fingerprint()):
            return models
        return {**models, "head": weights, "depths": self.depths}

    @torch.inference_mode()
    def __call__(self, text: scores.ScoredText) -> dict[str, list[Any]]:
        """Return the columns of ``Scores`` for a text."""
        size, prompt = len(text.tokens), len(text.prompt)
        if not size:
            return {name: [] for name in scores.COLUMNS}
        read = [*text.prompt, *text.tokens]
        p = self.pair.library.reread(self.pair.target, read, size)
        p = plain_pass(self.pair.target, [read], size).logits[0] if p is None else p
        tokens = torch.tensor(text.tokens, device=p.device)
        context = context_of(self.drafter, self.pair)
        # How many tokens, the first ones, follow a text that the drafter can read.
        drafted = size if context is None else min(size, max(0, context + 1 - prompt))
        depths = min(self.depths, size)
        parts = [
            _compared(p[depth:], q[: size - depth], tokens[depth:], self.sampling)
            for depth, q in enumerate(self.drafter.along(self.pair, read, size, depths))
        ]
        for depth, part in enumerate(parts):
            part["q"][max(0, drafted - depth) :], part["tv"][max(0, drafted - depth) :] = 0, 1
        columns: dict[str, list[Any]] = {}
        for name, column in parts[0].items():  # [T]
            differs_by_depth = self.drafter.has_weights and name not in scores.OF_TARGET
            if differs_by_depth:
                column = pad_sequence([part[name] for part in parts])  # [T, D], zeros behind texts
                column = pad(column, (0, self.depths - depths))
            columns[name] = _rounded(column.tolist())
        return columns


def texts_of(
    run: Run, pair: LoadedPair, records: Sequence[SampleRecord]
) -> Iterator[scores.ScoredText]:
    """Yield the texts of a run's records, with their prompts as the run encoded them."""
    for cell in scores.cells_of(records):
        task = cell[0].task
        if stored(run.folder / EXAMPLES).is_file():
            examples = run.examples[task]
        else:  # of a bundled task
            described, settings = run.tasks[task], run.settings
            definition = local_task(task, described.data.get("shots"))
            chosen = definition.of_shard(settings.shard_slice, described.examples, settings.seed)
            examples = {example.id: example for example in chosen}
        for record in cell:
            earlier = [
                str(r.text)
                for r in cell
                if (r.sample_id, r.repeat) == (record.sample_id, record.repeat)
                and (r.turn or 1) < (record.turn or 1)
            ]
            prompt = recorded_prompt(run, pair, examples[record.sample_id], record, earlier)
            tokens = [*(record.token_ids or ())]
            if record.stopped_by == "eos" and pair.eos_ids:
                usual = pair.tokenizer.eos_token_id
                tokens.append(usual if usual in pair.eos_ids else min(pair.eos_ids))
            yield scores.ScoredText(scores.name_of(record), prompt, tokens)


def recorded_prompt(
    run: Run, pair: LoadedPair, example: Example, record: SampleRecord, answers: Sequence[str]
) -> list[int]:
    """Return the tokens of the prompt of a run's record, after the answers to earlier turns."""
    settings = run.settings
    ids = encode_prompt(
        pair.tokenizer,
        example,
        settings.prompt_format or run.tasks[record.task].prompt_format or PLAIN,
        # A prompt that was cut has its recorded length.
        record.prompt_tokens if record.prompt_cut else settings.max_prompt_tokens,
        answers=answers,
        thinking=pair.thinking,
    ).ids
    if len(ids) != record.prompt_tokens:
        counts = f"{len(ids)} tokens now and had {record.prompt_tokens}"
        raise UsageError(f"the prompt of {record.sample_id} has {counts}: run again")
    return ids


def score_by_task(
    source: PairScores,
    texts: Callable[[LoadedPair], Iterable[scores.ScoredText]],
    drafters: Sequence[DrafterKind],
    depths: int,
    folder: Path,
    show: Steps,
) -> dict[str, scores.Scores]:
    """Return the scores of texts by task, also under the modules that draft.

    ``texts`` encodes them, given the pair; those whose scores are in the folder are not scored
    again. ``depths`` are the most drafts of a round, for modules that draft.
    """
    show("reading the texts")
    encoded = [*texts(source.pair)]
    show.expect(len(encoded))
    by_task = score_texts(source, encoded, folder, show)
    for module in filter(lambda drafter: drafter.has_weights, drafters):
        drafted = replace(source, drafter=module.load(source.pair), depths=depths)
        show.expect(len(encoded))
        of_module = score_texts(drafted, encoded, folder, show)
        for task, base in by_task.items():
            by_task[task] = replace(base, modules={**base.modules, module: of_module[task]})
    return by_task


def score_texts(
    source: PairScores,
    texts: Iterable[scores.ScoredText],
    folder: Path,
    show: Callable[[str], object],
) -> dict[str, scores.Scores]:
    """Score texts unless the folder has their scores; return the scores by task."""
    conditions = source.conditions
    make_folder(folder)
    scored, is_new, saved = scores.read_scores(folder / scores.SCORES), False, monotonic()
    by_task: dict[str, dict[scores.TextName, scores.Record]] = {}
    try:
        for text in texts:
            show(f"scoring {text.name.task} {text.name.sample_id}")
            decisive = json.dumps([conditions, text.prompt, text.tokens])
            key = content_digest(decisive.encode())
            if not scores.is_scored(scored.get(key), len(text.tokens), conditions.get("depths", 0)):
                scored[key], is_new = {"key": key, **source(text)}, True
            scored[key] |= text._asdict()
            by_task.setdefault(text.name.task, {})[text.name] = scored[key]
            if is_new and monotonic() - saved >= SAVED_EVERY:
                scores.write_scores(folder / scores.SCORES, scored)
                is_new, saved = False, monotonic()
    finally:  # an interrupted pass goes on where it stopped
        if is_new:
            scores.write_scores(folder / scores.SCORES, scored)
    temperature = source.sampling.temperature
    return {task: scores.joined(records, temperature) for task, records in by_task.items()}


def _compared(p: Tensor, q: Tensor, tokens: Tensor, sampling: Sampling) -> dict[str, Tensor]:
    """Return the columns for tokens ``[K]`` and the logits ``[K, V]`` that predict them."""
    step = max(1, MOST_NUMBERS // p.shape[-1])
    slices = zip(p.split(step), q.split(step), tokens.split(step), strict=True)
    parts = [_compared_at_once(*rows, sampling) for rows in slices]
    return {name: torch.cat([part[name] for part in parts]) for name in scores.COLUMNS}


def _compared_at_once(
    logits_p: Tensor, logits_q: Tensor, tokens: Tensor, sampling: Sampling
) -> dict[str, Tensor]:
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
        columns[f"entropy_{name}"] = entropy_of(shown)
        laws.append(law)
    columns["tv"] = (laws[0] - laws[1]).abs_().sum(-1) / 2
    return columns


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value if isinstance(value, int) else float(f"{value:.{scores.DIGITS}g}")
