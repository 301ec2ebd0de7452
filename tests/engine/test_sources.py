"""Models of the hub: revisions, licences, access tokens and foreign code."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.config import Loading
from specbench.engine.loading import load_pair
from specbench.errors import UsageError
from specbench.pairs.registry import PairSpec, custom_pair

from .tiny import build, config


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
        load_pair(spec, Loading(device="cpu", target_revision=typed))
    assert [(name, options.get("revision")) for name, options in asked] == [("org/big", expected)]


SCRIPT = """
import json
from specbench.engine.loading import load_pair
from specbench.config import Loading
from specbench.pairs.registry import custom_pair
loading = Loading(device="cpu", target_revision="v1")
pair = load_pair(custom_pair("org/target", "org/draft"), loading)
print(json.dumps({**pair.facts, "fingerprint": pair.target.fingerprint()}))
"""


def test_a_pair_comes_from_the_hubs_cache_at_its_revision(spec: PairSpec, tmp_path: Path) -> None:
    """Two versions of the target lie in the cache; the newest has other weights."""
    own = load_pair(spec, Loading(device="cpu")).target.fingerprint()
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
        load_pair(
            custom_pair("org/big", "org/small"), Loading(device="cpu", trust_remote_code=trust)
        )
    assert asked[0][1]["trust_remote_code"] is trust


def test_a_model_with_code_of_its_own_names_the_option(spec: PairSpec) -> None:
    file = Path(spec.target) / "config.json"
    described = json.loads(file.read_text()) | {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.OwnConfig"},
    }
    file.write_text(json.dumps(described))
    with pytest.raises(UsageError, match=r"code of its own: read it, then give --trust-remote"):
        load_pair(spec, Loading(device="cpu"))


def failing(error: Exception, cause: Exception | None = None) -> Callable[..., None]:
    def from_pretrained(name: str, **options: Any) -> None:
        raise error from cause

    return from_pretrained


def hub_error(kind: type[Exception]) -> Exception:
    """As the hub's client raises it, without a response."""
    return kind.__new__(kind)


SECRET = "hf_AbCdEfGhIjKlMnOp"


GATED = "org/big is gated: accept the licence on the model's page and set HF_TOKEN"
FAILURES: list[tuple[Exception, Exception | None, str]] = [
    (OSError("You are trying to access a gated repo.\nMake sure"), None, GATED),
    (OSError("403 Client Error"), hub_error(GatedRepoError), GATED),
    (OSError("no folder"), hub_error(RepositoryNotFoundError), "the hub has no org/big, or none"),
    (OSError(f"as {SECRET}.\nmore"), None, "cannot load org/big from the hub (as hf_***)"),
    (ImportError("needs autoawq"), None, "cannot load org/big (needs autoawq): install"),
]


def test_what_cannot_be_had_is_told_in_one_line_without_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for error, cause, told in FAILURES:
        monkeypatch.setattr(AutoConfig, "from_pretrained", failing(error, cause))
        with pytest.raises(UsageError) as caught:
            load_pair(custom_pair("org/big", "org/small"), Loading(device="cpu"))
        assert str(caught.value).startswith(told)
        assert "\n" not in str(caught.value) and SECRET not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "secret-of-no-known-form")
    gated = OSError("gated repo, said to secret-of-no-known-form")
    monkeypatch.setattr(AutoConfig, "from_pretrained", failing(gated))
    with pytest.raises(UsageError, match="set HF_TOKEN to a token of that account") as caught:
        load_pair(custom_pair("org/big", "org/small"), Loading(device="cpu"))
    assert "secret" not in str(caught.value)


def test_running_out_of_memory_is_told_in_one_line(
    spec: PairSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", failing(error))
    with pytest.raises(UsageError, match=r"target\+draft does not fit into the memory of cpu: "):
        load_pair(spec, Loading(device="cpu"))
