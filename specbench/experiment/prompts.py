"""The prompts of a plan as token ids."""

from __future__ import annotations

import logging
from contextlib import suppress

from transformers import PreTrainedTokenizerBase

from specbench.config import Settings
from specbench.engine.loading import LoadedPair, Reader
from specbench.engine.prompts import Encoded, encode
from specbench.engine.runner import require_context
from specbench.errors import SpecbenchError, UsageError
from specbench.example import CHAT, Example
from specbench.experiment.plan import Plan, TaskPlan

log = logging.getLogger(__name__)


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    example: Example,
    prompt_format: str,
    limit: int | None = None,
    *,
    thinking: bool = False,
) -> Encoded:
    """Return an example's prompt as the models read it, see ``engine.prompts.encode``."""
    return encode(
        tokenizer,
        example.prompt,
        passage=example.passage,
        prompt_format=prompt_format,
        limit=limit,
        thinking=thinking,
    )


class Prompts:
    """The examples' prompts as token ids, each made once, for all cells alike.

    Raises:
        UsageError: Chat prompts are asked for of a tokenizer that has no template for them.
    """

    def __init__(self, pair: LoadedPair | Reader, settings: Settings) -> None:
        if settings.prompt_format == CHAT and pair.tokenizer.chat_template is None:
            raise UsageError(
                "the target's tokenizer has no chat template: give --prompt-format plain"
            )
        self._pair = pair
        self._settings = settings
        self._known: dict[tuple[str, str], Encoded] = {}

    def of(self, plan: TaskPlan, example: Example) -> Encoded:
        """Return the tokens of an example's prompt.

        Raises:
            UsageError: The prompt is over the limit and cannot be cut.
            RunError: The prompt and its answer do not fit the models' context.
        """
        key = (plan.task.name, example.id)
        if key not in self._known:
            self._known[key] = encode_prompt(
                self._pair.tokenizer,
                example,
                self._settings.prompt_format or plan.task.prompt_format,
                self._limit(plan, example),
                thinking=self._pair.thinking,
            )
        found = self._known[key]
        require_context(self._pair.context, len(found.ids), plan.max_new_tokens)
        return found

    def warn_of_long(self, plan: Plan) -> None:
        """Warn of every task of which some examples cannot be decoded.

        Raises:
            UsageError: No example of the plan can be decoded.
        """
        said, decodable = [], 0
        for task in plan.tasks:
            problems = []
            for example in task.examples:
                try:
                    self.of(task, example)
                    decodable += 1
                except SpecbenchError as error:
                    problems.append(str(error))
            if problems:
                said.append(
                    f"{len(problems)} of {len(task.examples)} examples of {task.task.name} cannot "
                    f"be decoded, the first because {problems[0]}"
                )
        if not decodable:
            raise UsageError("; ".join(said))
        for text in said:
            log.warning(text)

    def _limit(self, plan: TaskPlan, example: Example) -> int | None:
        """Most tokens of a prompt: what the user says, and what the models take of one to cut."""
        wanted, context = self._settings.max_prompt_tokens, self._pair.context
        if context is None or not example.passage:
            return wanted
        longest = max(cell.draft_length for cell in plan.cells)
        room = context - plan.max_new_tokens - longest - 1
        return wanted if room < 1 else min(room, wanted or room)

    def longest(self, plan: Plan) -> int:
        """Return the tokens of the longest text that may come of a plan, drafts included."""
        found = 1
        for task in plan.tasks:
            room = task.max_new_tokens + max(cell.draft_length for cell in task.cells) + 1
            for example in task.examples:
                with suppress(SpecbenchError):  # said again when its turn comes
                    found = max(found, len(self.of(task, example).ids) + room)
        return found

    def first(self, plan: Plan) -> dict[str, list[int] | None]:
        """Return the ids of every task's first prompt, None where it cannot be made."""
        found: dict[str, list[int] | None] = dict.fromkeys(t.task.name for t in plan.tasks)
        for task in plan.tasks:
            with suppress(SpecbenchError):
                found[task.task.name] = self.of(task, task.examples[0]).ids
        return found
