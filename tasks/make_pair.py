"""Make the models of a bundled pair from its recipe; after a kill, the same command resumes.

``mini`` takes about an hour on two CPU cores, ``python`` two. The heads of a pair are trained by
``specbench train``.

    python tasks/make_pair.py mini --output results/pairs/mini
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pretraining.corpus import Corpus
from pretraining.generated import Generated
from pretraining.loop import train
from pretraining.models import ModelRecipe, build_model, build_tokenizer
from pretraining.texts import Texts
from transformers import PreTrainedTokenizerFast

from specbench.errors import UsageError
from specbench.experiment.progress import training_bar
from specbench.files import check_writable, sync_tree
from specbench.pairs.registry import PAIRS_FILE, ROLES
from specbench.runs.heads import LOG
from specbench.validation import load_toml

LINE_EVERY = 50  # steps per line without a terminal
WORK = "work"  # subfolder for tokens and checkpoints


def main() -> None:
    """Make the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    recipes = {path.parent.name: path for path in PAIRS_FILE.parent.glob("*/recipe.toml")}
    parser.add_argument("pair", choices=sorted(recipes))
    parser.add_argument("--model", choices=ROLES, help="make only this model")
    parser.add_argument("--output", type=Path, help="folder to write (default: results/pairs/PAIR)")
    options = parser.parse_args()
    folder = options.output or Path("results/pairs") / options.pair
    try:
        check_writable(folder)
        make_pair(recipes[options.pair], folder, [options.model] if options.model else ROLES)
    except UsageError as error:
        sys.exit(f"error: {error}")
    print(folder)


def make_pair(recipe: Path, folder: Path, roles: Collection[str]) -> None:
    """Make the models of some roles; they share the tokenizer of the models in the folder.

    Raises:
        UsageError: The folder is not writable, or the environment's packages differ from the
            recipe's.
    """
    tables = load_toml(recipe, "recipe")
    texts = texts_of(tables, folder / WORK)
    for role in ROLES:
        if role in roles:
            make_model(tables, texts, role, folder)


def texts_of(tables: dict[str, Any], work: Path) -> Texts:
    """Return the texts of a recipe."""
    sizes = tables["tokenizer"]
    if "packages" in tables:
        rows = tables["corpus"]["rows_per_step"]
        return Corpus(tables["packages"], rows, sizes["characters"], work)
    return Generated(tables["examples"], sizes["examples"])


def make_model(tables: dict[str, Any], texts: Texts, role: str, folder: Path) -> None:
    """Train a model and write it to its folder, with its learning curve."""
    recipe, work = ModelRecipe(**tables[role]), folder / WORK
    tokenizer = tokenizer_of(tables, texts, folder)
    texts.encode(tokenizer)
    model = build_model(recipe, tokenizer)
    title = f"{role}, {model.num_parameters():,} parameters"
    with training_bar(title, recipe.steps, every=LINE_EVERY) as draw:
        train(model, texts, recipe, work / role, draw)
    model.save_pretrained(folder / role)
    tokenizer.save_pretrained(folder / role)
    shutil.copy(work / role / LOG, folder / role / LOG)
    sync_tree(folder / role)


def tokenizer_of(tables: dict[str, Any], texts: Texts, folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a model in the folder, or a new one that is stored there."""
    stored = folder / WORK / "tokenizer"
    for path in (stored, *(folder / role for role in ROLES)):
        if (path / "tokenizer.json").exists():
            tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(path)
            return tokenizer
    tokenizer = build_tokenizer(texts.for_tokenizer(), tables["tokenizer"]["vocabulary"])
    tokenizer.save_pretrained(stored)
    return tokenizer


if __name__ == "__main__":
    main()
