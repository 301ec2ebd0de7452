"""Which objective does a head reach on held-out prompts, after so many texts of training?

    python tasks/measure/fewer_texts.py --pair mini -t mini-math --steps 16,60 --memory 1,4

Each head is that of the last step: none is chosen by a measurement. The objective is that of
training, quality plus lambda times acceptance, on two texts of each of 256 held-out prompts, the
same for all heads. The static weights, which give lambda its unit, are measured once. A line of
CSV is printed for each head.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from itertools import product
from pathlib import Path

from specbench.engine.loading import load_pair
from specbench.engine.pairs import get_pair
from specbench.tasks.task import load_task
from specbench.training.recipe import head_recipe
from specbench.training.session import prepare
from specbench.training.verifier import FINAL_SEED, draw_texts

FIGURES = ("objective", "quality", "acceptance")
HEADINGS = ("task", "start", "memory", "steps", "texts", "seed", *FIGURES, "processor_seconds")


def main() -> None:
    """Train and measure each head."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="mini")
    parser.add_argument("-t", "--task", default="mini-math")
    for name, default in (("steps", "16,60"), ("memory", "1,4"), ("seed", "0,1")):
        numbers = {"type": lambda text: [*map(int, text.split(","))], "default": default}
        parser.add_argument(f"--{name}", **numbers)
    weights = {"type": lambda text: [*map(float, text.split(","))], "default": [None]}
    parser.add_argument("--initial-weight", help="of the untrained head", **weights)
    options = parser.parse_args()
    spec, task = get_pair(options.pair), load_task(options.task)
    pair, static = load_pair(spec), []
    rows = csv.writer(sys.stdout)
    rows.writerow(HEADINGS)
    grid = product(options.seed, options.initial_weight, options.steps, options.memory)
    for seed, weight, steps, memory in grid:
        recipe = head_recipe(spec, task, {"steps": steps, "seed": seed, "initial_weight": weight})
        training = prepare(pair, task, recipe.updated(memory=memory), Path("unused"))
        training.static = static
        training.begin()
        static = training.static
        began = time.process_time()
        training._checked = lambda progress: progress  # type: ignore[method-assign]
        for _ in range(steps):
            training.learn(*draw_texts([training])[0])
        seconds = time.process_time() - began
        [point] = training.measure([training.head], training.materials.final, FINAL_SEED, 2)
        quality, acceptance = point.quality.mean(), point.acceptance.mean()
        objective = quality + recipe.acceptance_weight * training.slope * acceptance
        texts = steps * recipe.prompts_per_step * recipe.rollouts
        figures = (f"{figure:.4f}" for figure in (objective, quality, acceptance))
        start = weight or round(training.goal.first_weight, 2)
        rows.writerow([task.name, start, memory, steps, texts, seed, *figures, round(seconds)])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
