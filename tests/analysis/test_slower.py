"""``analysis.verdicts.slower``: the seconds of drafts add up, and are those that were planted."""

import re
from typing import Any

import pytest

from specbench.analysis.verdicts.margin import margin_rows
from specbench.analysis.verdicts.slower import slower_methods

from .conftest import Make

PLAIN = {"method": "autoregressive", "draft_length": 0, "drafter": None}
PLAIN |= {"rounds": 20, "proposed": 0, "accepted": None, "acceptance_length": None}
PLAIN |= {"prefill_seconds": 0.2, "decode_seconds": 1.9, "draft_seconds": 0.0}
PLAIN |= {"verify_seconds": 1.8, "accept_seconds": 0.05}
SLOW = {"rounds": 5, "prefill_seconds": 0.4, "decode_seconds": 3.0, "draft_seconds": 1.2}
SLOW |= {"verify_seconds": 1.5, "accept_seconds": 0.1}


def said(make: Make, *cells: dict[str, Any], n: int = 4, blocks: Any = None) -> list[str]:
    rows = [{"sample_id": f"p{i}", **cell} for cell in cells for i in range(n)]
    samples = make(*rows)
    if blocks is not None:
        samples = samples.assign(block=blocks, batch_size=4)
    return [f"{run}: {sentence}" for run, sentence in slower_methods(samples)]


def parts(text: str) -> list[tuple[float, list[float]]]:
    found = re.findall(r"([\d.]+) s \(([^)]*)\)", text)
    pieces = [[float(s) for s in re.findall(r"([\d.]+) s", of)] for _, of in found]
    return [(float(total), of) for (total, _), of in zip(found, pieces, strict=True)]


def test_the_seconds_of_both_sides_add_up(make, stored):
    stored(*said(make, SLOW, PLAIN))
    for scale in (1.0, 0.0137, 0.017, 7.77, 123.4):
        cells = (SLOW, PLAIN)
        timed = [{k: v * scale if "seconds" in k else v for k, v in cell.items()} for cell in cells]
        (sentence,) = said(make, *timed)
        for total, pieces in parts(sentence):
            assert min(pieces) > 0
            assert sum(pieces) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "seconds", "named"), [(3, 3.0, 1), (2, 3.0, 0), (3, 1.71, 0), (3, 1.5, 0), (20, 3.0, 1)]
)
def test_a_slower_method_is_named_from_three_prompts_on(make, n, seconds, named):
    assert len(said(make, {**SLOW, "decode_seconds": seconds}, PLAIN, n=n)) == named


def test_several_slower_methods_are_one_line_and_faster_or_unshown_ones_none(make, stored):
    rows = [
        {"sample_id": f"p{i}", **cell, "decode_seconds": seconds * (1.6 if i % 2 else 0.4)}
        for cell, seconds in ((SLOW, 2.05), (PLAIN, 1.9))
        for i in range(20)
    ]
    uneven = make(*rows)
    uneven.loc[uneven["method"] == "sd", "decode_seconds"] = [2.05] * 20
    assert not [*slower_methods(uneven)]
    lossy = {**SLOW, "method": "lossy", "lenience": 0.5}
    stored(
        *said(make, SLOW, lossy, {**SLOW, "method": "block"}, PLAIN),
        *said(make, {**SLOW, "decode_seconds": 1.0}, lossy, PLAIN),
    )
    assert not said(make, SLOW)


SERVER = {"draft_length": 0, "drafter": None, "settings": "concurrency=1"}
SERVER |= dict.fromkeys(("draft_seconds", "verify_seconds", "accept_seconds"))


def test_a_slower_server_says_why_by_its_rounds_or_its_tokens(make, stored):
    unknown = dict.fromkeys(("rounds", "proposed", "accepted", "acceptance_length"))

    def verdict(**fast):
        plain = {**SERVER, **unknown, "method": "plain", "decode_seconds": 1.9}
        rows = [
            {"sample_id": f"p{i}", "prefill_seconds": 0.1, **arm}
            for arm in (plain, {**SERVER, "method": "fast", "decode_seconds": 2.4, **fast})
            for i in range(4)
        ]
        judged = margin_rows(make(*rows).assign(first_token_seconds=0.1), "plain", 2)
        return str(judged.loc[judged["method"] == "fast", "remarks"].iloc[0])

    stored(verdict(), verdict(**unknown))
    assert verdict(decode_seconds=1.0) == ""
