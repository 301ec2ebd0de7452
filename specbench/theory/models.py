"""What only the models of a run can tell: their bytes, and where its rules lie off the front.

A rule's bias and front gap are measured where its own texts went: two plain forward passes over a
text give p and q at every token of it, and the closed form of the rule's law gives the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.analysis.frames import CELL, PARAMETERS
from specbench.analysis.intervals import ratio_interval
from specbench.check.rounds import laws_at
from specbench.check.texts import Context, Rule
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair, load_pair
from specbench.engine.memory import decoding_needs
from specbench.engine.prompts import encode
from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.examples import read_examples
from specbench.experiment.records import TRACED, latest_records
from specbench.heads.files import load_head
from specbench.heads.registry import find_head
from specbench.methods.laws import LAWS
from specbench.methods.registry import get_method
from specbench.pairs.registry import PairSpec
from specbench.theory.formulas import front_gap, total_variation
from specbench.theory.table import BIAS, COLUMNS, GAP, UNITS
from specbench.trace.tokenizer import read_config, run_pair

#: Methods that are on the front at any temperature above 0: their front gap is 0 in theory.
ON_FRONT = frozenset({"sd", "block", "lossy", "static", "diversed", "mentored"})

Record = Mapping[str, Any]


def bytes_ratio(folder: Path) -> float:
    """Return the bytes of the draft's parameters over those of the target's, of a run's pair.

    Raises:
        UsageError: The configuration of a model cannot be had.
    """
    config = read_config(folder)
    needs = decoding_needs(run_pair(config, folder), _loading(config), 1, 1, 1)
    return needs["draft"].weights / needs["target"].weights


def front_gaps(folder: Path, texts: int) -> pd.DataFrame:
    """Measure each rule's bias TV(pi, p) and front gap at the tokens of its own texts.

    Args:
        folder: A run; its pair is loaded.
        texts: Texts of each method and task.

    Returns:
        Columns ``theory.table.COLUMNS``, two rows for each cell; means over tokens. Methods whose
        law has no closed form are left out.

    Raises:
        UsageError: The run is greedy, or its models or examples cannot be had.
    """
    run = _open(folder)
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in latest_records(folder, TRACED.union(CELL)):
        known = record["method"] in LAWS and record["draft_length"] and "per_round" in record
        if known and not record["repeat"] and record["token_ids"]:
            cell = tuple(record[name] for name in CELL)
            cells.setdefault(cell, []).append(record)
    rows = [row for cell, found in cells.items() for row in _rows(run, cell, found[:texts])]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"draft_length": "int64"})


@dataclass(frozen=True)
class _Run:
    """A run with its models."""

    folder: Path
    spec: PairSpec
    pair: LoadedPair
    settings: Mapping[str, Any]
    formats: Mapping[str, str]  # of the prompts of each task
    examples: Mapping[str, Mapping[str, Example]]

    @property
    def sampling(self) -> Sampling:
        return Sampling(*(self.settings[name] for name in ("temperature", "top_k", "top_p")))

    def prompt(self, record: Record) -> list[int]:
        """The tokens of a record's prompt, as many as it says.

        Raises:
            UsageError: They are others now.
        """
        example = self.examples[record["task"]][record["sample_id"]]
        ids = encode(
            self.pair.tokenizer,
            example.prompt,
            passage=example.passage,
            prompt_format=self.settings["prompt_format"] or self.formats[record["task"]],
            limit=self.settings["max_prompt_tokens"],
            thinking=self.pair.thinking,
        ).ids
        if len(ids) != record["prompt_tokens"]:
            raise UsageError(
                f"the prompt of {record['sample_id']} has {len(ids)} tokens now and had "
                f"{record['prompt_tokens']}: run again"
            )
        return ids


def _open(folder: Path) -> _Run:
    config = read_config(folder)
    settings = config["settings"]
    if not settings["temperature"]:
        raise UsageError(f"{folder} is greedy, and front gaps are of sampled texts: run above T=0")
    spec = run_pair(config, folder)
    formats = {task["name"]: task["prompt_format"] for task in config["tasks"]}
    examples = read_examples(folder)
    pair = load_pair(spec, _loading(config))
    return _Run(folder, spec, pair, settings, formats, examples)


def _loading(config: Mapping[str, Any]) -> Loading:
    known = {field.name for field in fields(Loading)}
    asked = {name: value for name, value in config.get("loading", {}).items() if name in known}
    return replace(Loading(), **asked)


def _rows(run: _Run, cell: tuple[Any, ...], records: Sequence[Record]) -> Iterator[tuple[Any, ...]]:
    """The bias and the front gap of one cell."""
    rule = _rule(run, dict(zip(CELL, cell, strict=True)))
    sums = np.array([_sums(run, rule, record) for record in records])
    prompts = [record["sample_id"] for record in records]
    nothing = (np.nan,) * 3
    for at, metric in enumerate((BIAS, GAP)):
        value, low, high, n = ratio_interval(sums[:, at], sums[:, -1], prompts)
        predicted = (0.0,) * 3 if metric == GAP and rule.method in ON_FRONT else nothing
        difference = tuple(np.subtract((value, low, high), predicted).tolist())
        measured = (value, low, high)
        yield (*cell, metric, *predicted, *measured, *difference, n, UNITS[metric])


@torch.inference_mode()
def _sums(run: _Run, rule: Rule, record: Record) -> tuple[float, float, int]:
    """Sums of bias and front gap over the tokens of a text, and how many tokens there are."""
    context = Context(record["sample_id"], run.prompt(record))
    tokens = torch.tensor([record["token_ids"]])
    laws = laws_at(run.pair, context, rule, run.sampling, tokens)
    p, q, kept, replaced = (
        rows.cpu().numpy() for rows in (laws.at.p, laws.at.q, laws.kept, laws.replaced)
    )
    law = kept + replaced
    gaps = front_gap(p, q, law, kept.sum(axis=-1))
    return float(total_variation(law, p).sum()), float(gaps.sum()), len(gaps)


def _rule(run: _Run, cell: Mapping[str, Any]) -> Rule:
    given = {name: cell[name] for name in PARAMETERS if cell[name] is not None}
    head = None
    if "head" in given:
        head = load_head(find_head(run.spec, cell["task"], given["head"]).path, run.pair)
    method = get_method(cell["method"])
    # What controls the number of drafts changes no law.
    return Rule(method.name, method.load(), {} if method.control else given, head)
