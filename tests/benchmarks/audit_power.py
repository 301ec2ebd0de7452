"""Simulate how often an audit finds another temperature or a filter, on the pair `mini`.

    python tests/benchmarks/audit_power.py [--texts 2048] [--repeats 20] [--honest 400]

The first tokens after the cut prompts of the default tasks are drawn from the target's own laws, as
many as an audit decodes by default. An audit has more draws, so it finds no less.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

from specbench.config import Loading, Settings
from specbench.engine.pair import LoadedPair
from specbench.experiment.plan import build_plan
from specbench.experiment.runner import Loader
from specbench.experiment.variants import method_variants
from specbench.pairs.registry import get_pair
from specbench.proofs.audit import COUNTED, FALSE_ALARM, SAMPLER, STREAMS, cut_prompt
from specbench.proofs.check import read_prompts
from specbench.proofs.distortions import TOP_K, TOP_P, FilteredTails, TemperatureScore, least_kept
from specbench.proofs.ends import EndedLaws
from specbench.tasks.task import default_task_names, load_task

TEMPERATURES = (1.0, 0.7)
Audit = tuple[TemperatureScore, FilteredTails]


def main() -> None:
    """Print, for each temperature and fault, in how many audits it was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for option, default in (("--texts", 2048), ("--repeats", 20), ("--honest", 400)):
        parser.add_argument(option, type=int, default=default)
    options = parser.parse_args()
    plan = build_plan(
        get_pair("mini"), [*map(load_task, default_task_names())],
        method_variants(["autoregressive"], {}), [5], Settings(),
        loading=Loading(dtype="float32"), limit=4, may_execute=True,
    )  # fmt: skip
    pair = Loader().load(plan)
    prompts = [context for _, context in read_prompts(plan, pair)]
    alpha = FALSE_ALARM / (len(COUNTED + STREAMS + SAMPLER) * len(TEMPERATURES))
    for temperature in TEMPERATURES:
        cut = [cut_prompt(pair, prompt, temperature, False) for prompt in prompts]
        laws = laws_after(pair, {tuple(context.prompt) for context in cut}, temperature)
        every = [*map(every_draw, laws)]
        generator = torch.Generator().manual_seed(0)
        for fault, drawn_from in faults(laws).items():
            repeats = options.repeats if fault else options.honest
            audits = [draw(every, drawn_from, options.texts, generator) for _ in range(repeats)]
            judged = [[test.judge(alpha).facts for test in audit] for audit in audits]
            heat = [facts["p_value"] < alpha for facts, _ in judged]
            filters = [facts["p_value"] < alpha for _, facts in judged]
            either = np.logical_or(heat, filters).sum()
            print(
                f"T={temperature:g}, {fault or 'no fault'}: found in {either} of {repeats} "
                f"(temperature {sum(heat)}, filters {sum(filters)})"
            )
        heat_seen, filters_seen = (facts["visible"] for facts in judged[0])
        print(f"  would see a temperature off by {heat_seen:.1%}, {filters_seen}")


def laws_after(pair: LoadedPair, prompts: set[tuple[int, ...]], temperature: float) -> Tensor:
    """Return the laws ``[C, V]`` of the tokens after prompts."""
    laws = EndedLaws(pair, temperature)
    return torch.cat([laws.after(pair.target, p, [[]]).exp() for p in sorted(prompts)])


def faults(laws: Tensor) -> dict[str, Tensor]:
    """Return the laws that faults draw from; the first is none."""
    found = {"": laws}
    for name, power in (("temperature x 1.05", 1 / 1.05), ("temperature / 1.05", 1.05)):
        found[name] = laws**power
    for kind, value in ((TOP_K, 50), (TOP_P, 0.95)):
        least = least_kept(laws.sort(-1, descending=True).values, kind, value)
        found[f"{kind} {value}"] = torch.where(laws < least, 0, laws)
    return {name: law / law.sum(-1, keepdim=True) for name, law in found.items()}


def every_draw(law: Tensor) -> Audit:
    """Return the sums for one draw of each token from a law."""
    tests = TemperatureScore(1.0), FilteredTails()
    for test in tests:
        test.add(law.expand(len(law), -1), torch.arange(len(law)))
    return tests


def draw(every: list[Audit], drawn_from: Tensor, texts: int, generator: torch.Generator) -> Audit:
    """Return the sums of an audit that draws its texts from other laws."""
    tokens = torch.multinomial(drawn_from, texts // len(every), True, generator=generator)
    score, tails = TemperatureScore(1.0), FilteredTails()
    for (one_score, one_tails), drawn in zip(every, tokens.numpy(), strict=True):
        score._scores += [part[:, drawn] for part in one_score._scores[1:]]
        tails._tails += [part[..., drawn] for part in one_tails._tails[1:]]
    return score, tails


if __name__ == "__main__":
    main()
