"""What commands say of their progress where the output is no terminal."""

from contextlib import contextmanager

import pytest

from specbench.experiment.lines import LINES
from specbench.experiment.progress import Display

from .test_train import TINY

SMALL = "-t mini-math -n 1 --max-new-tokens 4 --device cpu"
COMMANDS = {
    f"run -m sd {SMALL} -o out": "2 of 2 samples, ",
    f"sweep-weights --weights 0.5 {SMALL} -o out": " samples, ",
    "verify r -n 1": " samples, ",
    "score r": " samples, ",
    "price r -t mini-math -n 1 --draft-length 1": " of 2 texts, ",
    "audit --decoder transformers -t mini-math -n 1 --samples 1 -o out": " of 5 prompts, ",
    "bench --batch-size 1 --new-tokens 4 --repeats 1 --no-transformers -m sd": " measurements, ",
    "check -t mini-math -n 1 --samples 1 --drafter greedy -m sd -o out": "timing, ",
    " ".join(TINY): "3 of 3 steps, ",
}


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize(("line", "last"), COMMANDS.items())
def test_long_commands_tell_their_progress(cli, monkeypatch, models, run, line, last, silent):
    ends = []

    @contextmanager
    def printed(progress):
        yield
        ends.append(progress())

    monkeypatch.setattr(LINES, "printed", printed)
    done = cli(*line.split(), *(["--no-progress"] if silent else []))
    assert done.code in (0, 1, 2) and "rror: --" not in done.err, done.err
    assert any(last in end for end in ends) != silent, (ends, done.err)
    assert "progress:" not in done.err


def test_texts_that_are_decoded_are_not_called_loading(cli, monkeypatch):
    """A batch of llama.cpp, say, takes minutes until its first text is finished."""
    events = list[tuple[object, ...]]()
    monkeypatch.setattr(Display, "doing", lambda self, *texts: events.append(texts))
    monkeypatch.setattr(Display, "__call__", lambda self, *records: events.append(("done",)))
    assert cli(*f"run -m sd {SMALL} -o out".split()).code == 0
    assert events[:3] == [("loading the models",), ("autoregressive", "mini-math"), ("done",)]
