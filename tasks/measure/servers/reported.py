"""Compare what a rule inside vLLM reports of each judged draft with plain passes over its texts.

    python tasks/measure/servers/reported.py RUN --models FOLDER --head FOLDER [--texts 8]

RUN has arms named ``vllm-RULE``, and possibly cells of our own engine, which show how large errors
of rounding are. Both models of the pair read the texts again in one pass each, which gives the
acceptance probability and the weight of every judged position. The table has the mean of reported
minus computed with its 95 % interval over texts and the median size of a difference; as a control,
the median size if the numbers of the next position are taken.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from beside import ARM

from specbench.analysis.statistics.intervals import interval, ratio
from specbench.config import DRAFT_LENGTH
from specbench.decoding.heads.bind import BoundMethod, bind
from specbench.decoding.records import Generation, RoundRecord
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair, in_folder
from specbench.engine.prompts import encode
from specbench.experiment.measurements import recorded_rounds
from specbench.methods.method import HEAD
from specbench.methods.registry import METHODS
from specbench.runs.model import SampleRecord
from specbench.runs.run import read_run
from specbench.serving.vllm.rules import method_of
from specbench.validation.laws import laws_at
from specbench.validation.texts import Ends, Setup, tokens_of

RULES = {"static": "static:weight=0.5", "lossy": "lossy:lenience=0.5"}
NUMBERS = ("acceptance", "weight")


def main() -> None:
    """Print a row per arm, cell and number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--pair", default="qwen2.5-coder")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=8)
    options = parser.parse_args()
    run = read_run(options.run)
    pair = load_pair(in_folder(get_pair(options.pair), options.models), Loading(device="cpu"))
    (name,) = run.tasks
    sampling = run.settings.part(Sampling)
    texts: dict[str, list[SampleRecord]] = defaultdict(list)
    for record in run.records():
        rule = record.method.removeprefix(ARM)
        if rule in METHODS and record.per_round.expected:
            texts[record.method].append(record)
    rows = []
    for method, records in texts.items():
        rule = method.removeprefix(ARM)
        method_of_rule = bound(rule, options.head, pair)
        setup = Setup(pair, method_of_rule, sampling, draft_length=DRAFT_LENGTH)
        numbers = [
            of_text(setup, encode(pair.tokenizer, run.examples[name][r.sample_id].prompt).ids, r)
            for r in sorted(records, key=lambda record: record.place)[: options.texts]
        ]
        rows += [row for row in (described(method, numbers, i) for i in NUMBERS) if row]
        print(pd.DataFrame(rows).to_string(index=False, float_format="{:.5f}".format), flush=True)


def bound(rule: str, head: Path, pair: LoadedPair) -> BoundMethod:
    """Return a rule with its parameters, bound to a pair."""
    text = f"{rule}:head={head}" if HEAD in METHODS[rule].parameters else RULES.get(rule, rule)
    return bind(*method_of(text), pair)


def of_text(setup: Setup, prompt: list[int], record: SampleRecord) -> torch.Tensor:
    """Return reported and computed numbers of a text ``[2, 2, positions]``.

    The first two are acceptance probabilities, the others weights; NaN where there is none.
    """
    tokens = record.token_ids or []
    limit = len(tokens) + (record.stopped_by == "eos")
    ends = Ends(limit, setup.pair.tokenizer.eos_token_id if limit > len(tokens) else None)
    rounds = recorded_rounds(record.per_round)
    before = limit - sum(r.emitted for r in rounds)  # a server's first token has no draft
    rounds = [RoundRecord(0, 0, 1)] * before + rounds
    facts: dict[str, Any] = {
        field.name: getattr(record, field.name, None) for field in fields(Generation)
    }
    text = Generation(**facts | {"output_tokens": limit, "rounds": rounds})
    origin = tokens_of([text], prompt, ends, setup.propose)
    whole = [*prompt, *origin.tokens[0].tolist()]
    laws = laws_at(setup, [whole], origin.position, origin.proposed.flatten())
    assert laws.split is not None
    weight = torch.full_like(origin.weight, torch.nan) if laws.weight is None else laws.weight
    computed = laws.split.accepted.sum(-1), weight.flatten()
    reported = origin.expected[0], origin.weight[0]
    judged = origin.judged[0]
    pairs = zip(reported, computed, strict=True)
    return torch.stack([torch.stack([a.double(), b.double()])[:, judged] for a, b in pairs])


def described(arm: str, texts: list[torch.Tensor], number: str) -> dict[str, Any]:
    """Return the row of an arm's acceptance probabilities or weights, see ``of_text``."""
    sides = [text[NUMBERS.index(number)] for text in texts]
    differences = [(reported - computed).numpy() for reported, computed in sides]
    shifted = [(reported - computed.roll(1)).numpy() for reported, computed in sides]
    if np.isnan(np.concatenate(differences)).all():
        return {}
    sums = np.array([[d.sum(), len(d)] for d in differences])
    mean = interval(sums, ratio)
    return {
        "arm": arm,
        "number": number,
        "texts": len(texts),
        "judged": int(sums[:, 1].sum()),
        "mean": mean.value,
        "low": mean.low,
        "high": mean.high,
        "median size": float(np.median(np.abs(np.concatenate(differences)))),
        "next position": float(np.median(np.abs(np.concatenate(shifted)))),
    }


if __name__ == "__main__":
    main()
