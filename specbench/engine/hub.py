"""The hub: where its files lie on this machine, which are missing, and why one is not available."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import constants, get_token, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils.logging import set_verbosity_error
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars

from specbench.engine.pairs import HUB_ID, Loading, PairSpec, hub_file, require_model, shard_names
from specbench.errors import UsageError, first_line, mask_tokens, require

UNAVAILABLE = (OSError, ValueError, HTTPError)  # errors of the hub's library


def quiet_libraries(downloads: bool) -> None:
    """Hide the libraries' progress bars and messages, except download bars if wanted."""
    import transformers
    from transformers.utils.logging import disable_progress_bar

    set_verbosity_error()
    # specbench itself checks for prompts that are too long.
    transformers.logging.set_verbosity_error()
    has_bars = downloads and sys.stderr.isatty() and not are_progress_bars_disabled()
    disable_progress_bar()  # disables both loading and download bars
    if has_bars:
        enable_progress_bars()


def source(spec: PairSpec, role: str, loading: Loading) -> tuple[str, dict[str, Any]]:
    """Return a model's id or folder, and the options for its revision and its own code."""
    revision = _revision(spec, role)
    options = {"trust_remote_code": loading.trust_remote_code}
    return spec.models[role], options if revision is None else options | {"revision": revision}


def gguf_path(spec: PairSpec, role: str) -> Path:
    """Return where a GGUF file lies; one of the hub is downloaded first, with all its shards."""
    model = spec.models[role]
    require_model(model)
    if (on_hub := hub_file(model)) is None:
        return Path(model)
    return _downloaded(*on_hub, _revision(spec, role))


@cache
def _downloaded(repository: str, file: str, revision: str | None) -> Path:
    """Return the first file of a model in the hub's cache; it is looked up once per process."""
    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=shard_names(file))
    except UNAVAILABLE as error:
        raise UsageError(mask_tokens(failure(f"{repository}:{file}", error))) from error
    path = Path(folder) / file
    require(path.exists(), f"{repository} has no file {file}: check its name on the hub")
    return path


def download_bytes(spec: PairSpec, loading: Loading) -> int:
    """Return the size of the weights that must be downloaded from the hub."""
    size = 0
    for role, model in spec.models.items():
        if loading.dummy or (on_hub := _on_hub(model)) is None:
            continue
        repository, file = on_hub
        patterns, revision = shard_names(file or "*.safetensors"), _revision(spec, role)
        with suppress(*UNAVAILABLE):  # who reads the model says why
            files = snapshot_download(
                repository, revision=revision, allow_patterns=patterns, dry_run=True
            )
            size += sum(part.file_size or 0 for part in files if part.will_download)
    return size


def origin(spec: PairSpec, role: str, loading: Loading) -> dict[str, str | None]:
    """Return the commit of a model loaded from the hub, and the SHA-256 of a GGUF file there."""
    versions: dict[str, str | None] = {f"{role}_commit": None}
    if loading.dummy or (on_hub := _on_hub(spec.models[role])) is None:
        return versions
    repository, file = on_hub
    revision = _revision(spec, role)
    path = try_to_load_from_cache(repository, file or "config.json", revision=revision)
    if isinstance(path, str):
        # .../snapshots/<commit>/<file>; a large file is a link to .../blobs/<digest>
        versions[f"{role}_commit"] = path.partition("snapshots/")[2].partition("/")[0]
        if file is not None:
            versions[f"{role}_sha256"] = Path(path).resolve().name
    return versions


def _on_hub(model: str) -> tuple[str, str | None] | None:
    """Return repository and GGUF file, if it is one, of a model on the hub."""
    is_id = HUB_ID.fullmatch(model) and not Path(model).exists()
    return (model, None) if is_id else hub_file(model)


def failure(name: str, error: Exception) -> str:
    """Return one line on why a model is not available and what to do."""
    reason = first_line(error)
    if "trust_remote_code" in str(error):
        return (
            f"{name} has its own code: read it, then give --trust-remote-code to run it, "
            "or choose another model"
        )
    if isinstance(error, ImportError):
        return f"cannot load {name} ({reason}): install the required package"
    if Path(name).exists():
        return f"cannot load {name} ({reason}): give a folder with a model and its tokenizer"
    if constants.HF_HUB_OFFLINE:
        return (
            f"{name} is not in the cache ({reason}): run once without --offline, or give a folder "
            "with the models by --models"
        )
    token = "HF_TOKEN to a token of that account" if get_token() else "HF_TOKEN"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError) or "gated repo" in str(error):
            return f"{name} is gated: accept the licence on the model's page and set {token}"
        if isinstance(cause, RepositoryNotFoundError):
            return f"{name} does not exist on the hub or is private: check the name, or set {token}"
        cause = cause.__cause__ or cause.__context__
    return (
        f"cannot load {name} from the hub ({reason}): check the network and the revision, or give "
        "a folder with the models by --models"
    )


def _revision(spec: PairSpec, role: str) -> str | None:
    return spec.target_revision if role == "target" else spec.draft_revision
