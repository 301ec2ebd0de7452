"""Model pairs (from ``pairs.toml``, a file, or given by their models), and how to load them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from specbench.config import AUTO, Options, option
from specbench.errors import UsageError, require, unknown
from specbench.schema import StrictModel, Text, read_toml

ROLES = ("target", "draft")
PAIRS_FILE = Path(__file__).parents[1] / "pairs" / "pairs.toml"
PARTS = (*ROLES, "heads")  # folders of a bundled pair

GGUF = ".gguf"

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
_HUB_FILE = re.compile(rf"({HUB_ID.pattern}):(.+\.gguf)")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_IN_A_FILE = re.compile(r"(?P<file>.+\.toml)(:(?P<name>.+))?")

DUMMY = "dummy"  # format of random weights
#: Options of loading that only the user may give, and no run: they permit foreign code.
TRUSTED = ("trust_remote_code",)

Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Size = Annotated[int | None, Field(gt=0)]
Factor = Annotated[float | None, Field(gt=0)]


class Loading(Options):
    """How to load the models of a pair."""

    panel = "Models"

    device: str = option(AUTO, "cpu, cuda, cuda:1 ...; auto uses a GPU if there is one.")
    dtype: Dtype = option(
        AUTO, "float32, bfloat16, float16, or auto by pair and device.", metavar="NAME"
    )
    load_format: Literal["auto", "dummy"] = option(
        AUTO, "dummy creates random weights of the same shape, for timing.", metavar="FORMAT"
    )
    threads: int | None = option(
        None, "CPU threads of PyTorch or llama.cpp.", ge=1, metavar="T", shown="free cores"
    )
    device_map: str | None = option(
        None, "auto spreads layers over all GPUs (needs accelerate).", metavar="MAP", shown="off"
    )
    quantization: Literal["8bit", "4bit"] | None = option(
        None,
        "8bit or 4bit weights of the target (needs bitsandbytes).",
        metavar="BITS",
        shown="off",
    )
    trust_remote_code: bool = option(False, "Run Python code from the models' repositories.")

    @model_validator(mode="after")
    def _plain_dummies(self) -> Loading:
        if self.dummy and (self.device_map or self.quantization):
            raise ValueError(
                "--load-format dummy supports neither --device-map nor --quantization: omit them"
            )
        return self

    @property
    def dummy(self) -> bool:
        """Whether the weights are random."""
        return self.load_format == DUMMY


class Architecture(StrictModel):
    """Values of a Transformers configuration, for decoders that are a plain stack of layers."""

    model_type: Text
    vocab_size: Size = None
    hidden_size: Size = None
    intermediate_size: Size = None
    num_hidden_layers: Size = None
    num_attention_heads: Size = None
    num_key_value_heads: Size = None
    head_dim: Size = None
    max_position_embeddings: Size = None
    rms_norm_eps: Factor = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    rope_theta: Factor = None
    rope_local_base_freq: Factor = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    sliding_window: Size = None
    sliding_window_pattern: Size = None
    use_sliding_window: bool | None = None
    max_window_layers: Size = None
    layer_types: list[str] | None = None
    query_pre_attn_scalar: Size = None
    initializer_range: Factor = None


class Architectures(StrictModel):
    """The architectures of a pair's models."""

    target: Architecture | None = None
    draft: Architecture | None = None


class PairTable(StrictModel):
    """A pair's table in a file; ``pairs.toml`` explains the keys."""

    target: Text
    draft: Text
    description: Text = ""
    heads: Text | None = None
    drafters: dict[str, Text] = Field(default_factory=dict)
    dtype: Dtype = "auto"
    training: dict[str, Any] = Field(default_factory=dict)
    target_revision: Text | None = None
    draft_revision: Text | None = None
    thinking: bool = False
    architecture: Architectures = Architectures()


def _pair_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.+-]*", name):  # the name is also a folder name
        raise ValueError("cannot name a pair: use letters, digits, '-', '_', '.', '+'")
    return name


PairTables = dict[Annotated[str, AfterValidator(_pair_name)], PairTable]


@dataclass(frozen=True)
class PairSpec:
    """A pair of models, before they are loaded."""

    name: str
    target: str  # Hugging Face id, folder, GGUF file, or OWNER/NAME:FILE.gguf of the hub
    draft: str | None  # likewise; None for a target that drafts without a model
    description: str = ""
    heads: Path | None = None  # folder with one trained head per task
    # Folders of modules that draft, by their names as a drafter.
    drafters: Mapping[str, Path] = field(default_factory=dict)
    dtype: str = "auto"  # `auto` is bfloat16 on a GPU and float32 on a CPU
    # Changes to the default recipe of a head.
    training: Mapping[str, Any] = field(default_factory=dict)
    target_revision: str | None = None  # branch, tag or commit; None is the newest
    draft_revision: str | None = None
    thinking: bool = False  # let the model think before answering, if it can (Qwen3)
    # Configuration values by role, to create random weights without the hub.
    architecture: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    file: Path | None = None  # None for models given on the command line

    @property
    def bundled(self) -> bool:
        """Whether both models are part of specbench."""
        return all(Path(m).is_relative_to(PAIRS_FILE.parent) for m in self.models.values())

    @property
    def gguf(self) -> bool:
        """Whether a model is a GGUF file."""
        return any(model.endswith(GGUF) for model in self.models.values())

    @property
    def models(self) -> dict[str, str]:
        """The models by role, without a draft if there is none."""
        return {"target": self.target} | ({} if self.draft is None else {"draft": self.draft})


@cache
def pairs() -> dict[str, PairSpec]:
    """Return the known pairs by name, in the order of ``pairs.toml``."""
    return read_pairs(PAIRS_FILE)


def read_pairs(path: Path) -> dict[str, PairSpec]:
    """Return the pairs of a file by name, in file order."""
    tables: dict[str, PairTable] = read_toml(path, PairTables, "pair file")
    if not tables:
        raise UsageError(f"{path}: contains no pair; add a table with `target` and `draft`")
    specs = {}
    for name, table in tables.items():
        values = table.model_dump(exclude_unset=True)
        for key in PARTS:
            # Hub ids stay unchanged.
            if values.get(key, "").startswith(("./", "../")):
                values[key] = str(path.parent / values[key])
        if table.heads is not None:
            values["heads"] = Path(values["heads"])
        values["drafters"] = {key: path.parent / folder for key, folder in table.drafters.items()}
        specs[name] = PairSpec(name=name, file=path, **values)
    return specs


def get_pair(name: str) -> PairSpec:
    """Return a pair by name, or from a file: ``pairs.toml``, ``folder/pairs.toml:name``."""
    specs, source, chosen = pairs(), "", name
    if match := _IN_A_FILE.fullmatch(name):
        path = Path(match["file"])
        specs, source = read_pairs(path), f"{path}: "
        first = next(iter(specs))
        if match["name"] is None and len(specs) > 1:
            raise UsageError(
                f"{source}contains several pairs ({', '.join(specs)}): name one, as {path}:{first}"
            )
        chosen = match["name"] or first
    if chosen not in specs:
        raise UsageError(source + unknown("pair", chosen, specs))
    return specs[chosen]


def custom_pair(target: str, draft: str | None) -> PairSpec:
    """Return a pair of given models, each a Hugging Face id or a folder; the draft may be None."""
    models = filter(None, (target, draft))
    name = "+".join(map(short_name, models))
    return PairSpec(name, target, draft, description="given on the command line")


def short_name(model: str) -> str:
    """Return the last part of a model's name: that of its folder, repository or file."""
    return re.split("[/:]", model.rstrip("/"))[-1]


def bundled_path(model: str) -> str:
    """Return a model's path; that of a bundled one without the folder of this installation."""
    parts = Path(model).parts[-4:]
    return "/".join(parts) if parts[:2] == ("specbench", "pairs") else model


def hub_file(model: str) -> tuple[str, str] | None:
    """Return repository and file of a GGUF file on the hub; None for other models."""
    match = None if Path(model).exists() else _HUB_FILE.fullmatch(model)
    return match and (match[1], match[2])


def in_folder(pair: PairSpec, folder: Path) -> PairSpec:
    """Return a pair with the hub's models taken from a folder, under their names in any case."""
    require(folder.is_dir(), f"no folder {folder}: give --models a folder with models")
    entries = {path.name.lower(): path for path in sorted(folder.iterdir())}
    places: dict[str, Any] = {}
    for role, model in pair.models.items():
        name = short_name(model)
        path = Path(model) if Path(model).exists() else entries.get(name.lower())
        require(path is not None, f"no {name} in {folder}: put it there, or omit --models")
        places[role] = str(path)
    return replace(pair, **places, target_revision=None, draft_revision=None)


def require_model(name: str) -> None:
    """Refuse a name that is neither a folder nor a GGUF file nor possibly a model on the hub."""
    if name.endswith(GGUF):
        require(
            Path(name).is_file() or hub_file(name) is not None,
            f"no file {name}: give a GGUF file, or OWNER/NAME:FILE.gguf of the hub",
        )
    elif not Path(name).exists() and not HUB_ID.fullmatch(name):
        raise UsageError(f"no model folder {name}: give a folder or a hub id like owner/name")


def shard_names(name: str) -> list[str]:
    """Return the names of all files of a model, of which ``name`` is the only or the first one."""
    if (match := _SHARD.fullmatch(name)) is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def shards(path: Path) -> list[Path]:
    """Return all files of a model, of which ``path`` is the only or the first one."""
    require_model(str(path))
    files = [path.with_name(name) for name in shard_names(path.name)]
    missing = [file.name for file in files if not file.is_file()]
    require(
        not missing,
        f"{path} is one of {len(files)} files of a model, and {', '.join(missing[:3])} "
        f"{'is' if len(missing) == 1 else 'are'} missing beside it: download all of them",
    )
    require(files[0] == path, f"{path} is not the first file of its model: give {files[0]}")
    return files


def stored_bytes(path: Path) -> int:
    """Return the size of the weights in a folder or of a GGUF file; 0 if they are not on disk."""
    is_file = path.suffix == GGUF and hub_file(str(path)) is None
    files = shards(path) if is_file else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def without_draft(pair: PairSpec) -> PairSpec:
    """Return a pair's target alone, under the pair's name."""
    return replace(pair, draft=None, draft_revision=None, heads=None)


def with_draft(pair: PairSpec, draft: str) -> PairSpec:
    """Return a pair with another draft and a name for it; the pair's heads do not fit it."""
    name = f"{pair.name}+{short_name(draft)}"
    architecture = {role: values for role, values in pair.architecture.items() if role != "draft"}
    changes: dict[str, Any] = {"draft_revision": None, "heads": None, "architecture": architecture}
    return replace(pair, name=name, draft=draft, **changes)
