"""BLEU against sacrebleu's own corpus BLEU."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU

from specbench.tasks.example import Example
from specbench.tasks.metrics.overlap import bleu_terms, corpus_bleu, sentence_bleu

REFERENCES = [
    "A traffic accident occurred on Friday evening on the road to the village.",
    "The rider was only slightly injured, thanks to his quick reaction.",
    "Biker reacts lightning fast",
    "It cost 1,234.50 euros - or so they said.",
    "No one's there!",
    "A line-end hyphen is no hyphen.",
]
TEXTS = [
    "A road accident happened on Friday evening on the road to the village.",
    "The rider was slightly injured only,  thanks to a quick reaction.",
    "Biker reacts lightning fast",
    "It cost 1,234.50 euros -\nor so they said.\n\nThat is all.",
    "",
    "Nothing shared whatsoever",
]


def expected(references: list[str], texts: list[str]) -> float:
    """Corpus BLEU by sacrebleu, in [0, 1], with each text on its own line."""
    lines, right = ([" ".join(t.split()) for t in each] for each in (texts, references))
    return sacrebleu.corpus_bleu(lines, [right]).score / 100


def terms(references: list[str], texts: list[str]) -> np.ndarray:
    pairs = zip(texts, references, strict=True)
    found = [bleu_terms(text, Example("e", "prompt", reference)) for text, reference in pairs]
    return np.array(found, dtype=np.float64)


@pytest.mark.parametrize(
    ("references", "texts"),
    [
        (REFERENCES, TEXTS),
        (REFERENCES, REFERENCES),
        (REFERENCES[:1], ["A traffic light on the village road."]),  # no match of four words
        (REFERENCES[:1], ["A village."]),  # too short for four words
        (REFERENCES[:1], [""]),
        (REFERENCES[:1], ["zzz"]),
    ],
)
def test_corpus_bleu_is_sacrebleu_s(references: list[str], texts: list[str]) -> None:
    found = corpus_bleu(terms(references, texts).sum(axis=0))
    assert found == pytest.approx(expected(references, texts), abs=1e-8)


def test_smoothing_is_that_of_sacrebleu_for_any_counts() -> None:
    rng = random.Random(0)
    for _ in range(200):
        total = sorted((rng.randint(0, 9) for _ in range(4)), reverse=True)
        correct = [rng.randint(0, n) for n in total]
        lengths = [total[0], rng.randint(1, 12)]
        known = BLEU.compute_bleu(correct[:], total[:], *lengths, smooth_method="exp").score
        found = corpus_bleu(np.array([*lengths, *correct, *total], dtype=np.float64))
        assert found == pytest.approx(known / 100, abs=1e-12)


def test_many_corpora_at_once_equal_single_corpora() -> None:
    rows = terms(REFERENCES, TEXTS)
    assert list(corpus_bleu(rows)) == [float(corpus_bleu(row)) for row in rows]


def test_a_sentence_with_itself_scores_1_and_with_nothing_0() -> None:
    for reference in REFERENCES:
        example = Example("e", "prompt", reference)
        assert sentence_bleu(reference, example) == pytest.approx(1, abs=1e-12)
        assert sentence_bleu("", example) == 0
        assert 0 < sentence_bleu(reference + " and much more of it", example) < 1


@pytest.mark.skipif("SPECBENCH_TEST_DATA" not in os.environ, reason="needs the real files")
def test_real_translations_score_as_by_sacrebleu() -> None:
    path = Path(os.environ["SPECBENCH_TEST_DATA"]) / "wmt16" / "test.jsonl"
    rows = [json.loads(line)["translation"] for line in path.open(encoding="utf-8")]
    references, rng = [row["en"] for row in rows], random.Random(0)
    worse = [" ".join(w for w in text.split() if rng.random() > 0.2) for text in references]
    known = expected(references, worse)
    assert 0.3 < known < 0.9
    for texts, score in ((worse, known), (references, 1.0)):
        assert corpus_bleu(terms(references, texts).sum(axis=0)) == pytest.approx(score, abs=1e-8)
    assert corpus_bleu(terms(references, [row["de"] for row in rows]).sum(axis=0)) < 0.05
