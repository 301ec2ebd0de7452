"""Running the training of a module that drafts: its folder, and what the finished module is worth.

During training the folder contains ``training.csv`` (a row per step) and ``checkpoint.pt``; at the
end the module's files and ``training.json`` replace the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from drafters.files import save_module
from drafters.training import DrafterTraining, Report
from specbench import __version__
from specbench.analysis.statistics.intervals import Interval, interval, paired_ratio, ratio
from specbench.decoding.drafters.registry import MODEL
from specbench.decoding.drafting import Drafter
from specbench.decoding.loop import DecodeOptions, Request, decode
from specbench.decoding.modules.loaded import LoadedModule
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.files import clear_errors, write_atomically
from specbench.methods.strict import sd
from specbench.runs.labels import LOG
from specbench.tasks.task import Task
from specbench.training.material import split_material
from specbench.training.recipe import CHECKPOINT

DESCRIPTION = "training.json"
DRAFT_LENGTH = 5  # N of the measurement
HELD_OUT = 64  # prompts of the measurement, over all tasks
WARM_UPS = 2  # texts before the measured ones


def carry_out(training: DrafterTraining, folder: Path, report: Report) -> dict[str, Any]:
    """Train a module, write it to its folder, and return its description in ``training.json``.

    The texts must have been sampled. ``report`` gets the number of each step and its figures.

    Raises:
        RunError: The folder cannot be written or the loss is not finite; the last checkpoint
            remains.
    """
    for step in training.steps(folder):
        shown = f"{step.acceptance:.3f} to {step.deepest:.3f}"
        report(step.step, f"loss {step.loss:.3f}, acceptance {shown}, {step.depths} depths")
    pair, config = training.pair, training.target.model.config
    verifier = {"name_or_path": pair.name, "architectures": config.architectures}
    save_module(training.module, folder, verifier, DRAFT_LENGTH)
    # What is measured is what the file has.
    module = training.module.bfloat16().to(training.target.dtype)
    drafter = LoadedModule(module, training.target)
    drafters: dict[str, Drafter] = {training.recipe.kind: drafter, str(MODEL): MODEL.kind}
    description = {
        "pair": pair.name,
        **training.identity,
        "texts": len(training.texts),
        "sampled_tokens": sum(len(text.tokens) - text.prompt for text in training.texts),
        "held_out": measure(pair, training.tasks, drafters, training.recipe.max_prompt_tokens),
        "versions": {"specbench": __version__, "torch": torch.__version__},
    }
    with clear_errors(folder):
        log = pd.DataFrame(training.history).round(4).to_csv(index=False, lineterminator="\n")
        write_atomically(folder / LOG, log)
        write_atomically(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return description


@torch.inference_mode()
def measure(
    pair: LoadedPair, tasks: Sequence[Task], drafters: Mapping[str, Drafter], most_prompt: int
) -> dict[str, Any]:
    """Decode held-out prompts with ``sd`` and each drafter in turn, at temperature 1.

    Returns:
        Tokens per round with intervals, acceptance by position and draft seconds per round of each
        drafter, and one sentence about the first beside the last.
    """
    texts: dict[str, list[Generation]] = {name: [] for name in drafters}
    count = -(-HELD_OUT // len(tasks))
    for task in tasks:
        prompts = split_material(pair, task, "held-out", count, 0, most_prompt).prompts
        options = DecodeOptions(Sampling(), DRAFT_LENGTH, task.max_new_tokens, stop=task.stop)
        for number, prompt in enumerate([*prompts[:WARM_UPS], *prompts]):
            for name, drafter in drafters.items():
                request = Request(prompt, f"held-out/{task.name}/{number}")
                chosen = DecodeOptions(**{**vars(options), "drafter": drafter})
                text = decode(pair, sd, request, chosen)
                if number >= WARM_UPS:
                    texts[name].append(text)
    sums = {
        name: np.array([_terms(text) for text in generations])
        for name, generations in texts.items()
    }
    first, *_, last = sums.values()
    tokens = {name: interval(terms[:, [0, 1]], ratio) for name, terms in sums.items()}
    seconds = interval(np.hstack([first[:, [2, 1]], last[:, [2, 1]]]), paired_ratio)
    ours, *_, theirs = tokens.values()
    return {
        "n": len(first),
        "draft_length": DRAFT_LENGTH,
        "temperature": 1.0,
        "drafters": {
            name: {
                "tokens_per_round": tokens[name][:3],
                "acceptance_by_position": _by_position(generations),
                "draft_seconds_per_round": float(sums[name][:, 2].sum() / sums[name][:, 1].sum()),
            }
            for name, generations in texts.items()
        },
        "draft_time": seconds[:3],
        "sentence": (
            f"{_shown(ours)} tokens per round at {_shown(seconds)} of the draft model's draft "
            f"time, with which there are {_shown(theirs)} (N = {DRAFT_LENGTH}, T = 1, "
            f"n = {len(first)} held-out prompts)"
        ),
    }


def _shown(figure: Interval) -> str:
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def _terms(text: Generation) -> list[float]:
    """Return tokens, rounds and draft seconds of a text."""
    return [sum(r.emitted for r in text.rounds), len(text.rounds), text.draft_seconds]


def _by_position(texts: Sequence[Generation]) -> list[float | None]:
    """Return the share of accepted drafts by position, among the rounds that reach it."""
    rounds = [record for text in texts for record in text.rounds]
    shares: list[float | None] = []
    for position in range(DRAFT_LENGTH):
        reached = [r for r in rounds if r.accepted >= position and r.proposed > position]
        accepted = sum(r.accepted > position for r in reached)
        shares.append(round(accepted / len(reached), 4) if reached else None)
    return shares
