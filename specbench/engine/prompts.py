"""Encoding prompts: chat template or plain text, one start token, and truncation to a limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, cycle
from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from specbench.errors import UsageError, first_line
from specbench.tasks.example import CHAT, Example, Message, text_of

# Some templates insert today's date unless one is given (this is Llama 3's default).
DATE = "26 Jul 2024"
# Names of roles in OpenAI's API, and in templates.
ROLES = {"developer": "system", "function": "tool"}


class Encoded(NamedTuple):
    """An encoded prompt."""

    ids: list[int]
    cut: int = 0  # number of tokens cut from the whole prompt


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    later: Sequence[str] = (),
    *,
    conversation: Sequence[Message] = (),
    passage: str = "",
    prompt_format: str = CHAT,
    limit: int | None = None,
    thinking: bool = False,
) -> Encoded:
    """Tokenise a prompt, with one start token if the model has one.

    In a conversation, the messages ``later`` follow the prompt, the model's and the user's in turn;
    or the prompt is the text of the last message of ``conversation``. ``chat`` formats them with
    the tokenizer's template, if there is one; ``plain`` takes the texts as they are, with an empty
    line between them. If a prompt exceeds ``limit`` tokens, the end of its ``passage`` is cut.
    ``thinking`` enables thinking in Qwen3's template; others ignore it.
    """
    chat = prompt_format == CHAT and tokenizer.chat_template is not None
    bos = tokenizer.bos_token_id

    roles = cycle(("user", "assistant"))
    turns = [{"role": next(roles), "content": text} for text in (prompt, *later)]
    templated = [_templated(message) for message in conversation or turns]
    holds_prompt = templated[-1 if conversation else 0]

    def tokens(text: str) -> list[int]:
        ids: Any
        holds_prompt["content"] = text
        if chat:
            try:
                ids = tokenizer.apply_chat_template(
                    templated,
                    add_generation_prompt=True,
                    return_dict=False,
                    enable_thinking=thinking,
                    date_string=DATE,
                )
            except (TemplateError, TypeError) as error:
                raise UsageError(
                    f"the chat template does not take these messages ({first_line(error)}): leave "
                    "this example out, or give --prompt-format plain"
                ) from error
        else:
            ids = tokenizer("\n\n".join(m["content"] for m in templated))["input_ids"]
            ids = ids[:-1] if appends_end(tokenizer) else ids  # behind it, a model begins anew
        started: list[int] = list(ids)
        # A text may begin with its own start token, before the tokenizer adds another.
        while bos is not None and started[:2] == [bos, bos]:
            del started[0]
        return started

    whole = tokens(prompt)
    if not whole:
        raise UsageError("the prompt has no tokens: leave this example out")
    if limit is None or len(whole) <= limit:
        return Encoded(whole)
    # The last occurrence, since few-shot examples may contain the same words.
    start = prompt.rfind(passage) if passage else -1
    if start < 0:
        raise UsageError(_too_long(len(whole), limit, "and has no passage to cut"))
    before, after = prompt[:start], prompt[start + len(passage) :]
    ids = tokens(before + after)
    if len(ids) > limit:
        raise UsageError(_too_long(len(ids), limit, "even without its passage"))
    # The most characters that fit. More text hardly ever gives fewer tokens; even then the result
    # fits.
    fitting, excess = 0, len(passage)
    while excess - fitting > 1:
        middle = (fitting + excess) // 2
        shorter = tokens(before + passage[:middle] + after)
        if len(shorter) <= limit:
            fitting, ids = middle, shorter
        else:
            excess = middle
    if not ids:
        raise UsageError(_too_long(len(whole), limit, "and nothing of it is left"))
    return Encoded(ids, len(whole) - len(ids))


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    example: Example,
    prompt_format: str,
    limit: int | None = None,
    *,
    answers: Sequence[str] = (),
    thinking: bool = False,
) -> Encoded:
    """Encode an example's prompt, see ``encode``.

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


@lru_cache(maxsize=8)
def appends_end(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts its end token behind every text."""
    return bool(tokenizer("a")["input_ids"][-1:] == [tokenizer.eos_token_id])


def _templated(message: Message) -> dict[str, Any]:
    """Return a message as templates take it: with one text, and arguments of tools as objects."""
    values = {**message, "content": text_of(message)}
    values["role"] = ROLES.get(message["role"], message["role"])
    for call in message.get("tool_calls") or ():
        function = dict(call["function"])
        with suppress(KeyError, TypeError, ValueError, RecursionError):  # they are no JSON
            function["arguments"] = json.loads(function["arguments"])
        values["tool_calls"] = [*values["tool_calls"][1:], {**call, "function": function}]
    return values


def _too_long(tokens: int, limit: int, why: str) -> str:
    return (
        f"the prompt has {tokens} tokens, more than the limit of {limit}, {why}: raise "
        "--max-prompt-tokens, cut your own prompts with --cut-prompts, give fewer --shots if there "
        "are any, or leave this example out"
    )
