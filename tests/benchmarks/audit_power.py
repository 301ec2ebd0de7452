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
from specbench.engine.loading import LoadedPair
from specbench.experiment.plan import build_plan
from specbench.experiment.runner import Loader
from specbench.experiment.variants import method_variants
from specbench.pairs.registry import get_pair
from specbench.proofs.audit import COUNTED, FALSE_ALARM, SAMPLER, STREAMS, cut_prompt
from specbench.proofs.check import read_prompts
from specbench.proofs.distortions import TOP_K, TOP_P, Distortions, least_kept
from specbench.proofs.ends import Laws
from specbench.tasks.task import default_task_names, load_task

TEMPERATURES = (1.0, 0.7)


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
            heat = [audit.temperature(alpha).p_value < alpha for audit in audits]
            filters = [audit.filters(alpha).p_value < alpha for audit in audits]
            either = np.logical_or(heat, filters).sum()
            print(
                f"T={temperature:g}, {fault or 'no fault'}: found in {either} of {repeats} "
                f"(temperature {sum(heat)}, filters {sum(filters)})"
            )
        heat_seen, filters_seen = audits[0].temperature(alpha), audits[0].filters(alpha)
        print(f"  would see a temperature off by {heat_seen.visible:.1%}, {filters_seen.visible}")


def laws_after(pair: LoadedPair, prompts: set[tuple[int, ...]], temperature: float) -> Tensor:
    """Return the laws ``[C, V]`` of the tokens after prompts."""
    laws = Laws(pair, temperature)
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


def every_draw(law: Tensor) -> Distortions:
    """Return the sums for one draw of each token from a law."""
    found = Distortions()
    found.add(law.expand(len(law), -1), torch.arange(len(law)))
    return found


def draw(
    every: list[Distortions], drawn_from: Tensor, texts: int, generator: torch.Generator
) -> Distortions:
    """Return the sums of an audit that draws its texts from other laws."""
    tokens = torch.multinomial(drawn_from, texts // len(every), True, generator=generator)
    found = Distortions()
    for each, drawn in zip(every, tokens.numpy(), strict=True):
        found._scores += [part[:, drawn] for part in each._scores]
        found._tails += [part[..., drawn] for part in each._tails]
    return found


if __name__ == "__main__":
    main()
