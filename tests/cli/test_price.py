"""``specbench price``: prices of a run, of texts in a file and of recorded rounds."""

import io
import json
import shutil
from pathlib import Path

import pandas as pd


def test_a_run_is_priced_once_and_compared_with_its_rounds(cli, finished):
    shutil.copytree(finished, "run")
    options = ("-t", "mini-math", "--draft-length", "2,3", "--drafting", "fixed,svip:0.9")
    first = cli("price", "run", *options, "--format", "csv", code=0)
    rows = pd.read_csv(io.StringIO(first.out))
    assert len(rows) == 3 * 2 * 2
    assert rows["tokens_per_round"].between(1, 4).all()
    stored = Path("run/scores.jsonl.gz")
    before = stored.stat().st_mtime_ns
    again = cli("price", "run", *options)
    assert "sd, model, N = 3" in again.out and "Recorded rounds" in again.out
    assert stored.stat().st_mtime_ns == before  # nothing was scored again
    with_head = cli("price", "run", *options, "--drafter", "eagle3,eagle3/block", "--format", "csv")
    rows = pd.read_csv(io.StringIO(with_head.out))
    tokens = rows[rows["policy"] == "fixed"].groupby("draft_length")["tokens_per_round"]
    assert (tokens.min() > 1).all() and (tokens.nunique() == 2).all()


def test_texts_of_a_file_are_priced(cli):
    lines = [{"prompt": f"What is {n} + 2?", "answer": f"{n} + 2 = {n + 2}."} for n in range(2)]
    Path("texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ("price", "--prompts", "texts.jsonl", "--draft-length", "2")
    assert "texts on mini" in cli(*asked, "--texts", "answer", "--output", "out").out
    assert Path("out/scores.jsonl.gz").is_file()
    missing = cli(*asked, "--texts", "reply")
    assert missing.code == 2 and "has no text in the column reply" in missing.err
