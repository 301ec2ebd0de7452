"""Build two small pairs on other texts, with a task each, to try training where it was not tuned.

``problems`` continues GSM8K's problems, ``code`` continues Python functions of installed packages.
The metric compares with the target's own greedy text, so any text is a task.

    PYTHONPATH=tasks python tests/benchmarks/other_pairs.py problems --gsm8k FOLDER --minutes 18 \
        --output pairs
    specbench train --target pairs/problems/target --draft pairs/problems/draft \
        -t pairs/problems.toml --data pairs --seed 0
"""

import argparse
import ast
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from pretraining.models import (
    ModelRecipe,
    build_model,
    build_optimizers,
    build_tokenizer,
)
from pretraining.sources import read_package
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.config import Loading
from specbench.engine.loading import load_pair
from specbench.engine.lockstep import LockstepBatch
from specbench.engine.pair import LoadedPair
from specbench.pairs.registry import PairSpec

PACKAGES = ("pandas", "scipy", "numpy", "matplotlib", "sympy", "networkx")
NEW_TOKENS, LENGTH, BATCH, UNSEEN, RATE = 48, 129, 32, 2500, 2e-3
TASK = """\
name = "{name}"
version = "1"
description = "Continue a text as the target would"
licence = "MIT"
metrics = ["{metric}"]
max_new_tokens = {tokens}

[source]
dataset = "local/{name}"
train = "train"
test = "test"

[prompt]
format = "plain"
template = "{{prompt}}"

[example]
id = "{{id}}"
reference = "{{reference}}"
"""


class Recipe(NamedTuple):
    vocabulary: int
    target: ModelRecipe
    draft: ModelRecipe
    metric: str


def shape(hidden: int, layers: int, heads: int, intermediate: int) -> ModelRecipe:
    return ModelRecipe(hidden, layers, heads, intermediate, 0, RATE, seed=3)


RECIPES = {
    "problems": Recipe(1536, shape(192, 6, 6, 512), shape(64, 1, 4, 192), "rouge2"),
    "code": Recipe(1024, shape(160, 9, 5, 448), shape(96, 2, 3, 256), "rougeL"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--gsm8k", type=Path, help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--minutes", type=float, default=18.0)
    parser.add_argument("--output", type=Path, default=Path("pairs"))
    asked = parser.parse_args()
    recipe, folder = RECIPES[asked.name], asked.output / asked.name
    if asked.name == "problems":
        seen, unseen = problems(asked.gsm8k)
        other = []
    else:
        functions, other = texts_of_packages()
        seen, unseen = functions[UNSEEN:], functions[:UNSEEN]
    tokenizer = build_tokenizer(seen[:4000], recipe.vocabulary)
    data = blocks(tokenizer, seen)
    target = build_model(recipe.target, tokenizer)
    train(target, data, asked.minutes * 0.75)
    draft = build_model(recipe.draft, tokenizer)
    if other:  # the draft learns from the target, half of it on prose
        prose = blocks(tokenizer, other[:5000])
        data = torch.cat((prose, data[: len(prose) // 2]))
    train(draft, data, asked.minutes * 0.25, teacher=target if other else None)
    for role, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / role)
        tokenizer.save_pretrained(folder / role)
    write_task(asked.output, asked.name, recipe.metric, unseen)


def problems(folder: Path) -> tuple[list[str], list[str]]:
    """Return GSM8K's problems with their answers: for the models, and unseen by them."""
    rows = {
        split: [json.loads(line) for line in (folder / f"{split}.jsonl").open(encoding="utf-8")]
        for split in ("train", "test")
    }
    train, test = (
        [f"{r['question'].strip()}\n{re.sub('<<.*?>>', '', r['answer']).strip()}" for r in part]
        for part in rows.values()
    )
    return train[1000:], train[:1000] + test


def texts_of_packages() -> tuple[list[str], list[str]]:
    """Return functions without their docstrings, and paragraphs of docstrings, shuffled."""
    functions, prose = dict.fromkeys(()), dict.fromkeys(())
    for node in definitions():
        documented = ast.get_docstring(node)
        for paragraph in (documented or "").split("\n\n"):
            text = " ".join(paragraph.split())
            letters = sum(c.isalpha() or c == " " for c in text)
            if len(text) > 150 and letters > 0.9 * len(text):
                prose[text] = None
        if isinstance(node, ast.FunctionDef):
            if documented and len(node.body) > 1:
                node.body = node.body[1:]
            source = ast.unparse(node)
            if 200 < len(source) < 1500:
                functions[source] = None
    shuffled = [list(functions), list(prose)]
    for seed, texts in enumerate(shuffled):
        random.Random(seed).shuffle(texts)
    return shuffled[0], shuffled[1]


def definitions() -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for package in PACKAGES:
        for source in read_package(package):
            for node in ast.walk(ast.parse(source.text)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield node


def blocks(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """Return the texts as one stream, cut into blocks ``[n, LENGTH]``."""
    ids = [i for text in texts for i in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
    return torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)


def train(
    model: LlamaForCausalLM,
    data: Tensor,
    minutes: float,
    teacher: LlamaForCausalLM | None = None,
) -> None:
    """Train for some minutes, on the next token or on a teacher's distribution."""
    optimizers = build_optimizers(model.named_parameters(), RATE)
    order = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(1))]
    began, step = time.perf_counter(), 0
    while (done := (time.perf_counter() - began) / 60 / minutes) < 1:
        rows = order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)]
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = RATE * min(1.0, (step + 1) / 100) * (1 - done)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float().flatten(0, 1)
        if teacher is None:
            loss = cross_entropy(logits, rows[:, 1:].flatten())
        else:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                wanted = teacher(input_ids=rows[:, :-1], use_cache=False).logits.float()
            both = (log_softmax(each, -1) for each in (logits, wanted.flatten(0, 1)))
            loss = kl_div(*both, log_target=True, reduction="batchmean")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 100 == 0:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)
    model.eval()


def write_task(root: Path, name: str, metric: str, texts: list[str]) -> None:
    """Write prompts of unseen texts, with the target's greedy continuations as references."""
    spec = PairSpec(name, str(root / name / "target"), str(root / name / "draft"))
    pair = load_pair(spec, Loading(device="cpu", dtype="float32"))
    prompts = [prompt for text in texts for prompt in prompts_of(pair, name, text)]
    prompts.sort(key=len)  # similar lengths decode together
    texts = [t for n in range(0, len(prompts), 128) for t in greedy(pair, prompts[n : n + 128])]
    rows = [
        {"id": str(number), "prompt": prompt, "reference": text}
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
        if len(text) > 20
    ]
    random.Random(0).shuffle(rows)
    (root / name).mkdir(parents=True, exist_ok=True)
    for split, part in (("train", rows[:-300]), ("test", rows[-300:])):
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (root / name / f"{split}.jsonl").write_text(lines)
    task = TASK.format(name=name, metric=metric, tokens=NEW_TOKENS)
    (root / f"{name}.toml").write_text(task)
    print(f"{len(rows)} prompts in {root / name}")


def prompts_of(pair: LoadedPair, name: str, text: str) -> list[str]:
    """Return two places of a text to continue from."""
    if name == "problems":
        question = text.split("\n", 1)[0]
        first = list(pair.tokenizer(question)["input_ids"])[1:41]
        return [pair.tokenizer.decode(first), question + "\n"]
    ids = list(pair.tokenizer(text)["input_ids"])[1:]
    lengths = (48, 96) if len(ids) > 150 else (48,)
    return [pair.tokenizer.decode(ids[:length]) for length in lengths]


@torch.no_grad()
def greedy(pair: LoadedPair, prompts: list[str]) -> list[str]:
    ids = [list(pair.tokenizer(prompt)["input_ids"]) for prompt in prompts]
    batch = LockstepBatch(pair.target, ids, NEW_TOKENS)
    logits, _ = batch.start()
    tokens = [logits.argmax(-1)]
    while len(tokens) < NEW_TOKENS:
        logits, _ = batch.forward(tokens[-1].unsqueeze(-1))
        tokens.append(logits.argmax(-1))
    texts = []
    for row in torch.stack(tokens, 1).tolist():
        end = next((i for i, token in enumerate(row) if token in pair.eos_ids), len(row))
        texts.append(str(pair.tokenizer.decode(row[:end])))
    return texts


if __name__ == "__main__":
    main()
