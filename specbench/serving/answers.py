"""What a server streams as an answer, and how engines report their acceptance in it.

Engines count differently (see the page ``servers``), so an engine's own numbers are brought to one
definition: a round is a target pass over drafts, and its counts stop where the text ends. A report
of another engine is one more function in ``REPORTS``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.decoding.records import RoundRecord
from specbench.errors import UsageError, require
from specbench.serving import delivered
from specbench.serving.client import API, Streamed
from specbench.serving.values import FILTERED, end_of, excerpt, reason_of, whole
from specbench.tasks.thoughts import end_of as end_of_thoughts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Values = Mapping[str, Any]
VERBOSE = "__verbose"  # a part of llama.cpp's answers
#: Refusals begin like this; a selection from Zou et al. 2023, arXiv:2307.15043.
REFUSALS = (
    *("i'm sorry, but", "i am sorry, but", "sorry, but i", "i apologize, but", "as an ai"),
    *("i cannot", "i can't", "i am unable to", "i'm unable to", "i won't", "i must decline"),
)


class Acceptance(NamedTuple):
    """The acceptance that a server reports for a text."""

    rounds: int | None  # None if the server does not tell
    proposed: int
    accepted: int
    by_round: tuple[RoundRecord, ...] = ()  # every round; empty if only their sums are known

    @property
    def judged(self) -> int | None:
        """Drafts that were accepted, and the first rejection of each round; None if unknown."""
        judged = [min(r.accepted + 1, r.proposed) for r in self.by_round]
        return sum(judged) if judged else None


class Answer(NamedTuple):
    """A text that a server wrote, with wall times in seconds since its request was sent."""

    text: str  # with calls of tools
    content: str  # see ``content_of``
    token_ids: list[int] | None  # without the end token; None if the server returns none
    prompt_tokens: int | None
    output_tokens: int | None
    stopped_by: str | None
    first_token: float | None  # None if the answer came at once
    inter_token_seconds: float | None  # mean time between tokens after the first ones; likewise
    model: str | None
    acceptance: Acceptance | None
    finish_reason: str | None  # in the server's own word
    cached_tokens: int | None  # of the prompt, which were not read again; None if it does not tell
    delivered_bytes: int  # of all that the tokens spell: with thoughts that were delivered
    contradictions: tuple[str, ...]  # see ``delivered``
    thought_tokens: int | None = None  # before the answer; None without thoughts, or if unknown

    @property
    def refused(self) -> bool:
        """Whether it is withheld or begins like a refusal; others are not noticed."""
        beginning = self.text.lstrip().lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        return self.stopped_by == FILTERED or beginning.startswith(REFUSALS)


def _vllm(chunks: _Chunks, output_tokens: int | None) -> Acceptance | None:
    """Read ``--per-request-spec-decode-metrics`` of vLLM; ``detailed`` lists every step.

    vLLM counts a step before it is cut off at the end of the text, and no round for the first
    token, which comes from the prompt.
    """
    metrics = _part(_part(chunks.answer, "metrics"), "speculative_decoding")
    if "num_accepted_draft_tokens" not in metrics:
        return None
    accepted, drafted = metrics.get("per_step_accepted"), metrics.get("per_step_drafted")
    if isinstance(accepted, list) and isinstance(drafted, list) and output_tokens is not None:
        return _cut([*zip_longest(drafted, accepted)], output_tokens)
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    return Acceptance(*(_count(metrics, name) for name in names))


def _llamacpp(chunks: _Chunks, output_tokens: int | None) -> Acceptance | None:
    """Read ``timings`` of llama.cpp: sums that grow with each round, in all chunks if it can.

    It counts drafts behind the end of a text. The first token of a round must have a chunk of its
    own, which characters of several tokens may not have: two rounds would look like one.
    """
    if "draft_n" not in _part(chunks.answer, "timings"):
        return None
    names = ("predicted_n", "draft_n", "draft_n_accepted")
    parts = filter(None, (_part(value, "timings") for value in chunks.values))
    sums = [tuple(_count(timings, name) for name in names) for timings in parts]
    steps: list[tuple[int, int]] = []
    number = 2  # of the token that begins the next step; the first comes from the prompt
    whole = sums[0] == (1, 0, 0)
    for before, after in pairwise(sums):
        tokens, drafted, accepted = (new - old for new, old in zip(after, before, strict=True))
        whole &= 0 <= tokens <= (1 if drafted else delivered.MOST_ROUNDS)
        whole &= after[0] - number + len(steps) < delivered.MOST_ROUNDS
        if whole and drafted:
            steps += [(0, 0)] * (after[0] - number) + [(drafted, accepted)]
            number = after[0] + accepted + 1
    if not whole or output_tokens is None:
        return Acceptance(None, *sums[-1][1:])
    return _cut(steps, output_tokens)


def _sglang(chunks: _Chunks, output_tokens: int | None) -> Acceptance | None:
    """Read the details of SGLang, whose names have changed twice."""
    details = _part(_part(chunks.answer, "sglext"), "spec_tokens_details")
    details = details or _part(chunks.choice, "meta_info")
    pairs = (
        ("spec_num_proposed_drafts", "spec_num_correct_drafts"),
        ("spec_proposed_drafts", "spec_accepted_drafts"),
        ("spec_draft_token_num", "spec_accept_token_num"),
    )
    names = next((pair for pair in pairs if pair[1] in details), ())
    if not names or "spec_verify_ct" not in details:
        return None
    return Acceptance(*(_count(details, name) for name in ("spec_verify_ct", *names)))


# How engines report acceptance; a report is None if a stream has no such one.
REPORTS = (_vllm, _llamacpp, _sglang)


def read_answer(
    streamed: Streamed,
    chat: bool = False,
    server: str = "the server",
    limit: int = delivered.MOST_ROUNDS,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop: Sequence[str] = (),
) -> Answer:
    """Return the answer in a stream, which may contain anything; ``chat`` answers are messages.

    The ``server`` is named in messages; the request allowed ``limit`` tokens and named the strings
    ``stop``. The ``tokenizer`` is that of the server, if it is known.
    """
    chunks = _read_chunks(streamed, chat, server)
    largest = max(chunks.token_ids, default=0)
    if tokenizer is not None and largest >= len(tokenizer):
        raise UsageError(
            f"the server returns token {largest}, but the pair has {len(tokenizer)}: give the "
            "--pair or --target that it runs"
        )
    text, stopped_by, unstopped = _end(chunks, stop)
    thoughts, calls = whole(chunks.thoughts), _shown(chunks.calls)
    usage = _part(chunks.answer, "usage")
    counted = _count(usage, "completion_tokens", None)
    hidden, lacking = _hidden(usage, counted or 0, thoughts + text[: end_of_thoughts(text) or 0])
    size = len(f"{text}{'' if hidden else thoughts}{calls}".encode())
    delivered_count = max(counted + lacking, 0) if counted else None
    words = len(f"{text} {'' if hidden else thoughts} {calls}".split())
    # Each part whose usage does not count those before has a token.
    parts = len(chunks.counts) if chunks.counts and chunks.counts[-1] < len(chunks.counts) else 0
    least = max(delivered.FEWEST_PER_WORD * words, parts / 2)
    spelling = None if thoughts or calls else tokenizer
    bounds = (delivered_count, stopped_by == "eos", size, spelling, stop, least)
    token_ids, output_tokens, contradiction = delivered.delivered(text, chunks.token_ids, *bounds)
    if not token_ids and (output_tokens or 0) > limit:
        output_tokens, contradiction = None, delivered.OVER_LIMIT
    require(
        (output_tokens or 0) <= limit,
        f"{server} answers {len(chunks.token_ids)} token_ids, reports {counted} completion_tokens "
        f"and was asked for {limit} at most: {API}",
    )
    times = chunks.times
    came_at_once = delivered.at_once([part.seconds for part in times], output_tokens)
    streams = len(chunks.values) > 1 and bool(times)
    acceptance = next(filter(None, (read(chunks, output_tokens) for read in REPORTS)), None)
    require(
        acceptance is None or acceptance.accepted <= acceptance.proposed,
        f"{server} reports more accepted drafts than drafts: measure it without this report",
    )
    first_token = times[0].seconds if streams and not came_at_once else None
    between: float | None = None
    if first_token is not None and output_tokens:
        end = max([times[-1].seconds, *(chunks.ended if stopped_by == "eos" else ())])
        between = delivered.inter_token_seconds(times, end, output_tokens, size)
    contradictions = [contradiction, delivered.HIDDEN if counted and hidden else ""]
    contradictions += [delivered.UNSTOPPED if unstopped else ""]
    contradictions += [delivered.AT_ONCE if streams and came_at_once else ""]
    return Answer(
        "\n".join(filter(None, (text, calls))),
        delivered.content_of(text, thoughts, calls),
        token_ids,
        _count(usage, "prompt_tokens", None),
        *(output_tokens, stopped_by, first_token, between),
        model if isinstance(model := chunks.answer.get("model"), str) else None,
        acceptance,
        chunks.choice.get("finish_reason"),
        _cached(chunks.answer, usage),
        size,
        tuple(filter(None, contradictions)),
    )


class _Chunks(NamedTuple):
    """The parts of a stream."""

    values: Sequence[Values]
    answer: Values  # the values together
    choice: Values
    texts: list[str]
    thoughts: list[str]
    calls: dict[Any, list[str]]  # names and arguments of calls of tools, by their number
    token_ids: list[int]
    times: list[delivered.Chunk]
    ended: list[float]  # when a reason for the end came, as that of the end token
    counts: list[int]  # of tokens so far, by the usage of each part that has tokens


def _read_chunks(streamed: Streamed, chat: bool, server: str) -> _Chunks:
    """Return the parts of a stream, see ``read_answer``."""
    answer: dict[str, Any] = {}
    last: dict[str, Any] = {}
    values = [value for _, value in streamed.events]
    chunks = _Chunks(values, answer, last, [], [], {}, [], [], [], [])
    lacks = "without choices, text and finish_reason"
    for seconds, value in streamed.events:
        choices = value.get("choices") if isinstance(value, dict) else [None]
        choice = choices[0] if isinstance(choices, list) and choices else {}
        text, thought = _text(choice, chat) if isinstance(choice, dict) else (None, "")
        # Messages are made only if needed: an excerpt of each of many chunks would take seconds.
        if not isinstance(text, str):
            raise UsageError(f"{server} answers {excerpt(value)} {lacks}: {API}")
        token_ids = choice.get("token_ids")  # of vLLM, or of llama.cpp's verbose answers
        token_ids = _part(value, VERBOSE).get("tokens", []) if token_ids is None else token_ids
        if not isinstance(token_ids, list) or not all(type(t) is int and t >= 0 for t in token_ids):
            raise UsageError(f"{server} answers {excerpt(token_ids)} as token_ids: {API}")
        answer |= {name: part for name, part in value.items() if part not in (None, "")}
        reason = reason_of(choice)
        last |= {n: p for n, p in choice.items() if p is not None and n != "finish_reason"}
        if reason is not None:
            last["finish_reason"] = reason
            chunks.ended.append(seconds)
        message = _part(choice, "delta") or _part(choice, "message")
        called = "".join(_called(message, chunks.calls))
        chunks.texts.append(text)
        chunks.thoughts.append(thought)
        chunks.token_ids.extend(token_ids)
        if text or token_ids or thought or called:
            so_far = _count(_part(value, "usage"), "completion_tokens")
            so_far = so_far or _count(_part(value, "timings"), "predicted_n")
            chunks.counts.extend([so_far] if so_far else ())
            size = len(f"{text}{thought}{called}".encode(errors="replace"))
            chunks.times.append(delivered.Chunk(seconds, len(token_ids) or so_far, size))
    has_end = streamed.is_done or "finish_reason" in last
    complete = bool(last) and has_end and (chat or "text" in last)
    require(complete, f"{server} answers {excerpt(answer)} {lacks}: {API}")
    return chunks


def _called(message: Values, calls: dict[Any, list[str]]) -> Iterator[str]:
    """Yield the names and arguments of calls of tools in a message, and add them to ``calls``."""
    listed = message.get("tool_calls")
    functions = [(None, message.get("function_call"))]  # OpenAI's earlier form
    for number, call in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(call, dict):
            functions.append((call.get("index", number), call.get("function")))
    for index, function in functions:
        if isinstance(function, dict):
            for name in ("name", "arguments"):
                if part := function.get(name):
                    text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
                    calls.setdefault((str(index), name), []).append(text)
                    yield text


def _shown(calls: Mapping[Any, list[str]]) -> str:
    """Return calls of tools as a text: a line for each, ``name(arguments)``."""
    lines: dict[str, str] = {}
    for (index, name), parts in calls.items():
        text = whole(parts)
        lines[index] = lines.get(index, "") + (f"({text})" if name == "arguments" else text)
    return "\n".join(lines.values())


def _hidden(usage: Values, counted: int, thoughts: str) -> tuple[int, int]:
    """Return the tokens of thoughts that were not delivered, and how many ``counted`` lacks.

    Delivered thoughts may be a summary of fewer tokens. Some servers count thoughts apart.
    """
    details = _part(usage, "completion_tokens_details")
    count = _count(details, "reasoning_tokens") or _count(usage, "reasoning_tokens")
    read = len(thoughts.encode()) / delivered.LEAST_OF_THOUGHTS
    prompt, total = (_count(usage, f"{name}_tokens", None) for name in ("prompt", "total"))
    is_apart = total == (prompt or 0) + counted + count
    if count <= read + (delivered.UNSEEN if thoughts else 0):
        return 0, count if is_apart else 0
    return count, 0 if is_apart else -count


def _end(chunks: _Chunks, stop: Sequence[str]) -> tuple[str, str | None, str]:
    """Return the text up to a stop string, how it ended, and what came behind that string."""
    reason = chunks.choice.get("finish_reason", "stop")  # [DONE] is an end
    require(isinstance(reason, str), f"the server's finish_reason is {excerpt(reason)}: {API}")
    by_word = _part(chunks.answer, VERBOSE).get("stop_type") == "word"  # of llama.cpp, more exact
    strings = map(chunks.choice.get, ("stop_reason", "matched_stop"))  # of vLLM, SGLang
    by_text = any(isinstance(string, str) for string in strings) or by_word
    stopped_by = "stop" if by_text and reason == "stop" else end_of(reason)
    text, unstopped = whole(chunks.texts), ""
    for string in stop:  # which some servers ignore
        text, cut, behind = text.partition(string)
        stopped_by, unstopped = ("stop", unstopped + behind) if cut else (stopped_by, unstopped)
    return text, stopped_by, unstopped


def of_rounds(rounds: Sequence[RoundRecord]) -> Acceptance:
    """Return the acceptance of a text from its rounds."""
    proposed, accepted = sum(r.proposed for r in rounds), sum(r.accepted for r in rounds)
    return Acceptance(len(rounds), proposed, accepted, tuple(rounds))


def _cut(steps: Sequence[tuple[int, int]], output_tokens: int) -> Acceptance:
    """Return the rounds of steps (drafted, accepted) of a text, whose first token has none."""
    require(
        len(steps) <= delivered.MOST_ROUNDS
        and all(type(d) is type(a) is int and 0 <= a <= d for d, a in steps),
        f"the server reports the steps {excerpt(steps)}, which are no counts of drafts",
    )
    rounds, left = [], output_tokens - 1
    for drafted, accepted in steps:
        emitted = min(accepted + 1, left)
        left -= emitted
        counts = (drafted, accepted, emitted) if emitted > accepted else (emitted,) * 3
        rounds.append(RoundRecord(*counts))
    return of_rounds([r for r in rounds if r.proposed > 0])


def _text(choice: Values, chat: bool) -> tuple[Any, str]:
    """Return the text of a choice, whole or a part of a stream, and the thoughts beside it.

    The text is None if it is none: neither a text nor a list of parts with texts.
    """
    message = _part(choice, "delta") or _part(choice, "message")
    names = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
    thought = next((t for t in map(message.get, names) if t and isinstance(t, str)), "")
    content = (message.get("content") or message.get("refusal")) if chat else choice.get("text")
    if not isinstance(content, list):
        return "" if content is None else content, thought
    texts, thoughts = list[Any](), list[Any]([thought])
    for part in content:
        fields = part if isinstance(part, dict) else {"text": part}
        inner = fields.get("thinking", fields.get("reasoning"))
        if inner is None:
            is_thought = str(fields.get("type")) in ("thinking", "reasoning")
            (thoughts if is_thought else texts).append(fields.get("text"))
        else:  # of Mistral: a list of parts
            nested = inner if isinstance(inner, list) else [{"text": inner}]
            thoughts += [p.get("text") if isinstance(p, dict) else None for p in nested]
    is_text = all(isinstance(part, str) for part in (*texts, *thoughts))
    return ("".join(texts), "".join(thoughts)) if is_text else (None, "")


def _cached(answer: Values, usage: Values) -> int | None:
    """Return the tokens of the prompt that came from a cache, under any of their names."""
    counts = (
        _part(usage, "prompt_tokens_details").get("cached_tokens"),  # OpenAI, vLLM, SGLang
        _part(answer, "timings").get("cache_n"),  # llama.cpp
        *map(usage.get, ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")),
    )
    return next((count for count in counts if type(count) is int and count >= 0), None)


def _part(values: Values, name: str) -> Values:
    """Return an object inside an object, without what is null; empty if there is none."""
    part = values.get(name)
    return {n: v for n, v in part.items() if v is not None} if isinstance(part, dict) else {}


def _count(values: Values, name: str, default: int | None = 0) -> Any:
    """Return a count inside an object."""
    value = values.get(name, default)
    # As many digits as 2**31 has: ``int`` refuses thousands.
    is_text = isinstance(value, str) and value.isdecimal() and len(value) <= 10
    value = int(value) if is_text or (isinstance(value, float) and value.is_integer()) else value
    require(
        value is default or (type(value) is int and 0 <= value < 2**31),
        f"the server reports {name} as {excerpt(value)}, which is no count",
    )
    return value
