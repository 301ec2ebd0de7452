"""The rows that texts are decoded in, and what is known of each text on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specbench.decoding.records import (
    Generation,
    Report,
    RoundRecord,
    StopReason,
    read_report,
)
from specbench.decoding.round import Lap, Round
from specbench.decoding.sampling import uniforms
from specbench.engine.clock import now, seconds_between
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import require_context


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
        prefill_seconds: Reading its prompt.
        decode_seconds: Its share of the rounds so far.
        output: Tokens so far.
        rounds: What it made of every round.
        laps: Moments of every round, and the number of texts that shared it.
    """

    number: int
    begin: int
    began: float
    prefill_seconds: float
    decode_seconds: float = 0.0
    output: list[int] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    laps: list[tuple[Lap, int]] = field(default_factory=list)


class Rows:
    """B rows on the device, each with a text or idle; a text that ends makes room for the next.

    An idle row is one token long and stays so, whatever a round writes into its slots.

    Attributes:
        last: ``[B, 2]`` the two newest tokens of every text.
        length: ``[B]`` tokens of every text so far.
        going: ``[B]`` which rows have a text.
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
        require_context(pair.context, longest, limit)
        device = pair.target.device
        capacity = longest + limit + draft_length + 1
        for runner in self._runners:
            capacity = runner.reserve(size, capacity)
        self.last = torch.zeros(size, 2, dtype=torch.long, device=device)
        self.length = torch.ones(size, dtype=torch.long, device=device)
        self._index = torch.arange(size, device=device)
        self.going = torch.zeros(size, dtype=torch.bool, device=device)
        self._round = torch.zeros_like(self.length)
        self._chances = torch.zeros(
            size, limit, 2 * draft_length + 1, dtype=torch.float64, device=device
        )
        self._waiting = iter(enumerate(requests))
        self._texts: list[Text | None] = [self._join(row) for row in range(size)]
        self._since = 0.0

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

    def begin(self) -> None:
        """Start the clock of a round."""
        self._since = now(self.last.device)

    def advance(self, outcome: Round, lap: Lap) -> list[tuple[int, Generation]]:
        """Take in what a round chose, and let the next texts join where one has ended.

        Returns:
            The texts that have ended, by the numbers of their requests.
        """
        # The one moment of a round at which the host waits for the device.
        reports = [read_report(row) for row in outcome.report.tolist()]
        self.last.copy_(outcome.last)
        self.length.copy_(torch.where(self.going, outcome.length, self.length))
        self._round += self.going
        going = [(row, text) for row, text in enumerate(self._texts) if text is not None]
        reasons = [self._append(text, reports[row]) for row, text in going]
        judged = now(self.last.device)
        share = (judged - self._since) / len(going)
        ended = []
        for (row, text), reason in zip(going, reasons, strict=True):
            text.decode_seconds += share
            text.laps.append((lap, len(going)))
            if reason is not None:
                # Before another text joins, whose prompt is none of this one's time.
                ended.append((text.number, self._generation(text, reason, judged)))
                self._texts[row] = self._join(row)
        return ended

    def _join(self, row: int) -> Text | None:
        """Read the prompt of the next text into a row; without one the row is idle."""
        number, request = next(self._waiting, (0, None))
        self.going[row] = request is not None
        if request is None:
            self.length[row], self._round[row] = 1, 0
            return None
        began, begin = now(self.last.device), len(request.prompt)
        prompt = torch.tensor(request.prompt, device=self.last.device)
        for runner in self._runners:
            runner.prefill(prompt, row)
        self.last[row] = prompt[[-2, -1]] if begin > 1 else prompt
        self.length[row] = begin
        self._round[row] = 0
        self._chances[row] = uniforms(self._seed, request.key, self._limit, self._n)
        return Text(number, begin, began, now(self.last.device) - began)

    def _append(self, text: Text, report: Report) -> StopReason | None:
        """Append a round's tokens up to where the output ends; return why it has ended."""
        fresh = report.fresh[: report.accepted + 1]
        expected = text.begin + len(text.output) + len(fresh)
        # What the models have read is told by this number alone.
        assert report.length == expected, f"a text of {expected} tokens has {report.length}"
        stops = self._stops(text.output + fresh)  # once a round: decoding text takes its time
        reason: StopReason | None = None
        kept = 0
        while reason is None and kept < len(fresh):
            text.output.append(fresh[kept])
            kept += 1
            if text.output[-1] in self._pair.eos_ids:
                reason = "eos"
            elif stops and self._stops(text.output):
                reason = "stop"
            elif len(text.output) == self._limit:
                reason = "length"
        text.rounds.append(report.record(kept))
        return reason

    def _stops(self, output: list[int]) -> bool:
        """Tell whether a stop string has appeared."""
        if not self._stop:
            return False
        said = self._pair.tokenizer.decode(output)
        return any(string in said for string in self._stop)

    def _generation(self, text: Text, reason: StopReason, finished: float) -> Generation:
        ids = text.output[:-1] if reason == "eos" else text.output
        said = str(self._pair.tokenizer.decode(ids, skip_special_tokens=True))
        for string in self._stop:
            said = said.split(string, 1)[0]
        draft, verify, accept = (
            sum(seconds_between(lap[part], lap[part + 1]) / sharing for lap, sharing in text.laps)
            for part in range(3)
        )
        return Generation(
            token_ids=ids,
            text=said,
            prompt_tokens=text.begin,
            output_tokens=len(text.output),
            stopped_by=reason,
            prefill_seconds=text.prefill_seconds,
            decode_seconds=text.decode_seconds,
            draft_seconds=draft,
            verify_seconds=verify,
            accept_seconds=accept,
            latency_seconds=finished - text.began,
            rounds=text.rounds,
        )
