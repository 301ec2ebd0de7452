"""Train heads of several seeds by the paper's recipe together: their texts share a batch.

`python results/published/paper_recipe.py MODELS DATA OUTPUT [W]` with the seeds 0, 1 and 2, from
the weight W; the recipe stands in `paper-recipe.toml`. The same command resumes.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import torch

from specbench.cli import options
from specbench.decoding.heads.head import fingerprints, save_head
from specbench.engine.loading import load_pair
from specbench.files import make_folder, write_atomically
from specbench.runs.labels import LOG
from specbench.training import front, objective, session
from specbench.training.material import describe_data
from specbench.training.recipe import CHECKPOINT, head_recipe
from specbench.training.rollouts import roll_out
from specbench.training.verifier import Training

THREADS = 2
UPDATES = 4  # whose texts are drawn together; 2 at first
SEEDS = (0, 1, 2)


def head_folder(training: Training) -> Path:
    """Return the folder of a head below the one that the command names."""
    return Path(sys.argv[3]) / f"seed-{training.recipe.seed}" / "mbpp"


def together(trainings: list[Training], done: int) -> None:
    """Draw the texts of some updates for all heads in a batch, and update each head by its own.

    Those of later updates count as often as the head that the first ones left is likelier to write
    them, as texts of earlier steps do in ``train``.
    """
    first, size, count = trainings[0], trainings[0].recipe.prompts_per_step, len(trainings)
    train, updates = first.materials.train, min(UPDATES, first.recipe.steps - done)
    chosen = train.taken(done * size, updates * size)
    heads = [training.head for training in trainings]
    how = (first.generator, first.task.stop, first.samplings[0])
    texts = roll_out(first.pair, heads, chosen.prompts, first.tokens, *how)
    surrogate = objective.surrogate
    for number, training in enumerate(trainings):
        parts = [texts.every(updates * count, count * u + number) for u in range(updates)]
        with torch.no_grad():
            written = [mine.likelihood(training.head(mine.inputs)) for mine in parts]
        for update, (mine, likelihood) in enumerate(zip(parts, written, strict=True)):
            training.materials = training.materials._replace(train=chosen.every(updates, update))
            training._roll_out = lambda *_, mine=mine: mine  # type: ignore[method-assign]
            training._checked = lambda progress: progress  # type: ignore[method-assign]
            objective.surrogate = lambda head, start, steps, *rest, of=likelihood: surrogate(
                head, start, [step._replace(likelihood=of) for step in steps], *rest
            )
            step = training.take_step()
            print(f"step {step.step} of seed {training.recipe.seed}: {step}", flush=True)
            del training._roll_out, training._checked
        training.materials = training.materials._replace(train=train)
    objective.surrogate = surrogate


def main() -> None:
    """Train the heads; what each is worth is measured by a run."""
    torch.set_num_threads(THREADS)
    # Known from the trainings of `whole`, so the static weights need not be measured again; their
    # texts are only needed for how large the inputs of a head are.
    recorded = Path(__file__).parent / "heads" / "whole" / "seed-0" / "mbpp" / "head.json"
    front.slope = lambda static: json.loads(recorded.read_text())["slope"]
    front.require_trade = lambda *_: None
    Training.front_is_measured = property(lambda training: bool(training.static))  # type: ignore
    name = f"{Path(__file__).parent / 'paper-recipe.toml'}:qwen2.5-coder"
    models = options.Models(pair=name, models=Path(sys.argv[1]), threads=THREADS)
    spec = models.spec()
    [task] = options.Tasks(task=["mbpp"], folder=Path(sys.argv[2])).tasks()
    pair = load_pair(spec, models.loading())
    trainings = []
    for seed in SEEDS:
        start = {"initial_weight": float(sys.argv[4])} if len(sys.argv) > 4 else {}
        recipe = head_recipe(spec, task, {"seed": seed, **start})
        folder = Path(sys.argv[3]) / f"seed-{seed}" / "mbpp"
        trainings.append(session.prepare(pair, task, recipe, folder, resume=True))
        make_folder(folder)
    trainings[0].measure_front(lambda *_: None)
    for training in trainings:
        training.static = trainings[0].static
        if not training.begun:
            training.begin()
        rate = training.rate_scale * training.recipe.learning_rate
        print(f"peak rate {rate:.2e}, slope {training.slope:.3f}", flush=True)
    steps = trainings[0].recipe.steps
    while (done := len(trainings[0].history)) < steps:
        together(trainings, done)
        for training in trainings:
            session._save_checkpoint(training, head_folder(training) / CHECKPOINT)
            log = pd.DataFrame(training.history).to_csv(index=False, lineterminator="\n")
            write_atomically(head_folder(training) / LOG, log)
    for training in trainings:
        description = describe_data(task, training.materials.left_out())
        description |= {"pair": pair.name, "kind": training.recipe.head_kind}
        description |= {"models": fingerprints(pair), "recipe": training.recipe.model_dump()}
        description |= {"slope": training.slope, "best_step": None, "seeds_together": SEEDS}
        save_head(training.head, head_folder(training), description)


if __name__ == "__main__":
    main()
