"""The prompts of a plan as token ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from specbench.engine.cache import require_context
from specbench.engine.loading import Reader
from specbench.engine.pair import LoadedPair
from specbench.engine.prompts import Encoded, encode_prompt
from specbench.errors import SpecbenchError, UsageError
from specbench.experiment.plan import Plan, TaskPlan
from specbench.tasks.example import CHAT, PLAIN, Example
from specbench.tasks.random_prompts import RandomPrompts

log = logging.getLogger(__name__)


class EncodedPrompts:
    """The prompts of a plan's examples, each encoded once for all cells."""

    def __init__(self, plan: Plan, pair: LoadedPair | Reader) -> None:
        if plan.settings.prompt_format == CHAT and pair.tokenizer.chat_template is None:
            raise UsageError(
                "the target's tokenizer has no chat template: give --prompt-format plain"
            )
        self._plan, self._pair = plan, pair
        self.tokenizer = pair.tokenizer  # the target's
        self._encoded = {
            task.task.name: {example.id: self._encode(task, example) for example in task.examples}
            for task in plan.tasks
        }

    @property
    def formats(self) -> dict[str, str]:
        """How the prompts of each task are sent; without a template they are plain text."""
        is_plain = self._pair.tokenizer.chat_template is None
        form = PLAIN if is_plain else self._plan.settings.prompt_format
        return {t.task.name: form or t.task.prompt_format for t in self._plan.tasks}

    def of(self, task: TaskPlan, example: Example, answers: Sequence[str] = ()) -> Encoded:
        """Return the tokens of an example's prompt, after ``answers`` to its first turns."""
        encoded = self._encoded[task.task.name][example.id]
        if answers:
            encoded = self._encode(task, example, answers)
        if isinstance(encoded, SpecbenchError):
            raise type(encoded)(str(encoded))
        return encoded

    def require_decodable(self) -> None:
        """Warn about tasks with examples that cannot be decoded; refuse a plan of such alone."""
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

    def _encode(
        self, task: TaskPlan, example: Example, answers: Sequence[str] = ()
    ) -> Encoded | SpecbenchError:
        settings, pair = self._plan.settings, self._pair
        limit = settings.max_prompt_tokens
        if pair.context is not None and example.passage:  # cut it to fit the context
            room = pair.context - task.max_new_tokens - task.longest_draft - 1
            limit = limit if room < 1 else min(room, limit or room)
        source = task.task.source
        try:
            if isinstance(source, RandomPrompts):
                reader = pair if isinstance(pair, Reader) else pair.target
                encoded = Encoded(source.ids(example, reader.vocabulary))
            else:
                encoded = encode_prompt(
                    pair.tokenizer,
                    example,
                    settings.prompt_format or task.task.prompt_format,
                    limit,
                    answers=answers,
                    thinking=pair.thinking,
                )
            require_context(pair.context, len(encoded.ids), task.max_new_tokens)
        except SpecbenchError as error:
            return error.with_traceback(None)
        return encoded
