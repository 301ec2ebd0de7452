"""The answers of all methods to the prompts on which they differ, packed for a page.

The page's script unpacks them, shows two methods side by side, filters and searches.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specbench.analysis.trace import sample_names, score_of, visible
from specbench.runs.model import SampleRecord
from specbench.tasks.example import Example

LONGEST = 4_000  # characters of a text on the page
LARGEST = 1_300_000  # characters of all answers, packed
#: A prompt with its ``texts``, and ``answers`` by method: score, facts, and number of the text.
Differing = dict[str, Any]


class Answers(NamedTuple):
    """Prompts as Base64 of compressed JSON, how many there are, and how many of them are packed."""

    packed: str
    number: int
    kept: int


def differing(
    records: Sequence[SampleRecord],
    examples: Mapping[str, Mapping[str, Example]],
    run: str | None = None,
) -> list[Differing]:
    """Return the prompts to which the methods of a run, which may be named, answered differently.

    Those with the most different scores come first.
    """
    names = [name.partition(" turn ")[0] for name in sample_names(records)]
    prompts: dict[tuple[str, str, int], dict[str, SampleRecord]] = defaultdict(dict)
    for record, name in zip(records, names, strict=True):
        prompts[record.task, record.sample_id, record.turn or 0][name] = record
    by_spread: list[tuple[float, Differing]] = []
    for (task, sample, turn), answers in prompts.items():
        texts = [visible((answer.text or "")[:LONGEST]) for answer in answers.values()]
        scores = [answer.quality for answer in answers.values() if answer.quality is not None]
        spread, distinct = max(scores, default=0) - min(scores, default=0), [*dict.fromkeys(texts)]
        if not spread and len(distinct) < 2:
            continue
        example = examples.get(task, {}).get(sample)
        prompt: Differing = {
            "task": f"{task}, {run}" if run else task,
            "sample": f"{sample}, turn {turn}" if turn else sample,
            "prompt": visible("\n\n".join(example.texts)[:LONGEST]) if example else "",
            "texts": distinct,
            "answers": {
                name: [answer.quality, _facts(answer), distinct.index(text)]
                for (name, answer), text in zip(answers.items(), texts, strict=True)
            },
        }
        by_spread.append((spread, prompt))
    return [prompt for _, prompt in sorted(by_spread, key=lambda entry: -entry[0])]


def pack(prompts: Sequence[Differing]) -> Answers:
    """Pack as many of the first prompts as fit on a page."""
    kept, packed = len(prompts), ""
    while not packed or len(packed) > LARGEST:
        kept = int(0.95 * kept * LARGEST / len(packed)) if packed else kept
        content = json.dumps(prompts[:kept], ensure_ascii=False, separators=(",", ":"))
        packed = base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()
    return Answers(packed, len(prompts), kept)


def _facts(record: SampleRecord) -> str:
    end = f"ended by {record.finish_reason or record.stopped_by}"
    return ", ".join([*score_of(record), end])
