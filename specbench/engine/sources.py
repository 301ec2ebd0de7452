"""Configurations, tokenizers and weights, from the hub, a folder, or random initialisation.

If one is not available, all functions raise ``UsageError`` with one sentence, without access
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import GENERATION_CONFIG_NAME, logging

from specbench.engine.gguf import gguf_config, read_gguf, stored_sampling
from specbench.engine.gguf_tokenizer import model_facts, read_tokenizer
from specbench.engine.hub import failure, gguf_path, source
from specbench.engine.pairs import GGUF, ROLES, Loading, PairSpec, get_pair, require_model, shards
from specbench.engine.recommended import that_change
from specbench.engine.weights import require_no_adapter, require_place
from specbench.errors import UsageError, cause, first_line, mask_tokens, shown

# Errors that Transformers raises for an inconsistent configuration.
CONTRADICTIONS = (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError)
# Rotary positions and masks are built for this implementation.
ATTENTION = "sdpa"
OTHER_MODEL = "choose a model whose layers all attend, such as a Llama, Qwen2.5, Qwen3 or Gemma"
# Names of a multimodal checkpoint's text weights, mapped to the names in a text model.
TEXT_WEIGHTS = {
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
# Layers of other types keep a state of all tokens, from which no token can be taken back.
ATTENDING = ("full_attention", "sliding_attention", "chunked_attention")
TOKENIZER_OF_DUMMIES = "mini"  # a bundled pair


def load_config(spec: PairSpec, role: str, loading: Loading) -> PretrainedConfig:
    """Return the configuration of a model's decoder; for a dummy, from the pair's entry."""
    if loading.dummy and role in spec.architecture:
        return _described_config(spec, role)
    if is_gguf(spec, role):
        path = gguf_path(spec, role)
        architecture = read_gguf(shards(path)[0]).metadata["general.architecture"]
        if model_facts(path).has_state:
            raise UsageError(_without_rollback(path, architecture))
        return gguf_config(path)
    name, options = source(spec, role, loading)
    return decoder_config(name, **options)


def decoder_config(name: str, **options: Any) -> PretrainedConfig:
    """Return a model's configuration; for a multimodal model, that of its text part."""
    require_no_adapter(name)
    config: PretrainedConfig = load_pretrained(AutoConfig, name, **options)
    text: PretrainedConfig = config.get_text_config()
    if text is config or type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        _require_rollback(name, config)
        return config
    _require_rollback(name, text)
    # Settings of the whole model apply to its text part.
    text.dtype = config.dtype or text.dtype
    if (ends := getattr(config, "eos_token_id", None)) is not None:
        text.eos_token_id = ends
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", text.tie_word_embeddings)
    if (quantised := getattr(config, "quantization_config", None)) is not None:
        text.quantization_config = quantised
    return text


def load_tokenizer(spec: PairSpec, role: str, loading: Loading) -> PreTrainedTokenizerBase:
    """Return a model's tokenizer; for a dummy, that of a bundled pair."""
    if is_gguf(spec, role):
        return read_tokenizer(gguf_path(spec, role))
    name, options = source(spec, role, loading)
    if loading.dummy:
        name, options = get_pair(TOKENIZER_OF_DUMMIES).target, {}
    tokenizer: PreTrainedTokenizerBase = load_pretrained(AutoTokenizer, name, **options)
    # Without its files, Transformers makes a tokenizer of special tokens alone.
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):
        raise UsageError(f"{name} has no tokenizer: add tokenizer.json and tokenizer_config.json")
    return tokenizer


def load_ends(
    spec: PairSpec, loading: Loading, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    """Return all tokens that end the target's texts; none for random weights."""
    if loading.dummy:
        return frozenset()
    if is_gguf(spec, "target"):
        return model_facts(gguf_path(spec, "target")).eos_ids | end_tokens(tokenizer)
    name, options = source(spec, "target", loading)
    try:
        return end_tokens(GenerationConfig.from_pretrained(name, **options), config, tokenizer)
    except (OSError, *CONTRADICTIONS) as error:
        if (Path(name) / GENERATION_CONFIG_NAME).exists() or not isinstance(error, OSError):
            raise UsageError(
                f"cannot read {GENERATION_CONFIG_NAME} of {name} ({first_line(error)}): correct "
                "it, or remove it if it names no further end token"
            ) from error
    return end_tokens(config, tokenizer)  # some models have no such file


def end_tokens(*settings: Any) -> frozenset[int]:
    """Collect the end tokens of generation settings, a configuration or a tokenizer."""
    end_ids: set[int] = set()
    for holder in settings:
        ids = getattr(holder, "eos_token_id", None)
        every = ids if isinstance(ids, list | tuple) else [ids]
        end_ids.update(token for token in every if type(token) is int and token >= 0)
    return frozenset(end_ids)


def load_recommended(spec: PairSpec, loading: Loading, **options: Any) -> dict[str, Any]:
    """Return the sampling that the target's folder or file recommends; empty if it does not.

    ``options`` are those of ``from_pretrained``, such as ``local_files_only``.
    """
    if loading.dummy:
        return {}
    try:
        if is_gguf(spec, "target"):
            return stored_sampling(gguf_path(spec, "target"))
        name, further = source(spec, "target", loading)
        config = GenerationConfig.from_pretrained(name, **further, **options)
    except (OSError, UsageError, *CONTRADICTIONS):  # no such file; loading refuses a broken one
        return {}
    values: dict[str, Any] = config.to_diff_dict()
    return that_change(values) if values.get("do_sample") else {}


def load_model(
    spec: PairSpec,
    role: str,
    loading: Loading,
    config: PretrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """Return the target or the draft in evaluation mode, on ``device`` or by a device map."""
    if loading.dummy:
        with torch.random.fork_rng(), device:  # the same weights every time
            torch.manual_seed(ROLES.index(role))
            return build_model(config, dtype)
    name, options = source(spec, role, loading)
    quantised = getattr(config, "quantization_config", None) is not None
    if role == "target" and loading.quantization is not None:
        require_package("bitsandbytes", f"--quantization {loading.quantization}")
        options["quantization_config"] = (
            BitsAndBytesConfig(load_in_8bit=True)
            if loading.quantization == "8bit"
            else BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=dtype)
        )
        quantised = True
    if loading.device_map or quantised:
        require_package("accelerate", "--device-map" if loading.device_map else "a quantised model")
        options["device_map"] = loading.device_map or {"": device}
    model: Any = load_weights(name, config=config, dtype=dtype, **options)
    if any(weights.is_meta for weights in model.parameters()):
        raise UsageError(
            f"{name} does not fit on the devices of --device-map "
            f"{loading.device_map}: choose a smaller pair or --quantization 8bit"
        )
    placed: PreTrainedModel = model if "device_map" in options else model.to(device)
    return placed


def load_weights(name: str, config: PretrainedConfig, **options: Any) -> PreTrainedModel:
    """Return a model with its weights, in evaluation mode."""
    if config.get_text_config() is config:
        options["key_mapping"] = TEXT_WEIGHTS
    with _errors_only():
        model, report = load_pretrained(
            AutoModelForCausalLM,
            name,
            config=config,
            attn_implementation=ATTENTION,
            output_loading_info=True,
            **options,
        )
    # Transformers would initialise them at random.
    if missing := sorted(report["missing_keys"]):
        other = next(iter(sorted(report["unexpected_keys"])), "")
        raise UsageError(
            f"cannot load {name} ({len(missing)} of its weights are missing, {missing[0]} first"
            f"{other and f', and it has {shown(other)}'}): give a complete model of a supported "
            "architecture"
        )
    require_place(name, model, report["unexpected_keys"])
    loaded: PreTrainedModel = model.eval()
    return loaded


def build_model(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model with untrained weights on the default device."""
    try:
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=ATTENTION
        )
    except CONTRADICTIONS as error:
        raise UsageError(
            f"cannot build a {config.model_type} model from its configuration ({cause(error)}): "
            "choose another model or correct its config.json"
        ) from error
    built: PreTrainedModel = model.eval()
    return built


def load_pretrained(factory: Any, name: str, **options: object) -> Any:
    """Call ``from_pretrained``; raise ``UsageError`` with one sentence if it fails."""
    require_model(name)
    try:
        # Without this option, Transformers asks on the terminal whether to run a model's own code.
        return factory.from_pretrained(name, **{"trust_remote_code": False, **options})
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # that of a broken tokenizer.json has no other type
        raise UsageError(mask_tokens(failure(name, error))) from error


@contextmanager
def _errors_only() -> Iterator[None]:
    """Suppress the warning that lists a multimodal checkpoint's unused weights."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def is_gguf(spec: PairSpec, role: str) -> bool:
    """Return whether a model is a GGUF file."""
    return spec.models[role].endswith(GGUF)


def _require_rollback(name: str, config: PretrainedConfig) -> None:
    """Refuse a model with layers that keep a state."""
    kinds = {*(getattr(config, "layer_types", None) or ())} - {*ATTENDING}
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kinds or getattr(model, "_is_stateful", False):
        raise UsageError(_without_rollback(name, config.model_type))


def _without_rollback(name: object, family: str) -> str:
    return (
        f"{name} is a {family} model, some of whose layers keep a state: rejected drafts cannot be "
        f"taken back from it, so {OTHER_MODEL}"
    )


def _described_config(spec: PairSpec, role: str) -> PretrainedConfig:
    fields: dict[str, Any] = dict(spec.architecture[role])
    try:
        config = AutoConfig.for_model(**fields)
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config)
    except CONTRADICTIONS as error:
        file = "" if spec.file is None else f"{spec.file}: "
        raise UsageError(
            f"{file}[{spec.name}.architecture.{role}] is not a valid model ({cause(error)}): give "
            "the values of the model's own configuration"
        ) from error
    return config


def require_package(package: str, user: str) -> None:
    """Raise ``UsageError`` if a package is not installed that ``user`` needs."""
    if find_spec(package) is None:
        raise UsageError(f"{user} needs the package {package}, which is not installed: install it")
