"""Make the models of a bundled pair from its recipe; after a kill, the same command resumes.

``mini`` takes about an hour on two CPU cores, ``python`` two. The heads of a pair are trained by
``specbench train``. PAIR may also be a recipe of one's own, and a GPU has often other packages than
the recipe, so that the texts come from a machine that has them:

    python tasks/make_pair.py mini --output results/pairs/mini
    python tasks/make_pair.py tasks/pretraining/larger.toml --pack sources.jsonl.xz
    python tasks/make_pair.py tasks/pretraining/larger.toml --sources sources.jsonl.xz --device cuda
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from pretraining.corpus import Corpus
from pretraining.loop import train
from pretraining.models import ModelRecipe, build_model, build_tokenizer
from pretraining.sources import pack_sources
from pretraining.texts import Generated, Texts
from transformers import PreTrainedTokenizerFast

from specbench.engine.pairs import PAIRS_FILE, ROLES
from specbench.errors import UsageError
from specbench.experiment.progress import training_bar
from specbench.files import check_writable, sync_tree
from specbench.runs.labels import LOG
from specbench.schema import load_toml

LINE_EVERY = 50  # steps per line without a terminal
WORK = "work"  # subfolder for tokens and checkpoints


def main() -> None:
    """Make the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    recipes = {path.parent.name: path for path in PAIRS_FILE.parent.glob("*/recipe.toml")}
    parser.add_argument("pair", help=f"{', '.join(sorted(recipes))} or a recipe's file")
    parser.add_argument("--model", choices=ROLES, help="make only this model")
    parser.add_argument("--device", default="cpu", help="as PyTorch names it (default: cpu)")
    parser.add_argument("--sources", type=Path, help="packed texts of the recipe's packages")
    parser.add_argument("--pack", type=Path, help="write this file for --sources, and no model")
    parser.add_argument("--output", type=Path, help="folder to write (default: results/pairs/PAIR)")
    options = parser.parse_args()
    recipe = recipes.get(options.pair) or Path(options.pair)
    folder = options.output or Path("results/pairs") / (
        options.pair if options.pair in recipes else recipe.stem
    )
    roles = [options.model] if options.model else ROLES
    try:
        if options.pack:
            pack_sources(read_recipe(recipe)["packages"], options.pack)
        else:
            check_writable(folder)
            make_pair(recipe, folder, roles, options.sources, options.device)
    except UsageError as error:
        sys.exit(f"error: {error}")
    print(options.pack or folder)


def make_pair(
    recipe: Path,
    folder: Path,
    roles: Collection[str],
    sources: Path | None = None,
    device: str = "cpu",
) -> None:
    """Make the models of some roles; they share the tokenizer of the models in the folder.

    Args:
        recipe: The recipe's file.
        folder: Where the models go.
        roles: Which of target and draft are made.
        sources: Packed source code, see ``pretraining.sources``; None reads installed packages.
        device: Where the models are trained, as PyTorch names it.

    Raises:
        UsageError: The folder is not writable, or the packages differ from the recipe's.
    """
    tables = read_recipe(recipe)
    texts = texts_of(tables, folder / WORK, sources)
    for role in ROLES:
        if role in roles:
            make_model(tables, texts, role, folder, device)


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the tables of a recipe; the packages may be those of a bundled pair's recipe."""
    tables = load_toml(path, "recipe")
    packages = tables.get("packages")
    if isinstance(packages, str):
        tables["packages"] = read_recipe(PAIRS_FILE.parent / packages / "recipe.toml")["packages"]
    return tables


def texts_of(tables: dict[str, Any], work: Path, sources: Path | None) -> Texts:
    """Return the texts of a recipe."""
    sizes = tables["tokenizer"]
    if "packages" in tables:
        return Corpus(tables["packages"], sizes["characters"], work, sources, **tables["corpus"])
    return Generated(tables["examples"], sizes["examples"])


def make_model(tables: dict[str, Any], texts: Texts, role: str, folder: Path, device: str) -> None:
    """Train a model and write it to its folder, with its learning curve."""
    recipe, work = ModelRecipe(**tables[role]), folder / WORK
    tokenizer = tokenizer_of(tables, texts, folder)
    texts.encode(tokenizer)
    model = build_model(recipe, tokenizer)
    model.to(torch.device(device))  # type: ignore[arg-type]  # a wrapped method
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
