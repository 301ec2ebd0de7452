"""All metrics tell right from wrong; similarity to a reference by hand and against libraries."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU

from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.metrics import METRICS, get_metric, score
from specbench.tasks.metrics.overlap import bleu_terms, corpus_bleu, sentence_bleu

from ...synthetic import sample_record
from ...told import DATA

EXAMPLE = Example("e", "x = ", reference=" f(1)", code_prefix="def g():\n    x =")


def test_edit_similarity_by_hand_and_a_completion_that_parses():
    for text, expected in (
        ("f(1)\n", 1.0),
        ("", 0.0),
        ("f(2)", 0.75),  # one deletion and one insertion among eight characters
        ("f(1) + 1", 2 * 4 / 12),
    ):
        assert score("edit-similarity", text, EXAMPLE) == pytest.approx(expected)
    for metric, text, expected in (
        *(("exact-match", "f(1) ", 1), ("exact-match", "f( 1)", 0)),  # but for space around it
        *(("parses", " f(1)\n    return x", 1), ("parses", " f(1", 0)),  # with its prefix
        *(("parses", " 1\n  return x", 0), ("parses", " \0", 0)),
    ):
        assert score(metric, text, EXAMPLE) == expected


GREEDY = "The answer is 42, of course."


def scores(text: str, greedy: str = GREEDY) -> tuple[float, float]:
    example = Example("e", "prompt", greedy=greedy)
    return score("agreement", text, example), score("agreement-prefix", text, example)


@pytest.mark.parametrize("text", [GREEDY, "Да, это так!", "はい、そうです。", "?!", ""])
def test_identical_texts_agree_in_any_script(text):
    assert scores(text, text) == (1.0, 1.0)


def test_agreement_by_hand():
    for text, common, same in (
        ("The answer is 41, of course.", 7, 3),  # of eight words each, punctuation counts
        *(("So the answer is 42, of course.", 8, 0), ("The answer is 42", 4, 4), ("No idea", 0, 0)),
        ("", 0, 0),
    ):
        words = len(text.replace(",", " ,").replace(".", " .").split())
        rouge = 2 * common / (words + 8)
        assert scores(text) == pytest.approx((rouge, same / max(words, 8)))


ROUGES = ("rouge1", "rouge2", "rougeL")


def test_f1_by_hand():
    """``f1.tsv``: metric, F1, text and reference, in which ⏎ is the end of a line."""
    for line in (DATA / "f1.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            metric, f1, text, reference = line.replace("⏎", "\n").split("\t")
            measured = score(metric, text, Example("e", "prompt", reference))
            assert measured == pytest.approx(float(Fraction(f1)), abs=1e-12), line


def test_english_rouge_is_that_of_rouge_score():
    english = "Andros Townsend silenced “it’s £5” – at Man United’s café, " + "so " * 90
    scorer = RougeScorer(ROUGES, use_stemmer=True)
    for reference in (*REFERENCES, english):
        for text in (*REFERENCES, english, "Zürich 上海 cafe", ""):
            f1 = scorer.score(reference, text)
            example = Example("e", "prompt", reference)
            assert [score(m, text, example) for m in ROUGES] == [f1[m].fmeasure for m in ROUGES]


@pytest.mark.parametrize("metric", ["rouge1", "bleu", "exact-match", "edit-similarity", "accuracy"])
def test_of_several_references_the_best_counts(metric):
    example = Example("e", "prompt", "#### 5", alternatives=(("#### 7", "#### 8"),))
    turns = replace(example, turns=("a", "b"), references=("#### 5", "#### 6"))
    turns = replace(turns, alternatives=((), ("#### 7",)))
    assert [score(metric, f"#### {n}", example) == 1 for n in (5, 7, 8, 6)] == [*[True] * 3, False]
    first, second = (turns.scored(sample_record(turn=turn)) for turn in (1, 2))
    assert [score(metric, f"#### {n}", second) == 1 for n in (6, 7, 5)] == [True, True, False]
    assert [score(metric, f"#### {n}", first) == 1 for n in (5, 7)] == [True, False]
    assert bleu_terms("#### 8", example) == bleu_terms("#### 8", Example("e", "", "#### 8"))


@pytest.mark.parametrize("metric", ROUGES)
def test_only_the_first_32_words_of_the_text_count(metric):
    words = [f"w{i}" for i in range(40)]
    example = Example("e", "prompt", " ".join(words[:32]))
    start, longer = " ".join(words[:32]), "  \n".join(words)
    assert score(f"{metric}-32", longer, example) == 1
    assert score(metric, longer, example) < 1
    assert score(f"{metric}-32", start, example) == score(metric, start, example) == 1
    assert score(f"{metric}-32", " ".join(words[8:]), example) < 1
    # Punctuation is not a word in rouge-score but counts as one here.
    assert score(f"{metric}-32", "- " * 8 + start, example) < 1
    # The reference is never cut.
    assert score(f"{metric}-32", longer, Example("e", "prompt", longer)) < 1


@pytest.mark.skipif("SPECBENCH_TEST_DATA" not in os.environ, reason="needs the real files")
@pytest.mark.parametrize(("task", "column"), [("xsum", "summary"), ("cnndm", "highlights")])
def test_real_references_with_themselves_score_1(task, column):
    path = Path(os.environ["SPECBENCH_TEST_DATA"]) / task / "test.jsonl"
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    examples = [Example("e", "prompt", row[column]) for row in rows][:60]
    lengths = [len(row[column].split()) for row in rows][:60]
    assert min(lengths) <= 32
    for example, length in zip(examples, lengths, strict=True):
        text = example.reference or ""
        assert all(score(metric, text, example) == 1 for metric in ROUGES)
        assert (score("rouge2-32", text, example) == 1) == (length <= 32)


REFERENCES = [
    "A traffic accident occurred on Friday evening on the road to the village.",
    "The rider was only slightly injured, thanks to his quick reaction.",
    *("Biker reacts lightning fast", "It cost 1,234.50 euros - or so they said."),
    *("No one's there!", "A line-end hyphen is no hyphen."),
]
TEXTS = [
    "A road accident happened on Friday evening on the road to the village.",
    "The rider was slightly injured only,  thanks to a quick reaction.",
    "Biker reacts lightning fast",
    "It cost 1,234.50 euros -\nor so they said.\n\nThat is all.",
    "",
    "Nothing shared whatsoever",
]


def by_sacrebleu(references: list[str], texts: list[str]) -> float:
    """Corpus BLEU by sacrebleu, in [0, 1], with each text on its own line."""
    lines, right = ([" ".join(t.split()) for t in each] for each in (texts, references))
    return sacrebleu.corpus_bleu(lines, [right]).score / 100


def terms(references: list[str], texts: list[str]) -> np.ndarray:
    pairs = zip(texts, references, strict=True)
    term_rows = [bleu_terms(text, Example("e", "prompt", reference)) for text, reference in pairs]
    return np.array(term_rows, dtype=np.float64)


def test_corpus_bleu_is_sacrebleu_s():
    for references, texts in (
        (REFERENCES, TEXTS),
        (REFERENCES, REFERENCES),
        (REFERENCES[:1], ["A traffic light on the village road."]),  # no match of four words
        (REFERENCES[:1], ["A village."]),  # too short for four words
        (REFERENCES[:1], [""]),
        (REFERENCES[:1], ["zzz"]),
    ):
        bleu = corpus_bleu(terms(references, texts).sum(axis=0))
        assert bleu == pytest.approx(by_sacrebleu(references, texts), abs=1e-8)


def test_smoothing_is_that_of_sacrebleu_for_any_counts_and_many_corpora():
    rng = random.Random(0)
    for _ in range(200):
        total = sorted((rng.randint(0, 9) for _ in range(4)), reverse=True)
        correct = [rng.randint(0, n) for n in total]
        lengths = [total[0], rng.randint(1, 12)]
        expected = BLEU.compute_bleu(correct[:], total[:], *lengths, smooth_method="exp").score
        bleu = corpus_bleu(np.array([*lengths, *correct, *total], dtype=np.float64))
        assert bleu == pytest.approx(expected / 100, abs=1e-12)
    rows = terms(REFERENCES, TEXTS)
    assert list(corpus_bleu(rows)) == [float(corpus_bleu(row)) for row in rows]
    for reference in REFERENCES:
        example = Example("e", "prompt", reference)
        assert sentence_bleu(reference, example) == pytest.approx(1, abs=1e-12)
        assert sentence_bleu("", example) == 0
        assert 0 < sentence_bleu(reference + " and much more of it", example) < 1


@pytest.mark.skipif("SPECBENCH_TEST_DATA" not in os.environ, reason="needs the real files")
def test_real_translations_score_as_by_sacrebleu():
    path = Path(os.environ["SPECBENCH_TEST_DATA"]) / "wmt16" / "test.jsonl"
    rows = [json.loads(line)["translation"] for line in path.open(encoding="utf-8")]
    references, rng = [row["en"] for row in rows], random.Random(0)
    worse = [" ".join(w for w in text.split() if rng.random() > 0.2) for text in references]
    worse_bleu = by_sacrebleu(references, worse)
    assert 0.3 < worse_bleu < 0.9
    for texts, right in ((worse, worse_bleu), (references, 1.0)):
        assert corpus_bleu(terms(references, texts).sum(axis=0)) == pytest.approx(right, abs=1e-8)
    assert corpus_bleu(terms(references, [row["de"] for row in rows]).sum(axis=0)) < 0.05


ANSWERS = {
    "accuracy": ("#### 5", "#### 6"),
    "accuracy-flexible": ("5", "#### 6"),
    "edit-similarity": ("there are #### 5 of them", ""),  # most texts share letters
    "parses": ("1", "("),
    "pass@1": ("def f():\n    return 5", "def f():\n    return 6"),
}
REFERENCE = "there are #### 5 of them"


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_distinguishes_right_from_wrong_and_requires_its_field(metric):
    right, wrong = ANSWERS.get(metric, (REFERENCE, "none at all"))
    tests = ("assert f() == 5",)
    example = Example("e", "prompt", REFERENCE, tests, greedy=REFERENCE, code_prefix="y = 1\n")
    assert score(metric, right, example) == pytest.approx(1.0, abs=1e-12)
    assert score(metric, wrong, example) == 0.0
    assert METRICS[metric].executes == (metric == "pass@1")
    with pytest.raises(UsageError, match=f"`{metric}`.*`{METRICS[metric].needs}`.*`e7`"):
        score(metric, "text", Example("e7", "prompt"))


def test_an_unknown_metric_suggests_the_nearest_without_heavy_imports():
    for name, told in (("blue", "`bleu`"), ("quality", "`accuracy`.*`bleu`, .*`pass@1`")):
        with pytest.raises(UsageError, match=f"`{name}`.*{told}"):
            get_metric(name)
    heavy = "{'torch', 'transformers', 'pandas', 'numpy', 'nltk', 'rouge_score', 'sacrebleu'}"
    code = (
        "import sys, specbench.tasks.metrics, specbench.tasks.task, specbench.tasks.prompts\n"
        f"print(sorted({heavy} & set(sys.modules)))\n"
        "import specbench.analysis.statistics.summary; print('sacrebleu' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["[]", "False"]
