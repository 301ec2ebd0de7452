"""Agreement with the target's own greedy text."""

import pytest

from specbench.tasks.example import Example
from specbench.tasks.metrics import score

GREEDY = "The answer is 42, of course."


def scores(text: str, greedy: str = GREEDY) -> tuple[float, float]:
    example = Example("e", "prompt", greedy=greedy)
    return score("agreement", text, example), score("agreement-prefix", text, example)


@pytest.mark.parametrize("text", [GREEDY, "Да, это так!", "はい、そうです。", "?!", ""])
def test_identical_texts_agree_in_any_script(text: str) -> None:
    assert scores(text, text) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "common", "same"),
    [
        ("The answer is 41, of course.", 7, 3),  # of eight words each, punctuation counts
        ("So the answer is 42, of course.", 8, 0),
        ("The answer is 42", 4, 4),
        ("No idea", 0, 0),
        ("", 0, 0),
    ],
)
def test_agreement_by_hand(text: str, common: int, same: int) -> None:
    words = len(text.replace(",", " ,").replace(".", " .").split())
    rouge = 2 * common / (words + 8)
    assert scores(text) == pytest.approx((rouge, same / max(words, 8)))
