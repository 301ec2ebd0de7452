"""Models on the hub: revisions, licences, access tokens and foreign code."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, custom_pair
from specbench.errors import UsageError

from ..told import refusals
from .tiny import build, config

CPU = Loading(device="cpu")
HUB = custom_pair("org/big", "org/small")


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []

    def from_pretrained(name: str, **options: Any) -> None:
        calls.append((name, options))
        raise OSError("nothing here")

    monkeypatch.setattr(AutoConfig, "from_pretrained", from_pretrained)
    return calls


def test_revision_and_trust_are_passed_on_without_a_prompt_on_the_terminal(asked):
    for revision in (None, "v1"):
        spec = replace(HUB, target_revision=revision, draft_revision="other")
        for trust in (False, True):
            with pytest.raises(UsageError, match="cannot load org/big"):
                load_pair(spec, CPU.updated(trust_remote_code=trust))
            name, options = asked.pop()
            assert (name, options.get("revision")) == ("org/big", revision)
            assert options["trust_remote_code"] is trust


def test_a_pair_comes_from_the_hubs_cache_at_its_revision(spec, tmp_path, monkeypatch):
    """Two versions of the target are in the cache; the newest has other weights."""
    fingerprint = load_pair(spec, CPU).target.fingerprint()
    newest = tmp_path / "newest"
    shutil.copytree(spec.target, newest)
    build(config("llama"), seed=9).save_pretrained(newest)
    cached = {
        "big": [("v1", "a" * 40, Path(spec.target)), ("main", "b" * 40, newest)],
        "small": [("main", "c" * 40, Path(spec.draft))],
    }
    for name, versions in cached.items():
        place = tmp_path / "hub" / f"models--org--{name}"
        (place / "refs").mkdir(parents=True)
        for revision, sha, folder in versions:
            (place / "refs" / revision).write_text(sha)
            shutil.copytree(folder, place / "snapshots" / sha)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    pair = load_pair(replace(HUB, target_revision="v1"), CPU)
    assert pair.facts["target_commit"] == "a" * 40
    assert pair.facts["draft_commit"] == "c" * 40
    assert pair.target.fingerprint() == fingerprint
    assert load_pair(HUB, CPU).target.fingerprint() != fingerprint


SECRET = "hf_AbCdEfGhIjKlMnOp"
FAILURES: list[tuple[Exception, Exception | None]] = [
    (OSError("You are trying to access a gated repo.\nMake sure"), None),
    # As raised by the hub's client, without a response.
    (OSError("403 Client Error"), GatedRepoError.__new__(GatedRepoError)),
    (OSError("no folder"), RepositoryNotFoundError.__new__(RepositoryNotFoundError)),
    (OSError(f"as {SECRET}.\nmore"), None),
    (ImportError("needs autoawq"), None),
    (OSError("gated repo, said to secret-of-no-known-form"), None),
]


def test_a_missing_model_is_one_line_without_a_token(monkeypatch, stored):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    messages = []
    for error, cause in FAILURES:
        if "secret" in str(error):
            monkeypatch.setenv("HF_TOKEN", "secret-of-no-known-form")
        error.__cause__ = cause
        monkeypatch.setattr(AutoConfig, "from_pretrained", Mock(side_effect=error))
        messages.append(refusals(lambda: load_pair(HUB, CPU)))
    assert not any(secret in "".join(messages) for secret in (SECRET, "secret"))
    stored(*messages)


def test_running_out_of_memory_is_one_line(spec, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", Mock(side_effect=error))
    with pytest.raises(UsageError, match=r"target\+draft does not fit into the memory of cpu: "):
        load_pair(spec, CPU)
