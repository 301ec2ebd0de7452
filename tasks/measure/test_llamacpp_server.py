"""llama.cpp's server with the bundled pair, as scripts start it."""

from importlib.util import find_spec

import pytest

from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.prompts import encode
from specbench.errors import UsageError
from specbench.tasks.task import load_task
from specbench.validation.texts import Context, decode_one
from tasks.measure.llamacpp_server import exported_files, llamacpp_server

LIMIT = 12


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the package xllamacpp")
def test_the_server_of_llamacpp(tmp_path):
    mini = load_pair(get_pair("mini"), Loading(device="cpu"))
    (example,) = load_task("mini-math").examples("test", 1)
    prompt = encode(mini.tokenizer, example.prompt).ids
    expected = decode_one(mini, Context("", prompt), LIMIT).token_ids
    files = exported_files("mini", tmp_path)
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
