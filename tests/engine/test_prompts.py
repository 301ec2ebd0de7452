"""Encoding prompts: one start token, the right template, never over the limit."""

import random
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from specbench.engine.prompts import encode
from specbench.errors import UsageError
from specbench.tasks.example import CHAT, PLAIN

from ..told import refusals
from .tiny import tokenizer

# Like Llama's and Gemma's, the template writes the start token; like Qwen3's, it can think.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}(quiet){% endif %}{% endif %}"
)
BEFORE, AFTER = "Sum up this text in one line.\n\n", "\n\nOne line:"


@pytest.fixture(scope="module")
def plain(mini) -> PreTrainedTokenizerBase:
    return mini.tokenizer


@pytest.fixture(scope="module")
def chat(plain) -> PreTrainedTokenizerBase:
    tokenizer = deepcopy(plain)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_prompt_is_the_text_or_one_user_message(chat, plain):
    bos, text = [chat.bos_token_id], "How many?"
    message = "<user>How many?<assistant>"
    assert encode(chat, text) == ([*bos, *text_ids(chat, f"{message}(quiet)")], 0)
    assert encode(chat, text, thinking=True).ids == [*bos, *text_ids(chat, message)]
    assert encode(chat, text, prompt_format="plain").ids == [*bos, *text_ids(chat, text)]
    assert encode(plain, text) == encode(plain, text, prompt_format="plain")
    bare = deepcopy(chat)
    bare.chat_template = TEMPLATE.removeprefix("{{ bos_token }}")
    assert encode(bare, text).ids == encode(chat, text).ids[1:]


@pytest.mark.parametrize(("written", "behind"), [("", []), ("</s>", ["</s>"])])
def test_one_end_token_that_a_tokenizer_appends_is_dropped(plain, written, behind):
    ending = deepcopy(plain)
    end, ids = str(ending.eos_token), text_ids(plain, "How many?")
    text = "How many?" + written.replace("</s>", end)
    stated = [plain.eos_token_id] * len(behind)
    assert encode(plain, text, prompt_format=PLAIN).ids == [plain.bos_token_id, *ids, *stated]
    special = [(str(ending.bos_token), plain.bos_token_id), (end, plain.eos_token_id)]
    template = TemplateProcessing(f"{ending.bos_token} $A {end}", None, special)
    ending.backend_tokenizer.post_processor = template
    assert encode(ending, text, prompt_format=PLAIN).ids == [plain.bos_token_id, *ids, *stated]


CALL = {"id": "a", "function": {"name": "add", "arguments": '{"x": 1}'}}
CONVERSATION = (
    {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"text": "brief."}]},
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "function", "content": "5"},
)


def test_messages_of_other_roles_are_templated(chat, plain):
    whole = encode(chat, "5", conversation=CONVERSATION).ids
    text = "<system>Be\nbrief.<user>How many?<assistant><tool>5<assistant>(quiet)"
    assert whole[1:] == text_ids(chat, text)
    untemplated = encode(plain, "5", conversation=CONVERSATION[:2] + CONVERSATION[3:])
    assert untemplated == encode(plain, "Be\nbrief.\n\nHow many?\n\n5")
    calling = deepcopy(chat)  # as Qwen's, which writes arguments as JSON itself
    calling.chat_template = (
        "{% for message in messages %}{% for call in message.tool_calls or [] %}"
        "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert encode(calling, "5", conversation=CONVERSATION).ids == text_ids(calling, '{"x": 1}')
    assert encode(chat, "5 5 5", conversation=CONVERSATION, passage="5 5 5", limit=len(whole)).cut


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no system role') }}", "{{ messages[0].content + 1 }}"]
)
def test_a_template_that_does_not_take_the_messages(chat, template):
    strict = deepcopy(chat)
    strict.chat_template = template
    with pytest.raises(UsageError, match="the chat template does not take these messages"):
        encode(strict, "5", conversation=CONVERSATION)


def test_a_conversation_has_all_messages_and_no_date(chat, plain):
    later = ["Five.", "Why?"]
    ids = encode(chat, "How many?", later).ids
    text = "<user>How many?<assistant>Five.<user>Why?<assistant>(quiet)"
    assert ids[1:] == text_ids(chat, text)
    assert encode(plain, "How many?", later) == encode(plain, "How many?\n\nFive.\n\nWhy?")
    # Only the first message can be cut.
    whole = encode(plain, "How many?", later).ids
    cut = encode(plain, "How many?", later, passage="How many?", limit=len(whole) - 1)
    assert (cut.ids[-4:], cut.cut > 0) == (whole[-4:], True)
    dated = deepcopy(chat)
    dated.chat_template = (
        '{% if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}'
        "{% endif %}{{ date_string }}: {{ messages[0].content }}"
    )
    assert encode(dated, "How many?").ids == text_ids(chat, "26 Jul 2024: How many?")


@pytest.mark.parametrize("prompt_format", [CHAT, PLAIN])
def test_a_prompt_has_one_start_token_and_only_the_end_of_its_passage_is_cut(chat, prompt_format):
    for text in ("How many?", "<s>How many?", "<s><s>How many?", ""):
        ids = encode(chat, text, prompt_format=prompt_format).ids
        assert ids[0] == chat.bos_token_id not in ids[1:2]
    for seed in range(20):
        cut_at_random(chat, prompt_format, random.Random(seed))


def cut_at_random(chat: PreTrainedTokenizerBase, prompt_format: str, chance: random.Random) -> None:
    alphabet = "abcdefgh   ,.0123456789\n" + chance.choice(["", "äö…", "中文"])
    passage = "".join(chance.choices(alphabet, k=chance.randint(1, 150)))
    prompt = {"prompt": BEFORE + passage + AFTER, "passage": passage}

    def of(part: str) -> list[int]:
        return encode(chat, BEFORE + part + AFTER, prompt_format=prompt_format).ids

    whole, bare = len(of(passage)), len(of(""))
    limit = chance.randint(bare, whole + 5)
    ids, cut = encode(chat, **prompt, prompt_format=prompt_format, limit=limit)
    assert len(ids) <= limit and cut == whole - len(ids)
    lengths = [k for k in range(len(passage) + 1) if of(passage[:k]) == ids]
    assert lengths, "the prompt is not made of the instruction and a beginning of the passage"
    # No more characters would have fitted.
    assert lengths[-1] == len(passage) or len(of(passage[: lengths[-1] + 1])) > limit


def test_the_last_of_equal_passages_is_cut_and_what_cannot_be_encoded_refused(plain, stored):
    passage = "one two three four five six"
    prompt = f"Example: {passage} = 6\nNow: {passage} ="
    whole = encode(plain, prompt)
    cut = encode(plain, prompt, passage=passage, limit=len(whole.ids) - 4)
    assert plain.decode(cut.ids, skip_special_tokens=True).startswith(f"Example: {passage} = 6")
    refused: list[dict[str, Any]] = [
        *({"limit": 5, **more} for more in ({}, {"passage": "not in it"})),
        {"limit": 1, "passage": "long text"},
    ]
    text = f"{BEFORE}long text{AFTER}"
    calls = (partial(encode, plain, text, **options) for options in refused)
    stored(refusals(*calls, lambda: encode(tokenizer(), "")))  # which has no start token
