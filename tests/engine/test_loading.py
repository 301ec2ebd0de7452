"""Loading a pair from disk, and one sentence for each way in which that can fail."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.engine import sources
from specbench.engine.loading import load_pair
from specbench.engine.settings import Loading
from specbench.errors import RunError, UsageError
from specbench.methods.rules import sd
from specbench.pairs.registry import PairSpec, custom_pair

from ..decoding.helpers import run
from .tiny import VOCABULARY, build, config, random_prompt


def test_a_pair_is_loaded_and_cut_to_its_shared_vocabulary(spec: PairSpec) -> None:
    pair = load_pair(spec, Loading("cpu", "float32"))
    assert pair.name == "target+draft"
    assert pair.target.vocabulary == pair.draft.vocabulary == VOCABULARY
    assert pair.draft.output.weight.shape[0] == 72
    assert pair.eos_ids == {5, 7}
    assert pair.tokenizer.decode([0, 1, 62, 2]) == "ab c"
    assert not pair.target.model.training
    assert len(run(pair, random_prompt(5), sd, max_new_tokens=4).rounds) > 0


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_number_formats(spec: PairSpec, name: str, dtype: torch.dtype) -> None:
    pair = load_pair(spec, Loading("cpu", name))
    assert {pair.target.model.dtype, pair.draft.model.dtype} == {dtype}


@pytest.mark.parametrize("device", ["gpu", "cuda:99", ""])
def test_an_unknown_device_is_refused(spec: PairSpec, device: str) -> None:
    with pytest.raises(UsageError, match=f"no device {device} here: use"):
        load_pair(spec, Loading(device, "float32"))


@pytest.mark.parametrize("dtype", ["float31", "int64", "Tensor", ""])
def test_an_unknown_dtype_is_refused(spec: PairSpec, dtype: str) -> None:
    with pytest.raises(UsageError, match=f"unknown dtype {dtype}: use"):
        load_pair(spec, Loading("cpu", dtype))


@pytest.mark.parametrize(
    "name", ["nothing", "./nothing", "/no/thing", "no/such/thing", "~/nothing"]
)
def test_a_missing_folder_is_refused(spec: PairSpec, name: str) -> None:
    for wrong in (replace(spec, target=name), replace(spec, draft=name)):
        with pytest.raises(UsageError, match=f"no model folder {name}: give a folder"):
            load_pair(wrong, Loading("cpu", "float32"))


def test_a_folder_without_a_model_is_refused(spec: PairSpec, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"cannot load .*empty .*: give a folder with a model"):
        load_pair(replace(spec, draft=str(tmp_path / "empty")), Loading("cpu", "float32"))


def test_a_truncated_model_is_refused(spec: PairSpec) -> None:
    weights = Path(spec.draft) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"cannot load .*draft") as caught:
        load_pair(spec, Loading("cpu", "float32"))
    assert "\n" not in str(caught.value)


def test_the_pairs_number_format_holds_where_none_is_asked_for(spec: PairSpec) -> None:
    own = replace(spec, dtype="float64")
    assert load_pair(own, Loading("cpu")).target.dtype == torch.float64
    assert load_pair(own, Loading("cpu", "bfloat16")).draft.dtype == torch.bfloat16


def test_missing_weights_are_refused_though_transformers_would_make_some_up(spec: PairSpec) -> None:
    file = Path(spec.target) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"1 of its weights are missing, model\.layers\.1\.mlp"):
        load_pair(spec, Loading("cpu"))


def test_a_token_of_the_prompt_that_a_model_lacks_is_refused(spec: PairSpec) -> None:
    pair = load_pair(spec, Loading("cpu"))
    with pytest.raises(RunError, match=f"token {VOCABULARY}, which a model of {VOCABULARY} tokens"):
        run(pair, [1, VOCABULARY, 2], sd)


def test_facts_say_how_a_pair_was_loaded(spec: PairSpec) -> None:
    facts = load_pair(replace(spec, thinking=True), Loading("cpu")).facts
    assert (facts["load_format"], facts["thinking"]) == ("auto", True)
    assert facts["shared_vocabulary"] == VOCABULARY
    assert facts["target_commit"] is None  # a folder has none
    json.dumps(facts)


# Revisions, licences, access tokens and foreign code: what is asked of the hub, and what is told.


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Keep what is asked for and say that nothing is there."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def from_pretrained(name: str, **options: Any) -> None:
        calls.append((name, options))
        raise OSError("nothing here")

    monkeypatch.setattr(AutoConfig, "from_pretrained", from_pretrained)
    return calls


@pytest.mark.parametrize(
    ("own", "typed", "expected"),
    [(None, None, None), ("v1", None, "v1"), (None, "v2", "v2"), ("v1", "v2", "v2")],
)
def test_a_revision_is_passed_on_the_users_before_the_pairs(
    asked: list[tuple[str, dict[str, Any]]],
    own: str | None,
    typed: str | None,
    expected: str | None,
) -> None:
    spec = PairSpec("p", "org/big", "org/small", target_revision=own, draft_revision="other")
    with pytest.raises(UsageError, match="cannot load org/big"):
        load_pair(spec, Loading("cpu", target_revision=typed))
    assert [(name, options.get("revision")) for name, options in asked] == [("org/big", expected)]


SCRIPT = """
import json
from specbench.engine.loading import load_pair
from specbench.engine.settings import Loading
from specbench.pairs.registry import custom_pair
pair = load_pair(custom_pair("org/target", "org/draft"), Loading("cpu", target_revision="v1"))
print(json.dumps({**pair.facts, "fingerprint": pair.target.fingerprint()}))
"""


def test_a_pair_comes_from_the_hubs_cache_at_its_revision(spec: PairSpec, tmp_path: Path) -> None:
    """Two versions of the target lie in the cache; the newest has other weights."""
    own = load_pair(spec, Loading("cpu")).target.fingerprint()
    newest = tmp_path / "newest"
    shutil.copytree(spec.target, newest)
    build(config("llama"), seed=9).save_pretrained(newest)
    cached = {
        "target": [("v1", "a" * 40, Path(spec.target)), ("main", "b" * 40, newest)],
        "draft": [("main", "c" * 40, Path(spec.draft))],
    }
    for role, versions in cached.items():
        place = tmp_path / "home" / "hub" / f"models--org--{role}"
        (place / "refs").mkdir(parents=True)
        for name, sha, folder in versions:
            (place / "refs" / name).write_text(sha)
            shutil.copytree(folder, place / "snapshots" / sha)
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(found.stdout)
    assert (facts["target_commit"], facts["draft_commit"]) == ("a" * 40, "c" * 40)
    assert facts["fingerprint"] == own


@pytest.mark.parametrize("trust", [False, True])
def test_foreign_code_is_never_asked_about_on_the_terminal(
    asked: list[tuple[str, dict[str, Any]]], trust: bool
) -> None:
    with pytest.raises(UsageError):
        load_pair(custom_pair("org/big", "org/small"), Loading("cpu", trust_remote_code=trust))
    assert asked[0][1]["trust_remote_code"] is trust


def test_a_model_with_code_of_its_own_names_the_option(spec: PairSpec) -> None:
    file = Path(spec.target) / "config.json"
    described = json.loads(file.read_text()) | {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.OwnConfig"},
    }
    file.write_text(json.dumps(described))
    with pytest.raises(UsageError, match=r"code of its own: read it, then give --trust-remote"):
        load_pair(spec, Loading("cpu"))


def failing(error: Exception, cause: Exception | None = None) -> Callable[..., None]:
    def from_pretrained(name: str, **options: Any) -> None:
        raise error from cause

    return from_pretrained


def hub_error(kind: type[Exception]) -> Exception:
    """As the hub's client raises it, without a response."""
    return kind.__new__(kind)


SECRET = "hf_AbCdEfGhIjKlMnOp"


@pytest.mark.parametrize(
    ("error", "cause", "told"),
    [
        (
            OSError("You are trying to access a gated repo.\nMake sure to have access"),
            None,
            "org/big is gated: accept the licence on the model's page and set HF_TOKEN",
        ),
        (
            OSError("403 Client Error"),
            hub_error(GatedRepoError),
            "org/big is gated: accept the licence on the model's page and set HF_TOKEN",
        ),
        (
            OSError("org/big is not a local folder"),
            hub_error(RepositoryNotFoundError),
            "the hub has no org/big, or none for everyone: check the name, or set HF_TOKEN",
        ),
        (
            OSError(f"cannot connect as {SECRET}.\nmore"),
            None,
            "cannot load org/big from the hub (cannot connect as hf_***): check the network",
        ),
        (ImportError("needs autoawq"), None, "cannot load org/big (needs autoawq): install"),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line_without_a_token(
    monkeypatch: pytest.MonkeyPatch, error: Exception, cause: Exception | None, told: str
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(AutoConfig, "from_pretrained", failing(error, cause))
    with pytest.raises(UsageError) as caught:
        load_pair(custom_pair("org/big", "org/small"), Loading("cpu"))
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value) and SECRET not in str(caught.value)


def test_who_has_a_token_is_told_that_its_account_needs_the_licence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-of-no-known-form")
    error = OSError("gated repo, said to secret-of-no-known-form")
    monkeypatch.setattr(AutoConfig, "from_pretrained", failing(error))
    with pytest.raises(UsageError, match="set HF_TOKEN to a token of that account") as caught:
        load_pair(custom_pair("org/big", "org/small"), Loading("cpu"))
    assert "secret" not in str(caught.value)


def test_running_out_of_memory_is_told_in_one_line(
    spec: PairSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", failing(error))
    with pytest.raises(UsageError, match=r"target\+draft does not fit into the memory of cpu: "):
        load_pair(spec, Loading("cpu"))


# Packages that only some ways of loading need.


@pytest.mark.parametrize(
    ("loading", "package"),
    [
        (Loading("cpu", quantization="8bit"), "--quantization 8bit needs the package bitsandbytes"),
        (Loading("cpu", quantization="4bit"), "--quantization 4bit needs the package bitsandbytes"),
        (Loading("cpu", device_map="auto"), "--device-map needs the package accelerate"),
    ],
)
def test_a_package_that_is_not_there_is_named(
    spec: PairSpec, loading: Loading, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"{package}, which is not here: install it"):
        load_pair(spec, loading)


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"load_format": "random"}, "--load-format cannot be 'random': choose auto or dummy"),
        ({"quantization": "2bit"}, "--quantization cannot be '2bit': choose 8bit or 4bit"),
        ({"load_format": "dummy", "device_map": "auto"}, "leave out --device-map"),
    ],
)
def test_choices_that_are_none_are_refused(choices: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Loading(**choices)  # type: ignore[arg-type]
