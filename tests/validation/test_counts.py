"""``verify`` and ``check`` refuse counts and times that no decoder can have, clause by clause."""

from functools import partial

import pytest

from specbench.experiment.measurements import columns_of, recorded_rounds
from specbench.runs.model import RecordedRounds, SampleRecord
from specbench.validation import check
from specbench.validation.findings import FAILED, OK
from specbench.validation.texts import Context
from specbench.validation.verification.tables import check_counts

from ..conftest import generation
from ..engine.tiny import tiny_pair
from ..synthetic import RECORD

DRAFT_LENGTH = 3
Round = tuple[int, int, int]  # drafts proposed, drafts accepted, tokens emitted
SOUND: list[Round] = [(3, 3, 4), (3, 0, 1), (2, 2, 2)]


def sample(
    rounds: list[Round], *, tokens: int | None = None, stopped_by: str = "length", **times: float
) -> SampleRecord:
    columns = zip(*rounds, strict=True)
    names = ("proposed", "accepted", "emitted")
    per_round = RecordedRounds(**dict(zip(names, map(list, columns), strict=True)))
    emitted = sum(row[2] for row in rounds)
    text = generation(
        token_ids=[5] * (emitted if tokens is None else tokens),
        output_tokens=(emitted if tokens is None else tokens) + (stopped_by == "eos"),
        stopped_by=stopped_by,
        rounds=recorded_rounds(per_round),
        **times,
    )
    counts = columns_of(text, drafts=True)
    return SampleRecord.model_validate({**RECORD, "draft_length": DRAFT_LENGTH, **counts})


@pytest.mark.parametrize(("tokens", "stopped_by"), [(7, "length"), (6, "eos")])
def test_a_sound_sample_passes(tokens, stopped_by):
    finding = check_counts([sample(SOUND, tokens=tokens, stopped_by=stopped_by)])
    assert finding.verdict == OK, finding.sentence


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (sample(SOUND, prefill_seconds=-0.5), "prefill_seconds is -0.5"),
        (sample([(2, 3, 4), (3, 1, 2)]), "round 0 has 3 of 2 drafts accepted"),
        (sample([(3, 1, 2), (4, 4, 5)]), "round 1 has 4 of 4 drafts accepted"),
        (sample([(4, 1, 2)]), "round 0 has 1 of 4 drafts accepted"),
        (sample([(3, 1, 3)]), "round 0 has 1 accepted drafts and 3 tokens"),
        (sample([(3, 3, 4), (3, 2, 1)]), "round 1 has 2 accepted drafts and 1 tokens"),
        (sample(SOUND, tokens=6), "the text has 6 tokens, its rounds 7"),
        (sample(SOUND, tokens=8), "the text has 8 tokens, its rounds 7"),
        (sample(SOUND, stopped_by="eos"), "the text has 8 tokens, its rounds 7"),
        (sample(SOUND).filled(zero_p=8), "zero_p is 8, of 7 tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sample_that_breaks_one_clause_is_found(wrong, sentence):
    finding = check_counts([sample(SOUND), wrong])
    assert finding.verdict == FAILED
    assert finding.sentence == f"mini-math, sd, N = {DRAFT_LENGTH}, a: {sentence}"


def test_lists_of_rounds_that_are_not_there_are_found():
    wrong = sample(SOUND)
    wrong.per_round = RecordedRounds(proposed=[3], accepted=[3])
    assert check_counts([wrong]).sentence.endswith("its rounds or counts are not whole")


@pytest.mark.parametrize(
    ("shares", "bandwidth", "verdict"),
    [
        ([0.9] * 3, 1e12, OK),
        ([0.5] * 9 + [0.9], 1e12, OK),  # the machine was busy, so more texts are timed
        ([0.5] * check.MOST_REPEATS, 1e12, FAILED),
        ([1.1] * 3, 1e12, FAILED),
        ([0.9] * 3, 1.0, FAILED),  # faster than the weights can be read
    ],
)
def test_records_must_account_for_the_time_which_memory_must_permit(
    monkeypatch, shares, bandwidth, verdict
):
    to_come = [1.0, *shares]  # the first text warms up
    monkeypatch.setattr(check, "now", lambda device: -float(len(to_come)))
    timed = partial(generation, prefill_seconds=0.0)
    monkeypatch.setattr(check, "decode_one", lambda *_, **__: timed(decode_seconds=to_come.pop(0)))
    monkeypatch.setattr(check, "copy_bandwidth", lambda *_: bandwidth)
    finding = check.check_time(tiny_pair("llama"), Context("a", [1, 2]))
    assert finding.verdict == verdict and not to_come
