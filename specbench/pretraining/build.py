"""Build the parts of a bundled pair from its recipe: two models and a head per task.

Every part resumes after a kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from specbench.config import Loading
from specbench.engine.loading import load_pair
from specbench.errors import UsageError
from specbench.files import sync_tree
from specbench.pairs.registry import ROLES, PairSpec
from specbench.pretraining.corpus import Corpus
from specbench.pretraining.generated import Generated
from specbench.pretraining.loop import train
from specbench.pretraining.models import ModelRecipe, build_model, build_tokenizer
from specbench.pretraining.texts import Texts
from specbench.tasks.task import load_task
from specbench.training.folder import LOG, check_folder, progress_bar
from specbench.training.recipe import head_recipe
from specbench.training.session import carry_out, prepare
from specbench.validation import load_toml

LINE_EVERY = 50  # steps per line without a terminal
WORK = "work"  # subfolder for tokens and checkpoints


def build(recipe: Path, folder: Path, parts: Collection[str]) -> None:
    """Build parts of a pair; other parts are used from the folder unchanged.

    Raises:
        UsageError: The folder is not writable, lacks a part that is needed and not built, or the
            environment's packages differ from the recipe's.
    """
    tables = load_toml(recipe, "recipe")
    folder = folder.resolve()  # a relative path could be mistaken for a hub id
    missing = [r for r in ROLES if r not in parts and not (folder / r / "config.json").exists()]
    if "heads" in parts and missing:
        raise UsageError(
            f"{folder} has no {missing[0]}, which heads need for training: add --part {missing[0]}"
        )
    texts = _texts(tables, folder / WORK)
    for role in ROLES:
        if role in parts:
            _build_model(tables, texts, role, folder)
    if "heads" in parts:
        target, draft = (str(folder / role) for role in ROLES)
        spec = PairSpec(recipe.parent.name, target, draft, training=tables.get("heads", {}))
        pair = load_pair(spec, Loading(device="cpu", dtype="float32"))
        for task in map(load_task, tables["tasks"]):
            head = folder / "heads" / task.name
            if not check_folder(head, resume=True):
                continue
            training = prepare(pair, task, head_recipe(spec, task, {}), head, resume=True)
            with progress_bar(f"head {task.name}", training.recipe.steps) as draw:
                carry_out(training, head, lambda progress: draw(progress.step, str(progress)))


def _texts(tables: dict[str, Any], work: Path) -> Texts:
    sizes = tables["tokenizer"]
    if "packages" in tables:
        rows = tables["corpus"]["rows_per_step"]
        return Corpus(tables["packages"], rows, sizes["characters"], work)
    return Generated(tables["examples"], sizes["examples"])


def _build_model(tables: dict[str, Any], texts: Texts, role: str, folder: Path) -> None:
    recipe, work = ModelRecipe(**tables[role]), folder / WORK
    tokenizer = _tokenizer(tables, texts, folder)
    texts.encode(tokenizer)
    model = build_model(recipe, tokenizer)
    title = f"{role}, {model.num_parameters():,} parameters"
    with progress_bar(title, recipe.steps, every=LINE_EVERY) as draw:
        train(model, texts, recipe, work / role, draw)
    model.save_pretrained(folder / role)
    tokenizer.save_pretrained(folder / role)
    shutil.copy(work / role / LOG, folder / role / LOG)
    sync_tree(folder / role)


def _tokenizer(tables: dict[str, Any], texts: Texts, folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a model in the folder, or a new one that is stored there."""
    stored = folder / WORK / "tokenizer"
    for folder_of_role in (stored, *(folder / role for role in ROLES)):
        if (folder_of_role / "tokenizer.json").exists():
            found: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder_of_role)
            return found
    tokenizer = build_tokenizer(texts.for_tokenizer(), tables["tokenizer"]["vocabulary"])
    tokenizer.save_pretrained(stored)
    return tokenizer
