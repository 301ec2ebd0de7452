"""One prompt or conversation of a task, with its reference answers or tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

from specbench.errors import require

# Prompt formats: with the model's chat template, or unchanged.
CHAT, PLAIN = "chat", "plain"

Message = Mapping[str, Any]  # of a conversation, in the form of OpenAI's API


class Answered(Protocol):
    """What a sample's record tells of the answer to an example."""

    turn: int | None
    greedy: str | None
    stopped_by: str | None


@dataclass(frozen=True)
class Example:
    """One prompt or conversation, with its reference answers or tests."""

    id: str  # unique within its task and split
    # Text given to the models; of a conversation, the user's first message, or the last one if the
    # messages before it are in ``conversation``.
    prompt: str
    reference: str | None = (
        None  # correct answer, if known; of a conversation, to the first message
    )
    tests: tuple[str, ...] = ()  # Python statements that a generated program must pass
    passage: str = ""  # part of the prompt whose end may be cut, such as the article to summarise
    code_prefix: str = ""  # before a generated continuation, such as HumanEval's signature
    entry_point: str = ""  # function that a generated program must define
    category: str = ""  # group of examples, such as a domain
    turns: tuple[str, ...] = ()  # all messages of the user, if there are several, the prompt first
    references: tuple[str | None, ...] = ()  # correct answers of the turns
    alternatives: tuple[tuple[str, ...], ...] = ()  # further ones, by turn: the best one counts
    # A conversation that one answer continues; the last message has the prompt.
    conversation: tuple[Message, ...] = ()
    greedy: str | None = None  # the target's own greedy text, known only while a sample is scored
    cut: bool = False  # whether the limit on new tokens cut the answer, likewise
    columns: Mapping[str, Any] | None = field(default=None, compare=False)  # others of its row

    @property
    def messages(self) -> tuple[str, ...]:
        """All messages of the user: one, or one per turn."""
        return self.turns or (self.prompt,)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of all messages that are known before any answer."""
        return tuple(map(text_of, self.conversation)) or self.messages

    @property
    def question(self) -> tuple[object, ...]:
        """All that a model is given; examples with the same question are one prompt."""
        return self.prompt.strip(), self.turns, repr(self.conversation)

    def chat(self, answers: Sequence[str] = ()) -> list[Message]:
        """Return the messages up to the prompt, or to the user's message after ``answers``."""
        if self.conversation:
            return [*self.conversation]
        later = chain.from_iterable(zip(answers, self.messages[1:], strict=False))
        roles = ("user", "assistant")
        return [
            {"role": roles[number % 2], "content": text}
            for number, text in enumerate((self.messages[0], *later))
        ]

    def scored(self, record: Answered) -> Example:
        """Return the example that scores the text of a record, which may be of one turn."""
        outcome: dict[str, Any] = {"greedy": record.greedy, "cut": record.stopped_by == "length"}
        if not (turn := record.turn):
            return replace(self, **outcome)
        there = 1 <= turn <= len(self.turns)
        require(there, f"{self.id} has no turn {turn}: it was not recorded with this example")
        prompt, reference = self.turns[turn - 1], self.references[turn - 1]
        outcome["alternatives"] = self.alternatives[turn - 1 : turn]
        return replace(self, prompt=prompt, reference=reference, **outcome)

    def each_turn(self) -> list[Example]:
        """Return the example of each turn, by which its answer is scored; itself without turns."""
        turns = enumerate(zip(self.turns, self.references, strict=False))
        return [
            replace(self, prompt=prompt, reference=text, alternatives=self.alternatives[i : i + 1])
            for i, (prompt, text) in turns
        ] or [self]

    def with_each_reference(self) -> list[Example]:
        """Return an example with each correct answer to its prompt, this one first."""
        others = self.alternatives[0] if self.alternatives else ()
        return [self, *(replace(self, reference=other) for other in others)]

    def identity(self) -> dict[str, Any]:
        """Return the values that determine a sample; parts of conversations only in these."""
        left_out = {"category", "greedy", "cut", "columns"}
        left_out |= set() if self.turns else {"turns", "references"}
        left_out |= {name for name in ("conversation", "alternatives") if not getattr(self, name)}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def repeated_prompts(examples: Collection[Example]) -> dict[str, str]:
    """Return the ids of examples whose prompt an earlier one has, with the first one's id."""
    first: dict[tuple[object, ...], str] = {}
    for example in examples:
        first.setdefault(example.question, example.id)
    return {e.id: first[e.question] for e in examples if first[e.question] != e.id}


def text_of(message: Message) -> str:
    """Return the text of a message, whose content may be a list of texts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
