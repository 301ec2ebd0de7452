"""Shapes of models: how much a pass reads and multiplies, from published sizes alone.

A shape comes from the table of well-known models (``models.toml``), from a ``config.json``, or from
the header of a GGUF file. Nothing is loaded, and PyTorch is not imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import Field

from specbench.config import Count
from specbench.engine.pairs import GGUF, HUB_ID, hub_file, shards, short_name, stored_bytes
from specbench.errors import UsageError, first_line, shown
from specbench.schema import StrictModel, Text, read_toml

MODELS_FILE = Path(__file__).with_name("models.toml")
CONFIG = "config.json"


class Aliased(StrictModel):
    """What has further names than the one in its table."""

    names: list[Text] = Field(default_factory=list)


T = TypeVar("T", bound=Aliased)


class Shape(Aliased):
    """The sizes of a decoder with gated layers."""

    layers: Count
    width: Count
    feed_forward: int = Field(0, ge=0)  # 0 if all layers have experts
    heads: Count
    kv_heads: Count
    head_size: Count
    vocabulary: Count
    tied: bool = False  # whether the output head is the input embedding
    experts: int = Field(0, ge=0)
    experts_per_token: int = Field(0, ge=0)
    expert_width: int = Field(0, ge=0)
    shared_width: int = Field(0, ge=0)  # of an expert that reads every token
    dense_layers: int = Field(0, ge=0)  # without experts, in a mixture of experts
    cached_layers: int | None = None  # that keep keys and values, if not all do
    windowed_layers: int = 0  # of these, the ones that look back at most ``window`` tokens
    window: int = 0
    cache_values: int | None = None  # of a token in a layer, if not two for each key-value head
    attention: int | None = None  # weights of a layer's attention, if not those of its heads
    bits: float = 16  # of a weight, as published; 0 if that is not known
    experts_only: bool = False  # whether servers leave attention in 16 bits
    repository: Text | None = None  # on the hub

    @property
    def of_attention(self) -> int:
        """Weights of a layer's attention."""
        if self.attention is not None:
            return self.attention
        return self.width * self.head_size * 2 * (self.heads + self.kv_heads)

    @property
    def of_head(self) -> int:
        """Weights of the output head."""
        return self.vocabulary * self.width

    def weights(self, experts: float) -> float:
        """Return the weights of all layers, of which each mixture uses so many experts."""
        mixtures = self.layers - self.dense_layers if self.experts else 0
        of_mixture = experts * self.expert_width + self.shared_width + self.experts / 3
        of_feed_forward = (self.layers - mixtures) * self.feed_forward + mixtures * of_mixture
        return self.layers * self.of_attention + 3 * self.width * of_feed_forward

    def weights_read(self, tokens: float) -> float:
        """Return the weights of the layers that a pass over so many tokens reads.

        If each token takes k of E experts by itself, a share 1 - (1 - k / E)^tokens is read.
        """
        if not self.experts:
            return self.weights(0)
        missed = (1 - self.experts_per_token / self.experts) ** tokens
        return self.weights(self.experts * (1 - missed))

    @property
    def multiplied(self) -> float:
        """Weights that each token is multiplied with, those of the output head included."""
        return self.weights(self.experts_per_token) + self.of_head

    @property
    def stored(self) -> float:
        """All weights."""
        return self.weights(self.experts) + self.of_head * (1 if self.tied else 2)

    def values_cached(self, tokens: float) -> float:
        """Return the numbers that the cache of a text with so many tokens has."""
        cached = self.layers if self.cached_layers is None else self.cached_layers
        near, far = self.windowed_layers, cached - self.windowed_layers
        per_layer = self.cache_values or 2 * self.kv_heads * self.head_size
        return per_layer * (near * min(tokens, self.window) + far * tokens)


class Precision(NamedTuple):
    """Bits of a number."""

    layers: float = 16
    head: float = 16  # of output head and embedding, which 4-bit formats of servers leave at 16
    cache: float = 16


class ServedModel(NamedTuple):
    """A model as it is served."""

    name: str
    shape: Shape
    precision: Precision = Precision()

    def bytes_read(self, tokens: float) -> float:
        """Return the bytes of weights that a pass over so many tokens reads."""
        layers = self.shape.weights_read(tokens) * self.precision.layers
        return (layers + self.shape.of_head * self.precision.head) / 8 + self._attention

    @property
    def bytes_stored(self) -> float:
        """Bytes of all weights."""
        layers = self.shape.weights(self.shape.experts)
        rest = self.shape.stored - layers
        return (layers * self.precision.layers + rest * self.precision.head) / 8 + self._attention

    @property
    def _attention(self) -> float:
        """Bytes of attention in 16 bits beyond those in the bits of the layers."""
        if not self.shape.experts_only or self.precision.head < 16:  # a file of llama.cpp
            return 0.0
        weights = self.shape.layers * self.shape.of_attention
        return weights * (16 - self.precision.layers) / 8


_OF_FILES = re.compile(r"(?<![a-z0-9])(i?)q([1-8])")  # llama.cpp's, also of the output head
# Beside the bits in their names: scales, and tensors with more (tools/quantize/README.md there).
_MORE_BITS = {1: 1.5, 2: 1.2, 3: 0.9, 4: 0.9, 5: 0.7, 6: 0.6, 7: 0.5, 8: 0.5}
_FEWER_IN_I_QUANTS = 0.4
_FORMATS = {
    r"nvfp4|(?<!mx)fp4": 4.5,
    r"awq|^(?!.*(?:int-?8|8-?bit|w8a)).*gptq|mxfp4|w4a|int-?4|4-?bit|^4$": 4.25,
    r"fp8|int-?8|w8a|8-?bit|e4m3|e5m2|^8$": 8,
    r"(bf|fp|float|f)16|16-?bit|half|^16$": 16,
    r"(fp|float|f)32": 32,
    r"float64": 64,
}


def bits_of(text: str) -> float | None:
    """Return the bits of a number by the name of a format in a text; None if it has none."""
    name = text.lower()
    if match := _OF_FILES.search(name):
        nominal = int(match[2])
        return nominal + _MORE_BITS[nominal] - (_FEWER_IN_I_QUANTS if match[1] else 0)
    known = (bits for form, bits in _FORMATS.items() if re.search(form, name))
    other = re.search(r"(?<![\d.])(\d(?:\.\d+)?)-?(?:bit|bpw)", name)  # of MLX and ExLlama
    return next(known, float(other[1]) if other else None)


def precision_of(weights: str) -> Precision | None:
    """Return the precision of weights that a format's name means; None for a name that is none."""
    bits = bits_of(weights)
    if bits is None:
        return None
    is_file = _OF_FILES.search(weights.lower())
    return Precision(bits, bits if is_file or bits >= 16 else 16)


_UNCACHED = ("linear_attention", "mamba", "mamba2", "conv")  # kinds of layers of configurations
# Words by which a name means another model than an entry without them.
_OTHER = {"mini", "flash", "nano", "distill", "draft", "multimodal", "n"}


def words_of(name: str) -> frozenset[str]:
    """Return the words, sizes and numbers of a model's or a machine's name.

    >>> sorted(words_of("Qwen3-32B-INT4"))
    ['3', '32b', '4', 'int', 'qwen']
    """
    size, number = r"\d+(?:\.\d+)?[bm](?![a-z0-9])", r"\d+(?:\.\d+)?"
    return frozenset(re.findall(rf"{size}|[a-z]+|{number}", name.lower()))


def nearest(name: str, table: Mapping[str, T]) -> T | None:
    """Return the entry with the most words of which all are in a name; None if there is none."""
    words = words_of(name)
    names = [(words_of(alias), key) for key, one in table.items() for alias in (key, *one.names)]
    matching = [(len(of_alias), key) for of_alias, key in names if of_alias <= words]
    return table[max(matching)[1]] if matching else None


@cache
def known_shapes() -> dict[str, Shape]:
    """Return the well-known models by name."""
    return read_toml(MODELS_FILE, dict[str, Shape], "table of models")


def known_shape(name: str) -> Shape | None:
    """Return the shape of a well-known model that a name means, whatever its owner and suffixes.

    A name with another size, or with a word that makes it another model, means none.

    >>> known_shape("RedHatAI/Meta-Llama-3.1-8B-Instruct-AWQ-INT4").width
    4096
    """
    short = name.rstrip("/").rpartition("/")[2]
    words = words_of(short)
    telling = words & _OTHER | {word for word in words if re.fullmatch(r"[\d.]+b", word)}
    if re.search(r"\dv\b", short.lower()):  # GLM-4.5V, which also reads images
        telling |= {"v"}
    table = {
        key: shape
        for key, shape in known_shapes().items()
        if telling <= words_of(" ".join((key, *shape.names, shape.repository or "")))
    }
    return nearest(short, table)


def read_config(file: Path) -> dict[str, Any]:
    """Return the content of a ``config.json``."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"cannot read {file} ({first_line(error)}): give a folder with the {CONFIG} of a model"
        ) from error


def shape_of_config(values: Mapping[str, Any], name: str) -> Shape:
    """Return the shape of a configuration of Transformers."""
    config = {**values, **(values.get("text_config") or {})}

    def value(*names: str, default: Any = 0) -> Any:
        return next((config[n] for n in names if config.get(n) is not None), default)

    try:
        layers, width, heads = (
            int(config[n]) for n in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        kinds = value("layer_types", default=[])
        pattern = value("sliding_window_pattern")
        windowed = kinds.count("sliding_attention") or (pattern and layers - layers // pattern)
        if not kinds and not pattern and value("use_sliding_window", default=True):
            windowed = layers // 2 if "gemma2" in str(value("model_type")) else layers
        experts = value("num_experts", "n_routed_experts", "num_local_experts")
        expert_width = value("moe_intermediate_size") or config.get("intermediate_size", 0)
        # In Llama 4 one expert is shared, and layers between those with experts have a width of
        # their own.
        has_shared = int("intermediate_size_mlp" in config)
        shared = value("shared_expert_intermediate_size") or (
            value("n_shared_experts", default=has_shared) * expert_width
        )
        step = value("interleave_moe_layer_step", "decoder_sparse_step") or 1
        rank, quantised = value("kv_lora_rank"), value("quantization_config", default={})
        return Shape(
            layers=layers,
            width=width,
            feed_forward=config["intermediate_size"]
            if not experts
            else value("intermediate_size_mlp", "intermediate_size"),
            heads=heads,
            kv_heads=value("num_key_value_heads", default=heads),
            head_size=value("head_dim", default=width // heads),
            vocabulary=config["vocab_size"],
            tied=value("tie_word_embeddings", default="gemma" in str(value("model_type"))),
            experts=experts,
            experts_per_token=value("num_experts_per_tok", "top_k_experts") if experts else 0,
            expert_width=expert_width if experts else 0,
            shared_width=shared,
            dense_layers=value("first_k_dense_replace") or layers - layers // step,
            cached_layers=layers - sum(map(kinds.count, _UNCACHED))
            if kinds
            else layers // (value("full_attention_interval") or 1),
            windowed_layers=windowed if value("sliding_window") else 0,
            window=value("sliding_window"),
            cache_values=rank + value("qk_rope_head_dim") if rank else None,
            attention=_latent_attention(config) if rank else None,
            bits=quantised.get("bits") or _bits_of_quantised(quantised),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else "sizes that do not fit together"
        raise UsageError(
            f"the configuration of {shown(name)} has {reason}: give the one of a language model"
        ) from error


def _bits_of_quantised(described: Mapping[str, Any]) -> float:
    """Return the bits of weights by how a configuration describes their quantisation."""
    if named := re.search(r"'weights': \{[^{}]*'num_bits': (\d+)", str(described)):
        return int(named[1])  # compressed-tensors
    forms = [described.get("quant_algo"), described.get("quant_method")]
    forms += [n.removeprefix("load_in_") for n in described if "load_in_" in n and described[n]]
    return next(filter(None, map(bits_of, map(str, forms))), 0 if described else 16)


def _latent_attention(config: Mapping[str, Any]) -> int:
    """Return the weights of a layer's attention with compressed keys and values (DeepSeek)."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    queries, values = config.get("q_lora_rank"), config["v_head_dim"]
    plain, rotated = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    of_queries = heads * (plain + rotated)
    of_queries = queries * (width + of_queries) if queries else width * of_queries
    rank = config["kv_lora_rank"]
    compressed = width * (rank + rotated) + rank * heads * (plain + values)
    return int(of_queries + compressed + heads * values * width)


def _of_gguf(path: Path) -> ServedModel:
    """Return the model of a GGUF file, with the mean bits of its weights."""
    from specbench.engine.gguf import gguf_config, read_gguf

    config, file = gguf_config(path), read_gguf(path)
    experts = file.value("expert_count", 0)
    of_experts = {
        "num_experts": experts,
        "num_experts_per_tok": file.value("expert_used_count", 0),
        "moe_intermediate_size": file.value("expert_feed_forward_length", 0),
        "shared_expert_intermediate_size": file.value("expert_shared_feed_forward_length", 0),
    }
    parameters = sum(read_gguf(shard).parameters for shard in shards(path))
    values = {**config.to_dict(), **(of_experts if experts else {})}
    shape = shape_of_config(values, str(path))
    # Only a file without an output head has fewer weights than a tied model by half a head.
    shape = shape.model_copy(update={"tied": parameters < shape.stored - shape.of_head / 2})
    bits = 8 * stored_bytes(path) / shape.stored  # so that layers of other forms count too
    return ServedModel(str(path), shape, Precision(bits, bits))


def find_model(name: str, architecture: Mapping[str, Any] | None = None) -> ServedModel:
    """Return a model by its ``architecture``, a folder, a GGUF file, a known name, or the hub."""
    if architecture:
        return ServedModel(name, shape_of_config(architecture, name))
    path = Path(name)
    if name.endswith(GGUF) and path.is_file():
        return _of_gguf(path)
    if (file := path / CONFIG if path.is_dir() else path).suffix == ".json":
        described = shape_of_config(read_config(file), name)
        return ServedModel(name, described, Precision(described.bits))
    repository = (hub_file(name) or (name,))[0]
    shape = known_shape(name)
    if shape is None and HUB_ID.fullmatch(repository):
        from huggingface_hub import hf_hub_download

        with suppress(Exception):  # the network, the hub, a licence: the message below says enough
            shape = shape_of_config(read_config(Path(hf_hub_download(repository, CONFIG))), name)
    if shape is None:
        raise UsageError(
            f"no shape of `{shown(name)}`: name a folder with its config.json, a GGUF file, a "
            f"model on the hub, or one of {', '.join(known_shapes())}"
        )
    return ServedModel(name, shape, precision_of(short_name(name)) or Precision(shape.bits))
