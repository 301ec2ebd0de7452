"""The pair of a plan, after checking that it fits in memory, and its prompts as token ids."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from transformers import PreTrainedTokenizerBase

from specbench.engine.choice import choose_engine
from specbench.engine.device import choose_device
from specbench.engine.engines import Engine
from specbench.engine.loading import Reader, load_pair, load_reader
from specbench.engine.memory import check_memory, estimate_tokens
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec
from specbench.engine.prompts import Encoded, encode
from specbench.engine.runner import require_context
from specbench.errors import SpecbenchError, UsageError
from specbench.experiment.plan import Plan, TaskPlan
from specbench.runs.run import Run
from specbench.tasks.example import CHAT, PLAIN, Example

log = logging.getLogger(__name__)


@dataclass
class Loader:
    """Loads the pair of a plan and keeps the last one; tests replace the load functions."""

    load_pair: Callable[[PairSpec, Loading], LoadedPair] = load_pair
    load_reader: Callable[[PairSpec, Loading], Reader] = load_reader
    check_memory: Callable[..., None] = check_memory
    _loaded: tuple[tuple[PairSpec, Loading], LoadedPair] | None = None

    def load(self, plan: Plan) -> LoadedPair:
        """Check a plan's pair, and load it with its engine.

        Raises:
            UsageError: See ``prepare``, or the pair cannot be loaded.
        """
        if self._loaded and self._loaded[0] == (plan.pair, plan.loading):
            pair = self._loaded[1]
            EncodedPrompts(plan, pair).require_decodable()
            engine = self._engine(plan)
            pair.drop_caches()
        else:
            self._loaded = None  # free its memory before loading another pair
            engine = self.prepare(plan)
            pair = self.pair(plan.pair, plan.loading)
        pair.engine = engine
        return pair

    def pair(self, spec: PairSpec, loading: Loading) -> LoadedPair:
        """Return a loaded pair; the one that was loaded last is not read again."""
        if self._loaded is None or self._loaded[0] != (spec, loading):
            self._loaded = None
            self._loaded = ((spec, loading), self.load_pair(spec, loading))
        return self._loaded[1]

    def prepare(self, plan: Plan) -> Engine:
        """Check without weights that a plan can be executed; return the engine.

        Raises:
            UsageError: The pair does not fit in memory or has two vocabularies, no example can be
                decoded, or the engine does not work on this device.
        """
        engine = self._engine(plan)
        self.check_memory(plan.pair, plan.loading, *largest(plan))
        EncodedPrompts(plan, self.load_reader(plan.pair, plan.loading)).require_decodable()
        return engine

    def _engine(self, plan: Plan) -> Engine:
        settings, spread = plan.settings, plan.loading.device_map is not None
        device = str(choose_device(plan.loading.device))
        name = choose_engine(settings.engine, device, spread, plan.pair.gguf)
        return Engine(name, log.warning if settings.falls_back else None)


def largest(plan: Plan) -> tuple[int, int, int, int]:
    """Return a plan's longest prompt (estimated), answer and draft in tokens, and batch size."""
    limit = plan.settings.max_prompt_tokens or math.inf
    examples = [example for task in plan.tasks for example in task.examples]
    longest = estimate_tokens("\n".join(example.texts) for example in examples)
    further = max((len(e.messages) - 1 for e in examples), default=0)  # answers in the prompt
    answers = further * max(task.max_new_tokens for task in plan.tasks)
    return (
        int(min(limit, longest + answers)),
        max(task.max_new_tokens for task in plan.tasks),
        max(task.longest_draft for task in plan.tasks),
        plan.settings.batch_size,
    )


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    example: Example,
    prompt_format: str,
    limit: int | None = None,
    *,
    answers: Sequence[str] = (),
    thinking: bool = False,
) -> Encoded:
    """Encode an example's prompt, see ``engine.prompts.encode``.

    After ``answers`` to the first turns of a conversation, it ends with the next message.
    """
    pairs = zip(answers, example.messages[1:], strict=False)
    return encode(
        tokenizer,
        example.prompt,
        list(chain.from_iterable(pairs)),
        conversation=example.conversation,
        passage=example.passage,
        prompt_format=prompt_format,
        limit=limit,
        thinking=thinking,
    )


def recorded_prompt(
    run: Run,
    pair: LoadedPair | Reader,
    example: Example,
    record: Mapping[str, Any],
    answers: Sequence[str] = (),
) -> list[int]:
    """Return the tokens of the prompt of a run's record, after the answers to earlier turns.

    Raises:
        UsageError: Their number differs from the record.
    """
    settings = run.settings
    ids = encode_prompt(
        pair.tokenizer,
        example,
        settings.prompt_format or run.tasks[record["task"]]["prompt_format"],
        # A prompt that was cut has its recorded length.
        record["prompt_tokens"] if record.get("prompt_cut") else settings.max_prompt_tokens,
        answers=answers,
        thinking=pair.thinking,
    ).ids
    if len(ids) != record["prompt_tokens"]:
        counts = f"{len(ids)} tokens now and had {record['prompt_tokens']}"
        raise UsageError(f"the prompt of {record['sample_id']} has {counts}: run again")
    return ids


def answers_before(records: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> list[str]:
    """Return the texts of a conversation's turns before a record's; ``records`` are of its cell."""
    turn = record.get("turn") or 1
    if turn == 1:
        return []
    names = ("sample_id", "repeat")
    turns = [r for r in records if all(r[name] == record[name] for name in names)]
    return [str(r["text"]) for r in turns if (r.get("turn") or 1) < turn]


class EncodedPrompts:
    """The prompts of a plan's examples, each encoded once for all cells.

    Raises:
        UsageError: The prompt format is chat, but the tokenizer has no chat template.
    """

    def __init__(self, plan: Plan, pair: LoadedPair | Reader) -> None:
        if plan.settings.prompt_format == CHAT and pair.tokenizer.chat_template is None:
            raise UsageError(
                "the target's tokenizer has no chat template: give --prompt-format plain"
            )
        self._plan, self._pair = plan, pair
        self._encoded = {
            task.task.name: {example.id: self._encode(task, example) for example in task.examples}
            for task in plan.tasks
        }

    @property
    def formats(self) -> dict[str, str]:
        """How the prompts of each task are sent; without a template they are plain text."""
        is_plain = self._pair.tokenizer.chat_template is None
        chosen = {t.task.name: self._format(t) for t in self._plan.tasks}
        return {name: PLAIN if is_plain else form for name, form in chosen.items()}

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's tokenizer."""
        return self._pair.tokenizer

    def of(self, task: TaskPlan, example: Example, answers: Sequence[str] = ()) -> Encoded:
        """Return the tokens of an example's prompt, after ``answers`` to its first turns.

        Raises:
            UsageError: The prompt is over the limit and cannot be cut.
            RunError: The prompt and its answer do not fit the models' context.
        """
        encoded = self._encoded[task.task.name][example.id]
        if answers:
            encoded = self._encode(task, example, answers)
        if isinstance(encoded, SpecbenchError):
            raise type(encoded)(str(encoded))
        return encoded

    def require_decodable(self) -> None:
        """Warn about every task with examples that cannot be decoded.

        Raises:
            UsageError: No example of the plan can be decoded.
        """
        warnings, total = [], 0
        for name, encoded in self._encoded.items():
            if errors := [e for e in encoded.values() if isinstance(e, SpecbenchError)]:
                warnings.append(
                    f"{len(errors)} of {len(encoded)} examples of {name} cannot be decoded, the "
                    f"first because {errors[0]}"
                )
            total += len(encoded) - len(errors)
        if not total:
            raise UsageError("; ".join(warnings))
        for text in warnings:
            log.warning(text)

    def longest_text(self) -> int:
        """Return the maximum length of a text in tokens, drafts and all turns included."""
        lengths = [1]
        for task in self._plan.tasks:
            for example in task.examples:
                encoded, later = self._encoded[task.task.name][example.id], example.messages[1:]
                if later:  # with empty answers, whose limit is added below
                    encoded = self._encode(task, example, [""] * len(later))
                if isinstance(encoded, Encoded):
                    answers = (1 + len(later)) * task.max_new_tokens
                    lengths.append(len(encoded.ids) + answers + task.longest_draft + 1)
        return max(lengths)

    def first(self) -> dict[str, list[int] | None]:
        """Return the token ids of each task's first prompt, None if it cannot be decoded."""
        firsts = {name: next(iter(encoded.values())) for name, encoded in self._encoded.items()}
        return {n: e.ids if isinstance(e, Encoded) else None for n, e in firsts.items()}

    def _format(self, task: TaskPlan) -> str:
        return self._plan.settings.prompt_format or task.task.prompt_format

    def _encode(
        self, task: TaskPlan, example: Example, answers: Sequence[str] = ()
    ) -> Encoded | SpecbenchError:
        settings, pair = self._plan.settings, self._pair
        limit = settings.max_prompt_tokens
        if pair.context is not None and example.passage:  # cut it to fit the context
            room = pair.context - task.max_new_tokens - task.longest_draft - 1
            limit = limit if room < 1 else min(room, limit or room)
        try:
            encoded = encode_prompt(
                pair.tokenizer,
                example,
                self._format(task),
                limit,
                answers=answers,
                thinking=pair.thinking,
            )
            require_context(pair.context, len(encoded.ids), task.max_new_tokens)
        except SpecbenchError as error:
            return error.with_traceback(None)
        return encoded
