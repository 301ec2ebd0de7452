"""A rule that is confined to a part of a text emits its law there, and p elsewhere."""

from functools import partial

import pytest

from specbench.decoding.heads.bind import bind
from specbench.decoding.loop import is_inside
from specbench.errors import UsageError
from specbench.methods.laws import Next, Split, sd, static
from specbench.methods.registry import METHODS

from .test_law import LENGTH, LOWEST_P, N, enumeration, lookup_pair, p_value, sample


class Spelled:
    """Decodes tokens to their numbers."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return "".join(map(str, tokens))


def test_the_last_begin_mark_without_an_end_behind_it_begins_the_part() -> None:
    marks = ("12", "30")
    texts = {(1,): False, (1, 2): True, (1, 2, 3, 0): False, (1, 2, 3, 0, 1, 2, 5): True}
    assert {text: is_inside(Spelled(), text, marks) for text in texts} == texts


@pytest.mark.parametrize("marks", ["a,a", "<a>,a", "a,<a>", "a,", ",a", "a", "a,b,c"])
def test_marks_that_end_nothing_are_refused(marks: str) -> None:
    with pytest.raises(UsageError, match="neither of which contains the other"):
        METHODS["static"].resolve({"inside": marks})


def test_the_law_follows_the_phase_at_the_beginning_of_each_round() -> None:
    pair = lookup_pair()
    spelled = type(pair)(**{**vars(pair), "tokenizer": Spelled()})
    prompt = "".join(map(str, enumeration().prompt))
    for begin, relaxed in ((prompt, True), ("x", False)):
        method = bind("static", {"weight": 0.2, "inside": f"{begin},x"}, spelled)
        samples = sample(spelled, method.rule, marks=method.marks)
        laws = [enumeration().law(rule, N, LENGTH) for rule in (partial(static, weight=0.2), sd)]
        fits = [p_value(samples, law) > LOWEST_P for law in laws]
        assert fits == [relaxed, not relaxed], begin


def test_the_law_of_a_method_is_that_of_its_rule_inside() -> None:
    def at(inside: bool) -> Next:
        rows = enumeration().next((), 0)
        return rows._replace(inside=rows.position == (0 if inside else 1))

    method = bind("static", {"weight": 0.2, "inside": "1,2"}, lookup_pair())
    assert method.law is not None
    for inside, law in ((True, partial(static, weight=0.2)), (False, sd)):
        split: Split = method.law(at(inside), weight=0.2)
        for part, expected in zip(split, law(at(inside)), strict=True):
            assert (part == expected).all()
