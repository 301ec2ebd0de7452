"""Why a model cannot be had, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants, get_token
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, StrictDataclassError

from specbench.masking import mask_tokens

LONGEST = 200  # characters of a reason
# What Transformers raises where the values of a configuration do not go together.
CONTRADICTIONS = (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError)


def failure(name: str, error: Exception) -> str:
    """Say in one line, without access tokens, why a model cannot be had and what to do."""
    return mask_tokens(_failure(name, error))


def cause(error: BaseException) -> str:
    """Return what a configuration contradicts, without the name of the check that found it."""
    return _first_line(error.__cause__ or error)


def _failure(name: str, error: Exception) -> str:
    reason = _first_line(error)
    if "trust_remote_code" in str(error):
        return (
            f"{name} comes with code of its own: read it, then give --trust-remote-code to run it, "
            "or choose another model"
        )
    if isinstance(error, ImportError):
        return f"cannot load {name} ({reason}): install the package that it needs"
    if Path(name).exists():
        return f"cannot load {name} ({reason}): give a folder with a model and its tokenizer"
    if constants.HF_HUB_OFFLINE:
        return (
            f"{name} is not in the cache ({reason}): run once without --offline, or give local "
            "folders with --target and --draft"
        )
    token = "HF_TOKEN to a token of that account" if get_token() else "HF_TOKEN"
    causes = list(_causes(error))
    if any(isinstance(cause, GatedRepoError) for cause in causes) or "gated repo" in str(error):
        return f"{name} is gated: accept the licence on the model's page and set {token}"
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return f"the hub has no {name}, or none for everyone: check the name, or set {token}"
    return (
        f"cannot load {name} from the hub ({reason}): check the network and the revision, or give "
        "local folders with --target and --draft"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    first = lines[0].rstrip(".:") if lines else type(error).__name__
    # Transformers names all model types that it knows, hundreds of them.
    return first if len(first) <= LONGEST else f"{first[:LONGEST]}..."
