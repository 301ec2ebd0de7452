"""The rows that texts are decoded in, and what is known of each text on its way."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specbench.decoding.records import Generation, RoundRecord, StopReason
from specbench.decoding.round import Round
from specbench.decoding.sampling import uniforms
from specbench.engine.loading import LoadedPair
from specbench.errors import RunError


class Request(NamedTuple):
    """A text to decode.

    Attributes:
        prompt: At least one token.
        key: Identity of the sample; with the seed it decides every draw.
    """

    prompt: Sequence[int]
    key: str


@dataclass
class Text:
    """A text on its way.

    Attributes:
        number: Of the request that it answers.
        begin: Tokens of its prompt.
        began: When its prompt was begun, in seconds.
        prefilled: When its prompt was read.
        output: Tokens so far.
        rounds: Every round's outcome, drafts accepted and tokens kept.
    """

    number: int
    begin: int
    began: float
    prefilled: float
    output: list[int] = field(default_factory=list)
    rounds: list[tuple[Round, int, int]] = field(default_factory=list)


class Rows:
    """B rows on the device, each with a text or idle; a text that ends makes room for the next.

    An idle row is one token long and stays so, whatever a round writes behind it.

    Attributes:
        tokens: ``[B, capacity]`` all tokens of every text.
        length: ``[B]`` how many there are.
        finished: Generations by the number of their request.
    """

    def __init__(
        self,
        pair: LoadedPair,
        requests: Sequence[Request],
        size: int,
        draft_length: int,
        limit: int,
        seed: int,
        stop: Sequence[str],
    ) -> None:
        """Take in the first texts; for the arguments see ``loop.decode_all``."""
        self._pair, self._n = pair, draft_length
        self._limit, self._seed, self._stop = limit, seed, stop
        self._runners = [pair.target, pair.draft] if draft_length else [pair.target]
        longest = max(len(request.prompt) for request in requests)
        self._require_context(longest)
        size, device = min(size, len(requests)), pair.target.device
        capacity = longest + limit + draft_length + 1
        for runner in self._runners:
            capacity = runner.reserve(size, capacity)
        self.tokens = torch.zeros(size, capacity, dtype=torch.long, device=device)
        self.length = torch.ones(size, dtype=torch.long, device=device)
        self.finished: dict[int, Generation] = {}
        self._index = torch.arange(size, device=device)
        self._going = torch.zeros_like(self.length)
        self._round = torch.zeros_like(self.length)
        self._chances = torch.zeros(
            size, limit, 2 * draft_length + 1, dtype=torch.float64, device=device
        )
        self._waiting = iter(enumerate(requests))
        self._texts: list[Text | None] = [self._join(row) for row in range(size)]

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is going on; 0 where none is."""
        return max((text.begin + len(text.output) for text in self._texts if text), default=0)

    @property
    def reach(self) -> int | None:
        """Positions that a round looks at before it drafts; None where shapes are fixed: all."""
        return None if self._pair.engine.static else self.longest

    def chance(self) -> torch.Tensor:
        """Return the uniform numbers of every text's next round, ``[B, 2 N + 1]``."""
        return self._chances[self._index, self._round]

    def advance(self, outcome: Round) -> None:
        """Take in what a round appended, and let the next texts join where one has ended."""
        fresh = self.length[:, None] + torch.arange(self._n + 1, device=self.length.device)
        # The one moment of a round at which the host waits for the device.
        said = torch.cat((outcome.accepted[:, None], self.tokens.gather(1, fresh)), 1).tolist()
        self.length += self._going * (outcome.accepted + 1)
        self._round += self._going
        for row, (text, (accepted, *tokens)) in enumerate(zip(self._texts, said, strict=True)):
            if text is None:
                continue
            kept, reason = self._append(text.output, tokens[: accepted + 1])
            text.rounds.append((outcome, accepted, kept))
            if reason is not None:
                self.finished[text.number] = self._generation(text, row, reason)
                self._texts[row] = self._join(row)

    def _join(self, row: int) -> Text | None:
        """Read the prompt of the next text into a row; without one the row is idle."""
        number, request = next(self._waiting, (0, None))
        self._going[row] = request is not None
        if request is None:
            self.length[row], self._round[row] = 1, 0
            return None
        began, begin = _now(self.tokens.device), len(request.prompt)
        self.tokens[row, :begin] = torch.tensor(request.prompt)
        for runner in self._runners:
            runner.prefill(self.tokens[row, :begin], row)
        self.length[row] = begin
        self._round[row] = 0
        self._chances[row] = uniforms(self._seed, request.key, self._limit, self._n)
        return Text(number, begin, began, _now(self.tokens.device))

    def _append(self, output: list[int], fresh: list[int]) -> tuple[int, StopReason | None]:
        """Append a round's tokens up to where the output ends; return how many and why it ended."""
        stops = self._stops(output + fresh)  # once a round: decoding text takes its time
        for kept, token in enumerate(fresh, 1):
            output.append(token)
            if token in self._pair.eos_ids:
                return kept, "eos"
            if stops and self._stops(output):
                return kept, "stop"
            if len(output) == self._limit:
                return kept, "length"
        return len(fresh), None

    def _stops(self, output: list[int]) -> bool:
        """Tell whether a stop string has appeared."""
        if not self._stop:
            return False
        said = self._pair.tokenizer.decode(output)
        return any(string in said for string in self._stop)

    def _generation(self, text: Text, row: int, reason: StopReason) -> Generation:
        finished = _now(self.tokens.device)
        ids = text.output[:-1] if reason == "eos" else text.output
        said = str(self._pair.tokenizer.decode(ids, skip_special_tokens=True))
        for string in self._stop:
            said = said.split(string, 1)[0]
        return Generation(
            token_ids=ids,
            text=said,
            prompt_tokens=text.begin,
            output_tokens=len(text.output),
            stopped_by=reason,
            prefill_seconds=text.prefilled - text.began,
            decode_seconds=finished - text.prefilled,
            rounds=_records(text, row, self._n),
        )

    def _require_context(self, longest: int) -> None:
        context = min((r.context for r in self._runners if r.context), default=math.inf)
        if longest + self._limit > context:
            raise RunError(
                f"a prompt of {longest} tokens and {self._limit} new ones exceed the context of "
                f"{context}: shorten the prompt or lower --max-new-tokens"
            )


def _records(text: Text, row: int, n: int) -> list[RoundRecord]:
    """Count every round of a text; what the rule said comes from the device at one go."""
    outcomes = [outcome for outcome, _, _ in text.rounds]
    expected = torch.stack([outcome.expected[row] for outcome in outcomes]).tolist()
    known = [outcome.weights[row] for outcome in outcomes if outcome.weights is not None]
    weights = torch.stack(known).tolist() if known else [[]] * len(outcomes)
    records = []
    for (_, accepted, kept), said, weighed in zip(text.rounds, expected, weights, strict=True):
        whole = kept == accepted + 1
        judged = min(accepted + 1, n) if whole else kept
        records.append(
            RoundRecord(
                proposed=n if whole else kept,
                accepted=accepted if whole else kept,
                emitted=kept,
                expected=tuple(said[:judged]),
                weights=tuple(weighed[:judged]),
            )
        )
    return records


def _now(device: torch.device) -> float:
    """Seconds on a clock that has waited for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
