"""``specbench train-draft``, from the command line to a head that ``run`` drafts with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.training.folder import CHECKPOINT

from .conftest import Cli

TASK = ("-t", "mini-headline", "--texts", "8", "--batch-size", "4")
LENGTH = (*TASK, "--steps", "3", "--depths", "2")
LINEAR = ("--start", "linear", "--prompts", "--depth-weight", "0.5", "--layers", "2,8")


@pytest.mark.parametrize("shape", [("--hidden-size", "64"), LINEAR])
def test_an_interrupted_training_resumes_and_its_head_drafts(
    shape: tuple[str, ...], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.training import drafter, drafter_session

    monkeypatch.setattr(drafter, "SAVE_EVERY", 1)
    monkeypatch.setattr(drafter_session, "HELD_OUT", 3)
    monkeypatch.setattr(drafter_session, "WARM_UPS", 0)
    whole = cli("train-draft", *LENGTH, *shape, "--output", "whole")
    assert whole.code == 0
    assert "tokens per round at" in whole.err and "whole: " in whole.err
    description = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert description["held_out"]["n"] == 3
    assert [*description["held_out"]["drafters"]] == ["eagle3", "model"]
    assert sorted(p.name for p in (tmp_path / "whole").iterdir()) == [
        *("config.json", "model.safetensors", "training.csv", "training.json")
    ]

    steps = drafter.DrafterTraining.steps

    def interrupted(self: Any, folder: Path) -> Iterator[Any]:
        yield next(steps(self, folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(drafter.DrafterTraining, "steps", interrupted)
    stopped = cli("train-draft", *LENGTH, *shape, "--output", "parts")
    assert stopped.code == 130 and "add --resume" in stopped.err
    monkeypatch.setattr(drafter.DrafterTraining, "steps", steps)
    assert "unfinished training" in cli("train-draft", *LENGTH, *shape, "--output", "parts").err
    checkpoint = next(Path("parts").rglob(CHECKPOINT))
    whole_bytes = checkpoint.read_bytes()
    for junk in (whole_bytes[:200], b"junk"):
        checkpoint.write_bytes(junk)
        resumed = cli("train-draft", *LENGTH, *shape, "--output", "parts", "--resume")
        assert resumed.code == 2 and "is not a checkpoint of train-draft" in resumed.err
    checkpoint.write_bytes(whole_bytes)
    other = cli("train-draft", *LENGTH, *shape, "--seed", "1", "--output", "parts", "--resume")
    assert "is that of another recipe" in other.err
    assert cli("train-draft", *LENGTH, *shape, "--output", "parts", "--resume").code == 0
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (
        "already contains a module" in cli("train-draft", *LENGTH, *shape, "--output", "parts").err
    )

    line = whole.out.splitlines()[-1].removeprefix("use it: specbench ").split()
    used = cli(*line, "--limit", "1", "--output", "r")
    assert used.code == 0 and "sd whole" in used.out
