"""Have servers decode and score the samples of a plan.

A server is an arm of a run beside methods: the same prompts, seeds and metrics. Requests of a block
are sent in the order of the plan, ``concurrency`` of them at once; all must have ended before
another arm gets the block. Wall times are those of the client. As in batches of our own engines,
prefill and decode times are a text's share: the time in which several requests are in flight is
split evenly among them, so all texts add up to the elapsed time.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from specbench.errors import RunError, SpecbenchError, UsageError
from specbench.experiment import measurements
from specbench.experiment.cells import CONCURRENCY
from specbench.experiment.environment import describe_environment
from specbench.experiment.plan import Plan, Step
from specbench.runs.model import ERROR, SampleRecord
from specbench.serving import server
from specbench.serving.answers import Acceptance, Answer, of_rounds, read_answer
from specbench.serving.arm import ARGUMENT, CHAT, ROUNDS, TOKENS, Arm
from specbench.serving.client import Client, Streamed
from specbench.serving.delivered import MOST_ROUNDS, Span, read_rounds, shares_of
from specbench.serving.values import quoted
from specbench.tasks.example import text_of
from specbench.tasks.prompts import tools_of
from specbench.tasks.thoughts import end_of

if TYPE_CHECKING:
    from specbench.experiment.prompts import EncodedPrompts

WARM_UP_TOKENS = 16
ARGUMENTS = "vllm_xargs"  # of a request to vLLM's plugins
NO_RULE = "no-such-rule"
MOST_FAILED = 5  # requests of an arm that fail one after the other
_COUNTER = re.compile(
    r"^\w+:spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total\S* "
    r"(\d+(?:\.\d+)?(?:e\+\d\d)?)$"
)
_OF_PROMPT = (400, 413, 422)  # statuses of a prompt: the warm-up was taken with the same options
# What servers say of a prompt that is longer than their context; another one may fit.
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size)|too[ _]long|maximum .{0,40}(length|tokens)|"
    r"exceeds? .{0,40}(context|length|tokens)|reduce the length",
    re.IGNORECASE,
)
_EMPTY = ("device", "draft_seconds", "verify_seconds", "accept_seconds")

log = logging.getLogger(__name__)


class ArmRunner:
    """Has servers decode the samples of a plan.

    ``prompts`` are as token ids, None if all arms get texts or messages. ``models`` is what the
    servers tell of themselves, by arm.
    """

    def __init__(self, plan: Plan, client: Client, prompts: EncodedPrompts | None = None) -> None:
        self._plan, self._client, self._prompts = plan, client, prompts
        self._servers = {arm.name: server.Server(arm.url, client, arm.model) for arm in plan.arms}
        self._arms = {arm.name: arm for arm in plan.arms}
        self._dialects = {name: server.Dialect() for name in self._arms}
        self.engine = ""  # of the methods that are measured beside the servers, if any
        self._remarks: dict[str, set[str]] = defaultdict(set)  # that were made, by arm
        self._failed: Counter[str] = Counter()  # requests in a row, by arm
        self.models = {arm.name: self._servers[arm.name].describe(arm.alias) for arm in plan.arms}
        first, *others = ((name, described["model"]) for name, described in self.models.items())
        for name, model in others:
            if not server.is_alias(first[1], model):
                log.warning(f"{name} runs {model}, and {first[0]} {first[1]}: arms of other models")
        # Servers whose answers do not tell all rounds; vLLM's tell none after a stop string.
        self._counting: set[str] = set()
        stops = any(step.plan.task.stop for step in plan.steps())
        for arm in plan.arms:
            acceptance = self._try(arm).acceptance
            if arm.rule:
                self._require_plugin(arm)
            complete = acceptance is not None and acceptance.rounds is not None and not stops
            if not complete and self._counters(arm):
                self._counting.add(arm.name)

    def run(self, steps: Sequence[Step]) -> Iterator[measurements.SampleResult]:
        """Decode a block of one arm; see ``SampleRunner.run``."""
        return measurements.by_turns(steps, self._run)

    def opening_facts(self) -> dict[str, Any]:
        """Return the content of ``environment.json``."""
        servers = {
            name: {
                "url": self._arms[name].url,
                **described,
                **self._dialects[name].described,
                **({"headers": [*self._client.headers]} if self._client.headers else {}),
            }
            for name, described in self.models.items()
        }
        return {**describe_environment(), "servers": servers}

    def _try(self, arm: Arm) -> Answer:
        """Send a short request, which also warms up, and learn which options the server takes."""
        body = self._body(self._first_step(arm), [], WARM_UP_TOKENS)
        self._dialects[arm.name], streamed = server.learn_dialect(
            body, lambda request: self._stream(arm, [request], 1)[0], {*self._filters, *arm.body}
        )
        if refused := self._dialects[arm.name].refused:
            unset = self._unset(arm)
            more = f" and {len(refused) - len(unset)} options that change no sampling"
            remark = f", so its own values may apply: {server.NEUTRAL_START}" if unset else ""
            names = ", ".join(unset or refused) + (more if 0 < len(unset) < len(refused) else "")
            log.warning(f"{arm.name} refuses {names}{remark}")
        return self._answer(arm, streamed)

    @property
    def _filters(self) -> dict[str, Any]:
        """The filters that the user asked for."""
        filters = {"top_k", "top_p", "min_p"}
        return self._plan.settings.model_dump(include=filters, exclude_none=True)

    def _unset(self, arm: Arm) -> list[str]:
        """Return the penalties and filters of which a server uses its own values."""
        return self._dialects[arm.name].unset(self.models[arm.name].get("software"))

    def _require_plugin(self, arm: Arm) -> None:
        """Refuse a server that would ignore the rule of an arm, as one without the plugin does."""
        body = self._body(self._first_step(arm), [], WARM_UP_TOKENS)
        (streamed,) = self._stream(arm, [body | _asking(NO_RULE)], 1)
        if not streamed.error:
            raise UsageError(
                f"the server of {arm.name} ignores --rule, since it is no vLLM with specbench's "
                "plugin: start it by `specbench serve` (see `specbench docs vllm`)"
            )

    def _first_step(self, arm: Arm) -> Step:
        """Return the arm's step with the shortest prompt, which its server takes if any."""
        steps = (step for step in self._plan.steps() if step.cell.method == arm.name)
        return min(steps, key=lambda step: len(str(step.example.texts)))

    def _run(
        self, steps: Sequence[Step], answers: measurements.Answers
    ) -> Iterator[measurements.SampleResult]:
        """Decode one turn of each step, after the answers to the turns before."""
        arm = self._arms[steps[0].cell.method]
        ready, bodies = [], []
        for step in steps:
            try:
                bodies.append(self._body(step, measurements.earlier_answers(step, answers)))
                ready.append(step)
            except SpecbenchError as error:
                yield step, self._record_failure(step, error)
        # Counters are those of all requests, so they tell about a text that is alone.
        alone = len(bodies) == 1 and arm.name in self._counting
        counters = self._counters(arm) if alone else {}
        streams = self._stream(arm, bodies, steps[0].cell.values[CONCURRENCY])
        decoded: list[tuple[Step, Streamed, Answer]] = []
        for step, body, streamed in zip(ready, bodies, streams, strict=True):
            try:
                limit, stop = step.plan.max_new_tokens, body.get("stop", ())
                answer = self._answer(arm, streamed, limit, stop)
                if not streamed.retries:  # else the rounds may be those of all attempts
                    answer = self._with_rounds(arm, body, answer, counters)
                answer = self._with_thoughts(arm, body, answer)
                for contradiction in answer.contradictions:
                    self._remark(arm, f"{contradiction}, see the page servers")
                if streamed.waited:
                    self._remark(arm, "it lets requests wait (Retry-After), which is not timed")
                decoded.append((step, streamed, answer))
                self._failed[arm.name] = 0
            except UsageError as error:
                of_prompt = streamed.status in _OF_PROMPT or _TOO_LONG.search(streamed.error)
                self._failed[arm.name] += not of_prompt
                reason = str(error)
                yield step, self._record_failure(step, error)
        spans: list[Span] = []
        for _, (began, seconds, *_), answer in decoded:
            first = seconds if answer.first_token is None else answer.first_token
            spans.append((began, began + first, began + seconds))
        for (step, streamed, answer), share in zip(decoded, shares_of(spans), strict=True):
            try:
                result = self._scored(step, streamed, answer, share)
            except SpecbenchError as error:  # a score that no file can hold fails one sample
                result = self._record_failure(step, error)
            yield step, result
        if self._failed[arm.name] >= MOST_FAILED:  # after what has arrived is recorded
            raise RunError(
                f"{MOST_FAILED} requests to {arm.name} failed one after the other, the last since "
                f"{reason}; run the same command to go on"
            )

    def _body(self, step: Step, answers: Sequence[str], most: int | None = None) -> dict[str, Any]:
        """Return the request for a step's text."""
        arm, task, settings = self._arms[step.cell.method], step.plan, self._plan.settings
        key = f"{settings.seed}/{step.sample_key}".encode()
        body = {
            **server.OPTIONS | server.MEASURED | self._filters,
            "model": self.models[arm.name]["model"],
            "temperature": settings.temperature,
            server.LIMIT: min(task.max_new_tokens, most or task.max_new_tokens),
            "seed": int.from_bytes(blake2b(key, digest_size=4).digest()) >> 1,
            "stream": True,
        }
        body |= {"stop": list(task.task.stop)} if task.task.stop else {}
        body |= _asking(arm.rule) if arm.rule else {}
        body = self._dialects[arm.name].of(body | dict(arm.body))
        if arm.prompts == TOKENS:
            assert self._prompts is not None
            return body | {"prompt": self._prompts.of(task, step.example, answers).ids}
        messages = step.example.chat(answers)
        if arm.prompts == CHAT:
            tools = tools_of(step.example.columns)
            return body | {"messages": messages} | ({"tools": tools} if tools else {})
        return body | {"prompt": "\n\n".join(map(text_of, messages))}

    def _stream(
        self, arm: Arm, bodies: Sequence[Mapping[str, Any]], requests: int
    ) -> list[Streamed]:
        of_arm = self._servers[arm.name]
        # Open connections first: handshakes are no time of the server's.
        self._client.get_content(f"{of_arm.base}/models", min(requests, len(bodies)))
        path = of_arm.chat_endpoint if arm.prompts == CHAT else of_arm.endpoint
        return self._client.stream(path, bodies, requests)

    def _answer(
        self, arm: Arm, streamed: Streamed, limit: int = MOST_ROUNDS, stop: Sequence[str] = ()
    ) -> Answer:
        """Return the answer in a stream, of at most ``limit`` tokens."""
        if streamed.error:
            raise UsageError(streamed.error)
        tokenizer = None if self._prompts is None else self._prompts.tokenizer
        chat = arm.prompts == CHAT
        answer = read_answer(streamed, chat, limit=limit, tokenizer=tokenizer, stop=stop)
        described = self.models[arm.name]
        name, model = quoted(answer.model or "", server.LONGEST_NAME), described["model"]
        if name in ("", model, arm.alias, *described.get("aliases", ())):
            return answer
        if not server.is_alias(model, name):
            raise UsageError(
                f"{arm.name} answers as the model {name}, not as {model}: if these are two names "
                f"of one model, add --alias {arm.name}={name}, and else name it behind the address"
            )
        self._remark(arm, f"it answers as {name}, a form of the name {model}")
        return answer

    def _remark(self, arm: Arm, text: str) -> None:
        """Print a remark on an arm once."""
        if text not in self._remarks[arm.name]:
            self._remarks[arm.name].add(text)
            log.warning(f"{arm.name}: {text}")

    def _with_rounds(
        self, arm: Arm, body: Mapping[str, Any], answer: Answer, before: Mapping[str, float]
    ) -> Answer:
        """Return an answer with its rounds by specbench's plugin, or by the server's counters."""
        key, reported = body.get(ARGUMENTS, {}).get(ROUNDS), answer.acceptance
        url = f"{self._servers[arm.name].base}/{ROUNDS}/{key}"
        if key and answer.output_tokens and (rounds := self._client.get(url)):
            vocabulary = None if self._prompts is None else len(self._prompts.tokenizer)
            read = read_rounds(rounds, answer.output_tokens, vocabulary)
            return answer._replace(acceptance=of_rounds(read))
        if before and (reported is None or reported.rounds is None):
            return answer._replace(acceptance=_difference(before, self._counters(arm)) or reported)
        return answer

    def _with_thoughts(self, arm: Arm, body: Mapping[str, Any], answer: Answer) -> Answer:
        """Return an answer with its tokens of thoughts, which a prompt of tokens may have begun."""
        if arm.prompts != TOKENS or self._prompts is None:
            return answer
        tokenizer, tokens = self._prompts.tokenizer, answer.token_ids or []
        if (end_of(answer.text) is None) != (end_of(str(tokenizer.decode(tokens))) is None):
            return answer  # a text without the mark that its tokens have, or without tokens
        counted = answer.output_tokens or len(tokens)
        thoughts = measurements.thought_tokens(tokenizer, body["prompt"], tokens, counted)
        return answer._replace(thought_tokens=thoughts)

    def _counters(self, arm: Arm) -> dict[str, float]:
        """Return the sums of a server's counters of speculation; empty if it has none."""
        root = self._servers[arm.name].base.removesuffix("/v1")
        counters: dict[str, float] = {}
        metrics = self._client.get_content(f"{root}/metrics").decode(errors="replace")
        for line in metrics.splitlines():
            if match := _COUNTER.match(line):
                counters[match[1]] = counters.get(match[1], 0) + float(match[2])
        return counters

    def _scored(
        self, step: Step, streamed: Streamed, answer: Answer, share: tuple[float, float]
    ) -> SampleRecord:
        """Return the record of an answer."""
        arm, text = self._arms[step.cell.method], answer.text
        seconds, tokens = sum(share), answer.output_tokens
        name = quoted(answer.model or self.models[arm.name]["model"], server.LONGEST_NAME)
        names = [described["model"] for described in self.models.values()]
        record = self._plan.identify(step, self.engine).filled(
            **dict.fromkeys(_EMPTY),
            **_acceptance_columns(answer.acceptance),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=tokens,
            tokens_per_second=tokens / seconds if tokens and seconds else None,
            thought_tokens=answer.thought_tokens,
            repetition=measurements.repetition(answer.token_ids or text),
            prefill_seconds=share[0],
            decode_seconds=share[1],
            latency_seconds=streamed.seconds,
            first_token_seconds=answer.first_token,
            inter_token_seconds=answer.inter_token_seconds,
            retries=streamed.retries,
            refused=int(answer.refused),
            content=answer.content,
            # An earlier arm's, if it is the same.
            server_model=next((other for other in names if server.is_alias(other, name)), name),
            delivered_bytes=answer.delivered_bytes,
            contradictions="; ".join(answer.contradictions) or None,
            options_refused=", ".join(self._unset(arm)) or None,
            stopped_by=answer.stopped_by,
            finish_reason=answer.finish_reason,
            text=text,
            token_ids=answer.token_ids or [],
            chunk_seconds=[round(seconds, 6) for seconds, _ in streamed.events],
        )
        metrics, example = step.plan.task.metrics, step.example.scored(record)
        scores = measurements.score_text(
            metrics, record, example, may_execute=self._plan.may_execute
        )
        return record.filled(**scores)

    def _record_failure(self, step: Step, error: Exception) -> SampleRecord:
        identity = self._plan.identify(step, self.engine)
        return identity.filled(status=ERROR, error=measurements.describe_error(error))


def _asking(rule: str) -> dict[str, Any]:
    """Return the part of a request that names a rule, and a key by which its rounds are read."""
    return {ARGUMENTS: {ARGUMENT: rule, ROUNDS: token_hex()}}


def _acceptance_columns(acceptance: Acceptance | None) -> dict[str, Any]:
    """Return the columns of acceptance; None where the server does not tell."""
    counts = ("rounds", "proposed", "accepted", "judged")
    names = (*counts, "draft_acceptance_rate", "acceptance_length")
    if acceptance is None:
        return {**dict.fromkeys(names), **measurements.columns_of_rounds(())}
    rounds, proposed, accepted, by_round = acceptance
    emitted = sum(r.emitted for r in by_round) if by_round else accepted + (rounds or 0)
    rates = (accepted / proposed if proposed else None, emitted / rounds if rounds else None)
    values = (rounds, proposed, accepted, acceptance.judged, *rates)
    return {**dict(zip(names, values, strict=True)), **measurements.columns_of_rounds(by_round)}


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> Acceptance | None:
    """Return the acceptance between two readings of a server's counters."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    counts = [int(after[n] - before[n]) for n in names if n in after and n in before]
    if len(counts) < len(names):
        return None
    rounds, proposed, accepted = counts
    possible = rounds >= 0 and 0 <= accepted <= proposed  # the server may start again
    return Acceptance(rounds, proposed, accepted) if possible else None
