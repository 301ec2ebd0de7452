"""BLEU against sacrebleu's own command line."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specbench.example import Example
from specbench.metrics.bleu import bleu_terms, corpus_bleu, sentence_bleu

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


def command(references: list[str], texts: list[str], folder: Path) -> float:
    """Corpus BLEU of sacrebleu's command, in [0, 1], for one segment per line."""
    for name, lines in (("ref", references), ("hyp", texts)):
        (folder / name).write_text("".join(f"{' '.join(t.split())}\n" for t in lines))
    line = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-b", "-w", "6"]
    run = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True)
    return float(run.stdout) / 100


def corpus(references: list[str], texts: list[str]) -> float:
    pairs = zip(texts, references, strict=True)
    terms = [bleu_terms(text, Example("e", "prompt", reference)) for text, reference in pairs]
    return float(corpus_bleu(np.array(terms, dtype=np.float64).sum(axis=0)))


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
def test_corpus_bleu_is_what_the_command_says(
    references: list[str], texts: list[str], tmp_path: Path
) -> None:
    expected = command(references, texts, tmp_path)
    assert corpus(references, texts) == pytest.approx(expected, abs=1e-8)


def test_smoothing_is_that_of_sacrebleu_for_any_counts() -> None:
    from sacrebleu.metrics.bleu import BLEU

    rng = random.Random(0)
    for _ in range(200):
        total = sorted((rng.randint(0, 9) for _ in range(4)), reverse=True)
        correct = [rng.randint(0, n) for n in total]
        lengths = [total[0], rng.randint(1, 12)]
        expected = BLEU.compute_bleu(correct[:], total[:], *lengths, smooth_method="exp").score
        found = corpus_bleu(np.array([*lengths, *correct, *total], dtype=np.float64))
        assert found == pytest.approx(expected / 100, abs=1e-12)


def test_many_corpora_at_once_are_each_by_itself() -> None:
    terms = np.array(
        [bleu_terms(t, Example("e", "", r)) for t, r in zip(TEXTS, REFERENCES, strict=True)],
        dtype=np.float64,
    )
    assert list(corpus_bleu(terms)) == [float(corpus_bleu(row)) for row in terms]


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_sentence_with_itself_scores_1_and_with_nothing_0(reference: str) -> None:
    example = Example("e", "prompt", reference)
    assert sentence_bleu(reference, example) == pytest.approx(1, abs=1e-12)
    assert sentence_bleu("", example) == 0
    assert 0 < sentence_bleu(reference + " and much more of it", example) < 1


@pytest.mark.skipif("SPECBENCH_TEST_DATA" not in os.environ, reason="needs the real files")
def test_real_translations_score_as_by_the_command(tmp_path: Path) -> None:
    path = Path(os.environ["SPECBENCH_TEST_DATA"]) / "wmt16" / "test.jsonl"
    rows = [json.loads(line)["translation"] for line in path.open(encoding="utf-8")]
    references = [row["en"] for row in rows]
    rng = random.Random(0)

    def worse(text: str) -> str:
        words = [word for word in text.split() if rng.random() > 0.2]
        return " ".join(words)

    texts = [worse(text) for text in references]
    expected = command(references, texts, tmp_path)
    assert 0.3 < expected < 0.9
    assert corpus(references, texts) == pytest.approx(expected, abs=1e-8)
    assert corpus(references, references) == pytest.approx(1, abs=1e-12)
    german = [row["de"] for row in rows]
    assert corpus(references, german) < 0.05
