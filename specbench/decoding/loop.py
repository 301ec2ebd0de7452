"""The decoding loop, for all methods and batches of texts.

A text occupies a row of the batch until it ends; then the next text takes the row. Each text has
its own random numbers and rows do not interact, so its distribution depends neither on the other
rows nor on when it joined. The text itself may change, since kernels round differently at other
batch sizes. This hardly ever changes a token in float32, and sometimes in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding import records
from specbench.decoding.drafting import Drafter, State, context_of
from specbench.decoding.round import StepOutput, StepTimes, speculative_step
from specbench.decoding.sampling import Sampling, uniforms
from specbench.engine.cache import require_context
from specbench.engine.device import now, seconds_between
from specbench.engine.pair import LoadedPair
from specbench.errors import RunError
from specbench.methods import Rule
from specbench.methods.control import DraftControl
from specbench.methods.laws import BoundLaw
from specbench.plugins import function_name

MICROSECOND = 6  # decimals of recorded times: more are noise, and a third of a compressed run


class Request(NamedTuple):
    """A text to decode."""

    prompt: Sequence[int]  # at least one token
    key: str  # identity of the sample; determines all draws together with the seed


@dataclass(frozen=True)
class DecodeOptions:
    """How texts are decoded."""

    sampling: Sampling  # processing of the logits, the same for both models
    draft_length: int  # drafted tokens per round, N; ignored without a rule
    max_new_tokens: int  # limit on each output, including the end token
    seed: int = 0  # seed of the run
    stop: Sequence[str] = ()  # strings that end an output
    batch_size: int = 1  # texts decoded together
    drafter: Drafter = Drafter()  # noqa: RUF009 (frozen); proposes the drafts
    law: BoundLaw | None = None  # adds the log of p and of it for each token
    # decides in each round how many of the N tokens are drafted; None drafts all
    control: DraftControl | None = None


def decode(
    pair: LoadedPair, rule: Rule | None, request: Request, options: DecodeOptions
) -> records.Generation:
    """Decode one text; see ``decode_all``."""
    ((_, generation),) = decode_all(pair, rule, [request], options)
    return generation


def decode_all(
    pair: LoadedPair, rule: Rule | None, requests: Sequence[Request], options: DecodeOptions
) -> Iterator[tuple[int, records.Generation]]:
    """Decode texts in batches; yield index and generation of each request as soon as it ends.

    The parameters of ``rule`` are bound; None decodes autoregressively. Time spent by the consumer
    is not counted.
    """
    rule = rule if options.draft_length else None
    with torch.inference_mode():
        batch = Batch(pair, rule, requests, options)
    while batch.longest:
        with torch.inference_mode():
            now_rule = rule if batch.drafts else None
            started, state = perf_counter(), batch.state(drafts=now_rule is not None)
            parts = (options.sampling, options.drafter, options.control, options.law)
            outcome = speculative_step(pair, now_rule, state, *parts)
            ended = batch.advance(*outcome, started)
        paused = perf_counter()
        yield from ended
        batch.pause(perf_counter() - paused)


class RowTensors(NamedTuple):
    """What the device knows of the B rows of a batch, in memory that an engine reads directly."""

    last: Tensor  # [B, 2] see ``State``
    length: Tensor  # [B]
    uniforms: Tensor  # [B, 2 N + 1] of the next round
    active: Tensor  # [B] whether the row has a text


@dataclass
class ActiveText:
    """A text that is being decoded."""

    number: int  # index of its request
    prompt_tokens: int  # prompt length
    started: float  # start of its prefill, in seconds
    prefill_seconds: float
    decode_seconds: float = 0.0  # its share of the rounds so far
    full_rounds: int = 0  # rounds in which every row had a text
    full_seconds: float = 0.0  # its share of these
    output: list[int] = field(default_factory=list)  # tokens so far
    rounds: list[records.RoundRecord] = field(default_factory=list)  # one record per round
    # timestamps of every round, and the number of texts that shared it
    times: list[tuple[StepTimes, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.prompt_tokens + len(self.output)


class Batch:
    """B rows on the device, each with a text or idle; an ended text is replaced by the next.

    Rounds write to the slots of an idle row without effect, but not to those of its last prompt,
    which the next batch may have in the same row.
    """

    def __init__(
        self,
        pair: LoadedPair,
        rule: Rule | None,
        requests: Sequence[Request],
        options: DecodeOptions,
    ) -> None:
        """Prefill the first texts; see ``decode_all`` for the arguments."""
        self._n = draft_length = options.draft_length if rule else 0
        self._pair, self._rule, self._options = pair, rule, options
        self._drafter = drafter = options.drafter if draft_length else None
        self._context = context_of(drafter, pair) if drafter else None
        size, limit = options.batch_size, options.max_new_tokens
        longest = max(len(request.prompt) for request in requests)
        require_context(pair.context, longest, limit)
        capacity = longest + limit + draft_length + 1
        for runner in (pair.target, *(drafter.runners(pair) if drafter else ())):
            capacity = runner.reserve(size, capacity)
        device = pair.target.device
        draws = 2 * draft_length + 1
        self._rows: RowTensors = pair.engine.place(
            RowTensors(
                last=torch.zeros(size, 2, dtype=torch.long, device=device),
                length=torch.ones(size, dtype=torch.long, device=device),
                uniforms=torch.zeros(size, draws, dtype=torch.float64, device=device),
                active=torch.zeros(size, dtype=torch.bool, device=device),
            )
        )
        self._round = torch.zeros(size, dtype=torch.long, device=device)
        self._row = torch.arange(size, device=device)
        # One round more than a text can have, which is looked up before its end is known.
        self._uniforms = torch.zeros(size, limit + 1, draws, dtype=torch.float64, device=device)
        self._tokens: Tensor | None = None
        if drafter is not None and drafter.reads_text:
            self._tokens = torch.zeros(size, capacity, dtype=torch.long, device=device)
        self._states: Tensor | None = None
        pair.target.layers = drafter.layers if drafter else ()
        if drafter is not None and drafter.layers:
            shape = (size, 1 + draft_length, len(drafter.layers) * pair.target.hidden_size)
            self._states = torch.zeros(shape, dtype=pair.target.dtype, device=device)
        self._waiting = iter(enumerate(requests))
        self._texts: list[ActiveText | None] = [self._join(row) for row in range(size)]

    @property
    def longest(self) -> int:
        """Length of the longest text in the batch, in tokens; 0 if all rows are idle."""
        return max((len(text) for text in self._texts if text), default=0)

    @property
    def drafts(self) -> bool:
        """Whether the drafter can still read one of the texts; static engines draft in any case."""
        if self._context is None or self._options.law is not None or self._pair.engine.static:
            return True
        return any(len(text) <= self._context for text in self._texts if text)

    def state(self, drafts: bool = True) -> State:
        """Return the state of the texts before the next round, in which nothing may be drafted."""
        last, length, drawn, active = self._rows
        drawn = drawn if drafts or not self._n else drawn[:, -1:]
        kv_length = None if self._pair.engine.static else self.longest
        return State(last, length, drawn, active, kv_length, self._tokens, self._states)

    def pause(self, seconds: float) -> None:
        """Leave seconds that the consumer took out of the latency of all texts."""
        for text in filter(None, self._texts):
            text.started += seconds

    def advance(
        self, result: StepOutput, times: StepTimes, started: float
    ) -> list[tuple[int, records.Generation]]:
        """Apply the output of a round that started at ``started`` seconds.

        The next text joins in place of each text that ended. Returns the ended texts with the
        indices of their requests.
        """
        # Queued before the host waits, so that the device need not wait for the host.
        if self._tokens is not None:
            columns = records.report_columns(result.report.shape[1])
            new_tokens = result.report[:, columns["new_tokens"]].long()
            further = torch.arange(new_tokens.shape[1], device=new_tokens.device)
            positions = self._rows.length[:, None] + further
            self._tokens.scatter_(1, positions, new_tokens)  # rejected ones are overwritten
        if self._states is not None and result.states is not None:
            self._states.copy_(result.states)
        self._rows.last.copy_(result.last)
        self._rows.length.copy_(result.length)
        self._round += self._rows.active
        self._rows.uniforms.copy_(self._uniforms[self._row, self._round])
        # The only place in a round where the host waits for the device.
        reports = [records.read_report(row) for row in result.report.tolist()]
        laws = [[]] * len(reports) if result.laws is None else result.laws.tolist()
        texts = [(row, text) for row, text in enumerate(self._texts) if text is not None]
        reasons = [self._append(text, reports[row], laws[row]) for row, text in texts]
        finished = perf_counter()  # the report is here, so the round has ended
        ended = []
        for (row, text), reason in zip(texts, reasons, strict=True):
            text.decode_seconds += (finished - started) / len(texts)
            text.times.append((times, len(texts)))
            if len(texts) == len(self._texts):
                text.full_rounds += 1
                text.full_seconds += (finished - started) / len(texts)
            if reason is not None:
                # Before the next text joins, so that its prefill is not counted here.
                ended.append((text.number, self._generation(text, reason, finished)))
                self._texts[row] = self._join(row, text.prompt_tokens + 1)
        return ended

    def _join(self, row: int, idle_length: int = 1) -> ActiveText | None:
        """Prefill the next text in a row; without one, make the row idle with so many tokens."""
        number, request = next(self._waiting, (0, None))
        self._rows.active[row] = request is not None
        if request is None:
            self._rows.length[row], self._round[row] = idle_length, 0
            return None
        device, tokens = self._rows.last.device, len(request.prompt)
        started = now(device)
        prompt = torch.tensor(request.prompt, device=device)
        states = self._pair.target.prefill(prompt, row)
        started -= self._pair.target.saved_seconds
        if self._drafter is not None:
            self._drafter.prefill(self._pair, prompt, row, states)
            started -= sum(runner.saved_seconds for runner in self._drafter.runners(self._pair))
        if self._states is not None and states is not None:
            # In a shorter prompt, copies of the first state; nothing was read of a single token.
            states = states if len(states) else self._states.new_zeros(1, states.shape[1])
            window = torch.arange(-self._states.shape[1], 0, device=states.device) + len(states)
            self._states[row] = states[window.clamp_min(0)]
        if self._tokens is not None:
            self._tokens[row, :tokens] = prompt
        self._rows.last[row] = prompt[[-2, -1]] if tokens > 1 else prompt
        self._rows.length[row] = tokens
        self._round[row] = 0
        seed, limit = self._options.seed, self._options.max_new_tokens
        numbers = uniforms(seed, request.key, limit, self._n)
        self._uniforms[row, :limit] = numbers
        self._rows.uniforms[row] = numbers[0]
        seconds = now(device) - started
        return ActiveText(number, tokens, started, seconds)

    def _append(
        self, text: ActiveText, report: records.RoundReport, laws: Sequence[Sequence[float]]
    ) -> records.StopReason | None:
        """Append a round's tokens up to the end of the output; return why it ended, if it did."""
        if (fault := report.fault()) is not None:
            name = function_name(self._rule) if self._rule else "the target alone"
            raise RunError(f"{name}: {fault}, in round {len(text.rounds) + 1}")
        new_tokens = report.new_tokens[: report.accepted + 1]
        length = len(text) + len(new_tokens)
        # The device tracks what the models have read by this number alone.
        assert report.length == length, f"a text of {length} tokens has {report.length}"
        stops = self._stops(text.output + new_tokens)  # once per round, since detokenising is slow
        reason: records.StopReason | None = None
        emitted = 0
        while reason is None and emitted < len(new_tokens):
            text.output.append(new_tokens[emitted])
            emitted += 1
            if text.output[-1] in self._pair.eos_ids:
                reason = "eos"
            elif stops and self._stops(text.output):
                reason = "stop"
            elif len(text.output) == self._options.max_new_tokens:
                reason = "length"
        text.rounds.append(report.record(emitted, laws))
        return reason

    def _stops(self, output: list[int]) -> bool:
        """Return whether a stop string has appeared."""
        if not self._options.stop:
            return False
        text = self._pair.tokenizer.decode(output)
        return any(string in text for string in self._options.stop)

    def _generation(
        self, text: ActiveText, reason: records.StopReason, finished: float
    ) -> records.Generation:
        ids = text.output[:-1] if reason == "eos" else text.output
        draft, verify, accept = 0.0, 0.0, 0.0
        for step, sharing in text.times:
            draft += seconds_between(step.started, step.drafted) / sharing
            verify += seconds_between(step.drafted, step.verified) / sharing
            accept += seconds_between(step.verified, step.finished) / sharing
        times = {
            "prefill_seconds": text.prefill_seconds,
            "decode_seconds": text.decode_seconds,
            "draft_seconds": draft,
            "verify_seconds": verify,
            "accept_seconds": accept,
            "latency_seconds": finished - text.started,
            "full_seconds": text.full_seconds,
        }
        return records.Generation(
            token_ids=ids,
            text=self._pair.text_of(ids, self._options.stop),
            prompt_tokens=text.prompt_tokens,
            output_tokens=len(text.output),
            stopped_by=reason,
            rounds=text.rounds,
            shared_rounds=sum(1 / sharing for _, sharing in text.times),
            full_rounds=text.full_rounds,
            **{name: round(seconds, MICROSECOND) for name, seconds in times.items()},
        )
