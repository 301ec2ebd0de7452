import sys

import finetune_draft
import pytest
import torch
from safetensors.torch import load_file

from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, get_pair, with_draft


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["finetune_draft.py", *map(str, words)])
    finetune_draft.main()


def test_the_result_is_a_better_draft_in_an_ordinary_folder(tmp_path, monkeypatch, capsys):
    line = ("-t", "mini-headline", "-o", tmp_path / "new", "--steps", "60", "--batch-size", "8")
    run(monkeypatch, *line)
    before, *_, after = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert after < before - 0.03
    assert not list(tmp_path.glob(".*"))
    pair = get_pair("mini")
    tuned = load_pair(with_draft(pair, str(tmp_path / "new")), Loading(device="cpu"))
    assert tuned.draft.vocabulary == load_pair(pair, Loading(device="cpu")).draft.vocabulary
    stored = load_file(tmp_path / "new" / "model.safetensors")
    assert {weights.dtype for weights in stored.values()} == {torch.bfloat16}
    with pytest.raises(SystemExit, match="exists"):
        run(monkeypatch, *line)
