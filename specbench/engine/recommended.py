"""The sampling that a model's authors recommend, and what of it a run takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.config import SamplingOptions
from specbench.errors import UsageError

TAKEN = ("temperature", "top_p", "top_k", "min_p")  # by ``--sampling model``
NEUTRAL: dict[str, Any] = {
    **{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    **{"no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0},
    **dict.fromkeys(("bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens")),
}
"""Settings that change a distribution, with the values that do not. All but ``TAKEN`` are refused:
they make p depend on which tokens the text has, drafts included, or on how many."""
GGUF_NAMES = {
    "temp": "temperature",
    "penalty_repeat": "repetition_penalty",
    "penalty_present": "presence_penalty",
    "penalty_freq": "frequency_penalty",
}
"""Names in GGUF files, behind ``general.sampling.``, where they are others."""


def that_change(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change a distribution."""
    values = {GGUF_NAMES.get(name, name): value for name, value in recommended.items()}
    return {n: values[n] for n, off in NEUTRAL.items() if values.get(n) not in (None, off)}


def sampling_of(recommended: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the values that ``--sampling model`` takes."""
    values = {name: recommended[name] for name in TAKEN if name in recommended}
    if not values:
        raise UsageError(
            f"{model} recommends no temperature, top-p, top-k or min-p that changes its "
            "distribution: give them as options, and omit --sampling model"
        )
    checked = SamplingOptions(**values)
    return {name: getattr(checked, name) for name in values}


def unlike_recommended(recommended: Mapping[str, Any], settings: SamplingOptions) -> str:
    """Return one sentence if a run does not decode as recommended, or else an empty text."""
    chosen = {n: v for n in TAKEN if (v := getattr(settings, n)) is not None}
    advised = {name: recommended[name] for name in TAKEN if name in recommended}
    same = NEUTRAL | advised == NEUTRAL | chosen
    refused = [_shown(name) for name in recommended if name not in TAKEN]
    if not recommended or (same and not refused):
        return ""
    sentence = f"the target's authors recommend {_values(recommended)}; this run has "
    sentence += _values(chosen) + (
        "" if same or not advised else " (--sampling model takes theirs)"
    )
    if refused:
        sentence += f"; no {', '.join(refused)} is possible: p would depend on the drafts before"
    return sentence


def _values(settings: Mapping[str, Any]) -> str:
    numbers = {n: f" {v:g}" if isinstance(v, int | float) else "" for n, v in settings.items()}
    return ", ".join(_shown(name) + number for name, number in numbers.items())


def _shown(name: str) -> str:
    return name.replace("_", " ").replace("top ", "top-").replace("min p", "min-p")
