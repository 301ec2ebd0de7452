"""Fine-tune the draft of a pair on a task: the paper's baseline ``sd-finetuned-draft``.

Plain supervised training on the task's reference answers, without the target. The result is an
ordinary model folder, and a run with it is named as the paper's tables name it:

    python tasks/finetune_draft.py --pair mini -t mini-math --output results/drafts/mini/mini-math
    specbench run --method sd -t mini-math --draft results/drafts/mini/mini-math
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pretraining.texts import IGNORED, answer_batch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench.engine.device import choose_device
from specbench.engine.hub import quiet_libraries
from specbench.engine.pairs import get_pair
from specbench.engine.sources import decoder_config, end_tokens, load_pretrained, load_weights
from specbench.errors import SpecbenchError, UsageError, require
from specbench.files import check_writable, clear_errors, sync_tree
from specbench.tasks.task import Task, load_task
from specbench.training.material import Material, read_material
from specbench.training.objective import descend
from specbench.training.recipe import MAX_PROMPT_TOKENS, warm_up_cosine

HELD_OUT, LINE_EVERY = 64, 50
NARROW = 512  # a model below this hidden size learns at a higher rate


def material_of(
    tokenizer: PreTrainedTokenizerBase, task: Task, split: str, count: int, seed: int
) -> Material:
    """Return encoded examples of a split; all of them need a reference answer."""
    examples = task.examples(split, count, seed)
    require(
        all(example.reference for example in examples),
        f"{task.name} has examples without a reference answer: choose a task with references",
    )
    return read_material(tokenizer, task, examples, split, MAX_PROMPT_TOKENS)


def end_token(model: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that ends an answer; in Gemma's chat template it differs from EOS."""
    if tokenizer.chat_template is not None:
        end_ids = end_tokens(model.generation_config, model.config, tokenizer)
        turns = [{"role": role, "content": "."} for role in ("user", "assistant")]
        for token in reversed(list(tokenizer.apply_chat_template(turns, return_dict=False))):
            if token in end_ids:
                return int(token)
    if tokenizer.eos_token_id is None:
        raise UsageError("the draft's tokenizer has no end token: choose a draft that has one")
    return int(tokenizer.eos_token_id)


def answer_loss(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over the answers' tokens; only these need logits, to save memory."""
    labels = labels.to(model.device)
    in_answer = labels != IGNORED
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        hidden = model.get_decoder()(input_ids=ids.to(model.device), use_cache=False)
        logits = model.get_output_embeddings()(hidden.last_hidden_state[in_answer])
    return cross_entropy(logits.float(), labels[in_answer])


def finetune(
    draft: str, revision: str | None, task: Task, recipe: argparse.Namespace
) -> Iterator[str]:
    """Fine-tune a draft and write its folder; yield lines with the losses."""
    config = decoder_config(draft, revision=revision)
    tokenizer = load_pretrained(AutoTokenizer, draft, revision=revision)
    # Half precision would lose small updates, so training uses float32.
    model: Any = load_weights(draft, config, dtype=torch.float32, revision=revision)
    model.to(choose_device(recipe.device))
    end, size = end_token(model, tokenizer), recipe.batch_size
    train = material_of(tokenizer, task, "train", recipe.steps * size, recipe.seed)
    unseen = material_of(tokenizer, task, "held-out", HELD_OUT, 0)
    rate = recipe.learning_rate or (3e-3 if config.hidden_size < NARROW else 1e-5)

    @torch.no_grad()
    def held_out_loss() -> float:
        batches = [
            answer_batch(tokenizer, unseen.taken(i, 1), end, end)
            for i in range(len(unseen.examples))
        ]
        tokens = [int((labels != IGNORED).sum()) for _, labels in batches]
        losses = [answer_loss(model, *batch).item() for batch in batches]
        return sum(map(float.__mul__, losses, map(float, tokens))) / sum(tokens)

    yield f"held-out loss before: {held_out_loss():.3f}"
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(recipe.steps):
        optimizer.param_groups[0]["lr"] = rate * warm_up_cosine(step, recipe.steps)
        loss = answer_loss(
            model, *answer_batch(tokenizer, train.taken(step * size, size), end, end)
        )
        descend(loss, model, optimizer, step, "; nothing was saved")
        if (step + 1) % LINE_EVERY == 0:
            yield f"step {step + 1}: loss {loss.item():.3f}"
    model.eval()
    yield f"held-out loss after: {held_out_loss():.3f}"
    unfinished = recipe.output.with_name(f".{recipe.output.name}.partial")
    with clear_errors(recipe.output):
        model.to(config.dtype or torch.float32).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        sync_tree(unfinished)
        unfinished.rename(recipe.output)


def main() -> None:
    """Fine-tune the draft that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", default="mini", help="a pair, as in: specbench list pairs")
    parser.add_argument("-t", "--task", required=True, help="a task with reference answers")
    parser.add_argument("-o", "--output", type=Path, required=True, help="new folder of the draft")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16, help="examples per step")
    parser.add_argument("--learning-rate", type=float, help="3e-3 if narrow, else 1e-5")
    parser.add_argument("--seed", type=int, default=0, help="of the examples")
    parser.add_argument("--device", default="auto")
    recipe = parser.parse_args()
    quiet_libraries(downloads=True)
    try:
        spec, task = get_pair(recipe.pair), load_task(recipe.task)
        require(spec.draft is not None, f"{recipe.pair} has no draft: choose a pair with one")
        require(not recipe.output.exists(), f"{recipe.output} exists: name another --output")
        check_writable(recipe.output)
        for line in finetune(str(spec.draft), spec.draft_revision, task, recipe):
            print(line, flush=True)
    except SpecbenchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
