"""How often ``compare --against`` sees that an arm samples otherwise, beside what it says.

    python tasks/measure/sampled_power.py alarms
    python tasks/measure/sampled_power.py RUN autoregressive 4,8

``alarms`` prints the share of 1,000 pairs of equal arms that are called different, for several
numbers of prompts and texts. With a run at one temperature and 2 K repeats or more, each arm is
compared K against K texts in 100 draws of repeats, no text with one of its own draw.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from specbench.analysis.statistics.sampled import COOLER, GREEDY, LEVEL, Traits, power
from specbench.runs.labels import method_labels
from specbench.runs.run import read_run

DRAWS, PERMUTATIONS, ALARMS = 100, 99, 1_000
Texts = dict[str, dict[str, dict[int, tuple[object, ...]]]]  # by arm, prompt and repeat


def false_alarms(prompts: int, texts: int, draws: np.random.Generator) -> float:
    """Return the share of equal arms that are called different."""
    alarms = 0
    for _ in range(ALARMS):
        laws = draws.dirichlet([0.3] * 8, size=prompts).cumsum(-1)
        tokens = (draws.random((prompts, 2 * texts, 8, 1)) > laws[:, None, None]).sum(-1)
        lengths = draws.integers(2, 9, (prompts, 2 * texts))
        both = [
            [row[:size].tolist() for row, size in zip(*part, strict=True)]
            for part in zip(tokens, lengths, strict=True)
        ]
        second = np.tile(np.arange(2 * texts) >= texts, (prompts, 1))
        alarms += Traits.of(both).p_value(second, draws, 39) <= LEVEL
    return alarms / ALARMS


def texts_of(folder: Path) -> Texts:
    """Return the tokens of each text of a run."""
    arms: Texts = defaultdict(lambda: defaultdict(dict))
    records = [record for record in read_run(folder).records() if record.token_ids is not None]
    labels = method_labels([vars(record) for record in records])
    for record, label in zip(records, labels, strict=True):
        tokens = (*(record.token_ids or ()), record.stopped_by)
        arms[label][record.sample_id][record.repeat] = tokens
    return arms


def seen(arms: Texts, baseline: str, arm: str, texts: int, draws: np.random.Generator) -> float:
    """Return the share of draws of repeats in which an arm is called different."""
    base, other = arms[baseline], arms[arm]
    repeats = max(map(len, base.values()))
    names = [n for n in base if len(base[n]) == len(other.get(n, ())) == repeats]
    rows = [[*base[n].values(), *other[n].values()] for n in names]
    traits, found = Traits.of(rows), 0
    second = np.tile(np.arange(2 * texts) >= texts, (len(names), 1))
    for _ in range(DRAWS):
        order = [draws.permutation(repeats) for _ in names]
        chosen = [[*row[:texts], *(repeats + row[texts : 2 * texts])] for row in order]
        p = traits.of_texts(np.array(chosen)).p_value(second, draws, PERMUTATIONS)
        found += p <= LEVEL
    return found / DRAWS


def main(words: list[str]) -> None:
    """Print the table that the arguments name."""
    draws = np.random.default_rng(0)
    if words == ["alarms"]:
        for prompts in (10, 50, 200):
            for texts in (2, 4, 8, 16) if prompts < 200 else (2, 4):
                share = false_alarms(prompts, texts, draws)
                print(f"{prompts} prompts, {texts} texts an arm: {share:.1%}", flush=True)
        return
    folder, baseline, sizes = words
    arms = texts_of(Path(folder))
    for texts in map(int, sizes.split(",")):
        whole = [[*of.values()][: 2 * texts] for of in arms[baseline].values()]
        said = power(whole, trials=DRAWS)
        shares = ", ".join(f"{1 - f.greedy:.0%} kept: {said[f]:.0%}" for f in GREEDY)
        cooler = ", ".join(f"T x {f.temperature:g}: {said[f]:.0%}" for f in COOLER)
        print(f"{texts} texts: said of greedy texts {shares}; of lower temperatures {cooler}")
        for arm in arms:
            print(f"  {arm}: seen in {seen(arms, baseline, arm, texts, draws):.0%}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
