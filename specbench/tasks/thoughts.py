"""Thoughts that models write before an answer, by the marks of each family.

The marks are those that vLLM's and llama.cpp's parsers of reasoning look for. A prompt may have
begun the thoughts, as the templates of many models do, so most marks of an end also count without
one of a begin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple


class Marks(NamedTuple):
    """Regular expressions around the thoughts of a family of models."""

    models: str
    begin: str  # at the start of a text
    end: str  # the answer follows the last one
    alone: bool = True  # whether an end without a begin is one


FAMILIES: Sequence[Marks] = (
    Marks("DeepSeek, Qwen, GLM, MiniMax, Nemotron, OLMo, Hunyuan", "<think>", "</think>"),
    Marks("MiniMax M3", "<mm:think>", "</mm:think>"),
    Marks("Seed-OSS", "<seed:think>", "</seed:think>"),
    Marks("LongCat", "<longcat_think>", "</longcat_think>"),
    Marks("EXAONE Deep, Gemini's API", "<thought>", "</thought>"),
    Marks("by instruction", "<thinking>", "</thinking>"),
    Marks("by instruction", "<reason(ing)?>", "</reason(ing)?>"),
    Marks("Mistral", r"\[THINK\]", r"\[/THINK\]"),
    Marks("Kimi", "◁think▷", "◁/think▷"),
    Marks("Cohere", r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    Marks("Apertus", r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    Marks("Gemma 4", r"<\|channel>(thought|analysis)", r"<channel\|>"),
    Marks("MedGemma", "<unused94>", "<unused95>"),
    Marks("openPangu", r"\[unused16\]", r"\[unused17\]"),
    Marks("Sky-T1, OpenThinker", r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    Marks(
        "gpt-oss",
        r"(<\|start\|>assistant)?<\|channel\|>",
        r"<\|channel\|>final( ?<\|constrain\|>)?[^<]*<\|message\|>",
    ),
    Marks(  # without its special tokens; no word begins with "analysis" and goes on
        "gpt-oss",
        r"(assistant)?analysis(?=[^\W_]|(?s:.*)assistantfinal)",
        r"assistant\n*final",
        alone=False,
    ),
    Marks(
        "Granite 3.2",
        "here(’s|'s| is) my thought process:",
        "here(’s|'s| is) my response:",
        alone=False,
    ),
    Marks("Apriel", "here are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"),
)
_LAST_TOKENS = 8  # of a prompt, enough to spell its last word
_FLAGS = re.IGNORECASE
_BEGINS = [re.compile(rf"\s*({marks.begin})", _FLAGS) for marks in FAMILIES]
_ENDS = [re.compile(marks.end, _FLAGS) for marks in FAMILIES]
_ALONE = re.compile("|".join(marks.end for marks in FAMILIES if marks.alone), _FLAGS)
_BEGUN = re.compile("|".join(marks.begin for marks in FAMILIES if marks.alone), _FLAGS)
_PROMPTS = re.compile("|".join(rf"{marks.begin}\s*$" for marks in FAMILIES if marks.alone), _FLAGS)
# What some families put around an answer that follows thoughts.
_AROUND = re.compile(
    r"\s*(?:<response>|<answer>|<\|START_(?:RESPONSE|TEXT)\|>|<\|begin_of_solution\|>)?\s*"
    r"((?:.*?\S)??)"  # not `(.*?)`, which tries every blank of a long gap: quadratic time
    r"(?:\s*(?:</response>|</answer>|<\|END_(?:RESPONSE|TEXT)\|>|<\|end_of_solution\|>|"
    r"<\|(?:end|return)\|>|\[END FINAL RESPONSE\]))*\s*",
    re.DOTALL | _FLAGS,
)
_UNKNOWN = re.compile(
    r"\s*([<\[◁◀【]\W{0,2}(?:\w+[:_])?"
    r"(?:begin_?of_?|start_?)?(?:think|thought|reason|reflect|analy|scratch|ponder|deliberat|cot\b|"
    r"monologue|inner|channel)\w*\W{0,2}?[>\]▷▶】])",
    _FLAGS,
)


def end_of(text: str) -> int | None:
    """Return the position behind the thoughts at the start of a text, None without their end."""
    if (begun := family_of(text)) is not None:
        ends = [*_ENDS[begun].finditer(text)]
    else:
        ends = [*_ALONE.finditer(text)]
        behind = _AROUND.fullmatch(text, ends[-1].end()) if ends else None
        if behind and not behind[1] and _BEGUN.search(text, 0, ends[-1].start()):
            return None  # these are reasons behind an answer
    return ends[-1].end() if ends else None


def answer_in(text: str, begun: bool = False) -> str:
    """Return what follows the thoughts, perhaps ``begun`` in the prompt; empty without an end."""
    if (end := end_of(text)) is None:
        return "" if begun or family_of(text) is not None else text
    answer = _AROUND.fullmatch(text, end)
    return text[end:].lstrip() if answer is None else answer[1]


def begins_thoughts(tokenizer: Any, prompt: Sequence[int]) -> bool:
    """Return whether the tokens of a prompt end with a mark behind which a model thinks."""
    return _PROMPTS.search(tokenizer.decode([*prompt[-_LAST_TOKENS:]])) is not None


def doubtful_mark(text: str) -> tuple[str, bool] | None:
    """Return the mark at the start of a text without its end, and whether it is of ``FAMILIES``."""
    begun = family_of(text)
    match = _UNKNOWN.match(text) if begun is None else _BEGINS[begun].match(text)
    return (match[1], begun is not None) if match and end_of(text) is None else None


def is_mark(token: str) -> bool:
    """Return whether a token is a mark, or a part of one."""
    return any(re.escape(token) in marks.begin + marks.end for marks in FAMILIES)


def family_of(text: str) -> int | None:
    """Return the index of the family whose mark begins a text."""
    return next((n for n, begin in enumerate(_BEGINS) if begin.match(text)), None)
