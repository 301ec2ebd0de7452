"""Train heads of several seeds by the paper's recipe together: their texts share a batch.

`python results/published/paper_recipe.py MODELS DATA OUTPUT` with the seeds 0, 1 and 2; the recipe
stands in `paper-recipe.toml`. The same command resumes.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from specbench.cli import options
from specbench.config import DRAFT_LENGTH
from specbench.decoding.drafters.registry import MODEL
from specbench.decoding.heads.head import fingerprints, save_head
from specbench.decoding.loop import DecodeOptions
from specbench.engine.loading import load_pair
from specbench.files import make_folder, write_atomically
from specbench.runs.labels import LOG
from specbench.training import session
from specbench.training.material import describe_data
from specbench.training.recipe import CHECKPOINT, head_recipe
from specbench.training.rollouts import _decoded, _draft_law
from specbench.training.verifier import Training

SEEDS = (0, 1, 2)


def head_folder(training: Training) -> Path:
    """Return the folder of a head below the one that the command names."""
    return Path(sys.argv[3]) / f"seed-{training.recipe.seed}" / "mbpp"


def together(trainings: list[Training], done: int) -> None:
    """Draw the texts of one step for all heads in a batch, and update each by its own."""
    first = trainings[0]
    size = first.recipe.prompts_per_step
    chosen = [t.materials.train.taken(done * size, size) for t in trainings]
    rows = [material.prompts[i] for i in range(size) for material in chosen]
    drafter = MODEL.kind.load(first.pair)
    how = (first.samplings[0], DRAFT_LENGTH, first.tokens, done, first.task.stop, len(rows))
    settings = DecodeOptions(*how, drafter, law=_draft_law)
    texts = _decoded(first.pair, [t.head for t in trainings], rows, settings)
    for number, training in enumerate(trainings):
        mine = texts.every(len(trainings), number)
        training._roll_out = lambda *_, mine=mine: mine  # type: ignore[method-assign]
        training._checked = lambda progress: progress  # type: ignore
        print(f"step {done + 1} of seed {training.recipe.seed}: {training.take_step()}", flush=True)
        del training._roll_out, training._checked


def main() -> None:
    """Train the heads, and measure at the end what each is worth."""
    torch.set_num_threads(1)
    here = Path(__file__).parent
    name = f"{here / 'paper-recipe.toml'}:qwen2.5-coder"
    models = options.Models(pair=name, models=Path(sys.argv[1]), threads=1)
    spec = models.spec()
    [task] = options.Tasks(task=["mbpp"], folder=Path(sys.argv[2])).tasks()
    pair = load_pair(spec, models.loading())
    trainings = []
    for seed in SEEDS:
        recipe = head_recipe(spec, task, {"seed": seed})
        folder = Path(sys.argv[3]) / f"seed-{seed}" / "mbpp"
        trainings.append(session.prepare(pair, task, recipe, folder, resume=True))
        make_folder(folder)
    session.share_fronts(trainings)
    if not trainings[0].begun:
        folders = {head_folder(t): t for t in trainings[1:]}
        session.start(trainings[0], head_folder(trainings[0]), folders, print)
    for training in trainings:
        if not training.begun:
            training.begin()
        rate = training.rate_scale * training.recipe.learning_rate
        print(f"peak rate {rate:.2e}, slope {training.slope:.3f}", flush=True)
    while (done := len(trainings[0].history)) < trainings[0].recipe.steps:
        together(trainings, done)
        if done % 5 == 4:
            for training in trainings:
                session._save_checkpoint(training, head_folder(training) / CHECKPOINT)
                log = pd.DataFrame(training.history).to_csv(index=False, lineterminator="\n")
                write_atomically(head_folder(training) / LOG, log)
    for training in trainings:  # usable before their worth is measured
        training.restore_best()
        session._save_checkpoint(training, head_folder(training) / CHECKPOINT)
        description = describe_data(task, training.materials.left_out())
        description |= {"kind": "linear", "models": fingerprints(pair)}
        save_head(training.head, head_folder(training), description)
    for training in trainings:
        training.head.requires_grad_(False)
        session.carry_out(training, head_folder(training), lambda step: None)


if __name__ == "__main__":
    main()
