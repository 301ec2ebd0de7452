"""Pairs on disk: one small enough to write for every test, and the bundled one as GGUF files."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from specbench.engine.pairs import PairSpec, custom_pair, get_pair

from .tiny import blurred, build, config, tokenizer

needs_llamacpp = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("gguf") is None,
    reason="needs the packages xllamacpp and gguf",
)


def run_simulated(code: str) -> None:
    """Run code in another process, where Triton simulates a GPU."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.fixture(scope="session")
def mini_files(once) -> Path:
    """The folder with the bundled pair as float32 files."""
    from export_pair import export_pair

    return once("gguf-files", lambda folder: export_pair(get_pair("mini"), folder, "f32"))


@pytest.fixture
def spec(once, tmp_path) -> PairSpec:
    """A target, and a draft whose embedding has eight rows more than there are tokens."""
    pair = shutil.copytree(once("pair on disk", save_pair), tmp_path, dirs_exist_ok=True)
    return custom_pair(str(pair / "target"), str(pair / "draft"))


def save_pair(folder: Path) -> None:
    target = build(config("llama", eos_token_id=5))
    target.generation_config.eos_token_id = [5, 7]
    draft = blurred(build(config("llama")), noise=0.01)
    draft.resize_token_embeddings(72, mean_resizing=False)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        tokenizer().save_pretrained(folder / name)
