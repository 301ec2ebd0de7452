"""Decoders of other libraries with the bundled pair."""

from importlib.util import find_spec

import pytest

from specbench.engine.pairs import get_pair
from specbench.engine.prompts import encode
from specbench.errors import UsageError
from specbench.experiment import assisted as loops
from specbench.experiment.assisted import Assisted
from specbench.tasks.task import load_task
from specbench.validation.libraries import llamacpp_server
from specbench.validation.texts import Context, decode_one

LIMIT = 12


@pytest.fixture(scope="module")
def prompt(mini) -> list[int]:
    (example,) = load_task("mini-math").examples("test", 1)
    return encode(mini.tokenizer, example.prompt).ids


@pytest.fixture(scope="module")
def expected(mini, prompt) -> list[int]:
    return decode_one(mini, Context("", prompt), LIMIT).token_ids


def test_a_version_without_the_weight_is_refused(mini, monkeypatch):
    monkeypatch.setattr(loops, "ENSEMBLE", "weight")
    with pytest.raises(UsageError, match="has no weight: install a newer one, or omit --weight"):
        Assisted(mini, 3, 0.5)


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the package xllamacpp")
def test_the_server_of_llamacpp(mini, prompt, expected, tmp_path):
    from specbench.engine.export import export_pair

    files = export_pair(get_pair("mini"), tmp_path, "f32")
    for draft in ([], files[1:]):
        with llamacpp_server(files[0], *draft, draft_length=3) as server:
            (greedy,) = server.complete(prompt, 0.0, 1, LIMIT, seed=0)
            assert greedy == (expected, False)
    (tmp_path / "junk.gguf").write_bytes(b"junk")
    with (
        pytest.raises(UsageError, match=r"llama\.cpp cannot serve .*junk\.gguf"),
        llamacpp_server(tmp_path / "junk.gguf", draft_length=3),
    ):
        pass
