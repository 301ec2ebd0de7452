"""``tasks/train_drafter.py``: linear starts, and from the command line to a head that drafts."""

import json
import sys
from pathlib import Path
from typing import Any

import export_pair
import pytest
import torch
import train_drafter
from drafters import session, training
from drafters.recipe import DrafterRecipe
from drafters.start import initial_module, start_linearly
from drafters.texts import read_target

from specbench.cli.app import main
from specbench.training.recipe import CHECKPOINT
from tests.engine.tiny import random_prompt, tiny_pair

TASK = ("-t", "mini-headline", "--texts", "8", "--batch-size", "4", "--no-progress")
LENGTH = (*TASK, "--steps", "3", "--depths", "2")
LINEAR = ("--start", "linear", "--prompts", "--depth-weight", "0.5", "--layers", "2,8")


def train(*words: str) -> Any:
    """Run the script; return its exit code, or its error."""
    with pytest.raises(SystemExit) as end:
        train_drafter.main(words)
    return end.value.code


@pytest.mark.parametrize("shape", [("--hidden-size", "64"), LINEAR])
def test_an_interrupted_training_resumes_and_its_module_drafts(
    shape, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "SAVE_EVERY", 1)
    monkeypatch.setattr(session, "HELD_OUT", 3)
    monkeypatch.setattr(session, "WARM_UPS", 0)
    assert train(*LENGTH, *shape, "--output", "whole") == 0
    printed = capsys.readouterr()
    assert "tokens per round at" in printed.err and "whole: " in printed.err
    description = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert description["held_out"]["n"] == 3
    assert [*description["held_out"]["drafters"]] == ["eagle3", "model"]
    assert sorted(p.name for p in (tmp_path / "whole").iterdir()) == [
        *("config.json", "model.safetensors", "training.csv", "training.json")
    ]

    steps = training.DrafterTraining.steps

    def interrupted(self, folder):
        yield next(steps(self, folder))
        raise KeyboardInterrupt

    parts = (*LENGTH, *shape, "--output", "parts")
    monkeypatch.setattr(training.DrafterTraining, "steps", interrupted)
    assert "the same command resumes" in train(*parts)
    monkeypatch.setattr(training.DrafterTraining, "steps", steps)
    if shape == LINEAR:
        checkpoint = next(Path("parts").rglob(CHECKPOINT))
        whole_bytes = checkpoint.read_bytes()
        for junk in (whole_bytes[:200], b"junk"):
            checkpoint.write_bytes(junk)
            assert "cannot be read: delete it" in train(*parts)
        checkpoint.write_bytes(whole_bytes)
        assert "is that of another recipe" in train(*parts, "--seed", "1")
    assert train(*parts) == 0
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "already contains a module" in train(*parts)

    line = printed.out.splitlines()[-1].removeprefix("use it: specbench ").split()
    with pytest.raises(SystemExit) as end:
        main([*line, "--limit", "1", "--output", "r", "--no-progress"])
    assert end.value.code == 0 and "sd whole" in capsys.readouterr().out


def test_a_pair_is_exported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["export_pair.py", "mini", "--output", str(tmp_path)])
    export_pair.main()
    files = [tmp_path / f"{role}-f32.gguf" for role in ("target", "draft")]
    assert capsys.readouterr().out == "".join(f"{file}\n" for file in files)
    assert all(file.stat().st_size > 0 for file in files)
    monkeypatch.setattr(sys, "argv", ["export_pair.py", "mini", "--output", f"{files[0]}/x"])
    with pytest.raises(SystemExit, match="is a file"):
        export_pair.main()


TEXTS = [random_prompt(n) for n in range(40, 80)]
LAYERS = {"eagle3": [0, 2], "mtp": None}


@pytest.mark.parametrize("kind", LAYERS)
@torch.no_grad()
def test_a_linear_start_predicts_as_well_as_least_squares(kind):
    pair = tiny_pair("llama")
    target: Any = pair.runners[0]
    recipe = {"kind": kind, "intermediate_size": 64, "layers": LAYERS[kind]}
    module: Any = initial_module(*pair.runners, DrafterRecipe(**recipe))
    layer = module.mtp_layers[0] if kind == "mtp" else module.layers[0]

    def relative_error():
        """Squared error of the linear part, relative to the best one on these texts."""
        rows = []
        for text in TEXTS:
            tokens = torch.tensor([text])
            _, first, before, last = read_target(target, tokens, (0, 1, 2))[0].chunk(4, -1)
            states = module.fuse(last if kind == "mtp" else torch.cat((first, last), -1))[:-1]
            read = layer.joined(target.base.embed_tokens(tokens[0, 1:]), states)
            if kind == "mtp":
                rows.append((read, layer.input_proj(read), before[1:]))
            else:  # attention to the position itself, added to the state
                value = layer.self_attn["o_proj"](layer.self_attn["v_proj"](read))
                rows.append((read, value, before[1:] - states))
        inputs, linear, wanted = (torch.cat(part) for part in zip(*rows, strict=True))
        best = inputs @ torch.linalg.lstsq(inputs, wanted).solution
        return float((linear - wanted).square().sum() / (best - wanted).square().sum())

    assert relative_error() > 1.1
    start_linearly(module, target, TEXTS)
    assert relative_error() < 1.01
    gates = layer.mlp["gate_proj"], target.base.layers[1].mlp.gate_proj
    rows, neurons = (gate.weight for gate in gates)
    assert torch.equal(rows.sum(1).sort().values, neurons.sum(1).sort().values)
    assert not torch.equal(rows, neurons)  # the strongest first
