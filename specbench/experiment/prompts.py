"""The prompts of a plan as token ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from specbench.engine.loading import LoadedPair, Reader
from specbench.engine.prompts import Encoded, encode
from specbench.engine.runner import require_context
from specbench.errors import SpecbenchError, UsageError
from specbench.example import CHAT, Example
from specbench.experiment.plan import Plan, TaskPlan
from specbench.experiment.settings import Settings


class Prompts:
    """The examples' prompts as token ids, each made once, for all cells alike."""

    def __init__(self, pair: LoadedPair | Reader, settings: Settings) -> None:
        """Take a pair.

        Raises:
            UsageError: Chat prompts are asked for of a tokenizer that has no template for them.
        """
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
            self._known[key] = encode(
                self._pair.tokenizer,
                example.prompt,
                passage=example.passage,
                prompt_format=self._settings.prompt_format or plan.task.prompt_format,
                limit=self._limit(plan, example),
                thinking=self._pair.thinking,
            )
        found = self._known[key]
        require_context(self._pair.context, len(found.ids), plan.max_new_tokens)
        return found

    def too_long(self, plan: Plan) -> Iterator[str]:
        """Yield a sentence for every task of which some examples cannot be decoded.

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
        yield from said

    def _limit(self, plan: TaskPlan, example: Example) -> int | None:
        """Most tokens of a prompt: what the user says, and what the models take of one to be cut.

        What cannot be cut is refused by the context that it exceeds.
        """
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
        found: dict[str, list[int] | None] = {}
        for task in plan.tasks:
            found[task.task.name] = None
            with suppress(SpecbenchError):
                found[task.task.name] = self.of(task, task.examples[0]).ids
        return found
