"""Formats of other tools' files: one function for each, declared with the keys that reveal it.

Fields and units are those in the sources of vLLM 0.32 (``benchmarks/serve.py``), aiperf
(``record_models.py``), llama.cpp (``speed_bench.py``) and lm-eval (``evaluator.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import require
from specbench.imports.measurement import Benchmark, RecordedRequest
from specbench.imports.reading import Located
from specbench.metrics import BLEU, METRICS
from specbench.runs.columns import MEASURED, SAMPLES, schema
from specbench.validation import quoted, validated
from specbench.words import shown

LARGEST = 2**63  # integer that becomes a float
Read = Callable[[Path, Iterator[Located]], Iterator[Benchmark]]


class Format(NamedTuple):
    """A format: the tool that writes it, the keys that reveal it, and its reader."""

    tool: str
    keys: frozenset[str]
    read: Read


FORMATS: list[Format] = []


def file_format(tool: str, *keys: str) -> Callable[[Read], Read]:
    """Declare the reader of a tool's files, whose objects have these keys."""

    def declare(read: Read) -> Read:
        FORMATS.append(Format(tool, frozenset(keys), read))
        return read

    return declare


def request(location: str, values: Mapping[str, Any], keys: Mapping[str, str]) -> RecordedRequest:
    """Return a checked request; messages name a column by its key in the file."""
    return validated(
        RecordedRequest, values, location, lambda column: quoted(keys.get(column, column))
    )


def facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of an object that are texts or numbers, shortened."""
    return {
        shown(name): shown(value) if isinstance(value, str) else value
        for name, value in values.items()
        if isinstance(value, (str, int, float))
    }


def scaled(value: Any, factor: float) -> Any:
    """Return a number in other units, and anything else unchanged."""
    return value * factor if type(value) in (int, float) and abs(value) < LARGEST else value


_VLLM = {
    **{"prompt_tokens": "input_lens", "output_tokens": "output_lens", "sent": "start_times"},
    **{"first_token_seconds": "ttfts", "gaps": "itls", "latency_seconds": "latencies"},
    **{"text": "generated_texts", "error": "errors"},
}


@file_format("vllm bench serve", "num_prompts", "request_rate")
def vllm_bench(path: Path, objects: Iterator[Located]) -> Iterator[Benchmark]:
    """Read ``vllm bench serve --save-result --save-detailed``.

    Prompts have neither a text nor an id: they are numbered in the order of the data set.
    """
    for bench in objects:
        location, values = bench
        require(
            "ttfts" in values,
            f"{location} has no times of requests: measure again with --save-detailed",
        )
        # Older versions do not write all lists.
        lists = {column: bench.get(key, list) for column, key in _VLLM.items() if key in values}
        lengths = ", ".join(f"{len(entries)} {_VLLM[column]}" for column, entries in lists.items())
        same = len({*map(len, lists.values())}) == 1
        require(same, f"{location}: lists differ in length ({lengths}): export again")
        rows = zip(*lists.values(), strict=True)
        entries = [dict(zip(lists, row, strict=True)) for row in rows]
        requests = [_benched(f"{location}: request {i}", i, e) for i, e in enumerate(entries)]
        completed = sum(not each.error for each in requests)
        stated = values.get("completed", completed)
        differs = f"`completed` is {shown(repr(stated))}, but {completed} requests have times"
        require(stated == completed, f"{location}: {differs}: export again")
        rate = values.get("request_rate")
        settings = {"concurrency": values.get("max_concurrency")}
        settings |= {} if rate == "inf" else {"request_rate": rate}
        described = {
            "task": "vllm-bench",
            "requests": requests,
            "model": values.get("model_id"),
            "engine": values.get("backend"),
            "draft_length": len(bench.get("spec_decode_per_position_acceptance_rates", list)),
            "settings": {name: value for name, value in settings.items() if value is not None},
            "further_facts": facts(values),
        }
        yield validated(Benchmark, described, location)


def _benched(location: str, number: int, entry: Mapping[str, Any]) -> RecordedRequest:
    # A failed request may lack a reason, but then it has no tokens either.
    answered = entry["first_token_seconds"] or entry.get("output_tokens")
    error = entry.get("error") or ("" if answered else "no answer")
    trait = f"{entry.get('prompt_tokens')} tokens"
    return request(
        location, {**entry, "error": error, "sample_id": str(number), "trait": trait}, _VLLM
    )


_AIPERF = {
    "prompt_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
    "first_token_seconds": "time_to_first_token",
    "latency_seconds": "request_latency",
}
_TOKENS = {"tokens": 1}
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0}  # seconds
_ACCEPTANCE = {
    "rounds": "num_spec_steps",
    "proposed": "num_draft_tokens",
    "accepted": "num_accepted_draft_tokens",
}


@file_format("aiperf", "metadata", "metrics")
def aiperf(path: Path, objects: Iterator[Located]) -> Iterator[Benchmark]:
    """Read ``profile_export.jsonl`` of aiperf, without its warm-up requests."""
    lines = [(line.part("metadata"), line) for line in objects]
    lines.sort(key=lambda line: line[0].get("request_start_ns", int))
    measured = [line for line in lines if line[0].values.get("benchmark_phase") != "warmup"]
    turns = any(metadata.get("turn_index", int) for metadata, _ in measured)
    drafts = [line.part("spec_decode_acceptance") for _, line in measured]
    began = min((metadata.get("request_start_ns", int) for metadata, _ in measured), default=0)
    described = {
        "task": "aiperf",
        "requests": [_profiled(metadata, line, began, turns) for metadata, line in measured],
        "engine": next((each.values["engine"] for each in drafts if "engine" in each.values), None),
        "draft_length": max((each.get("num_spec_tokens", int) for each in drafts), default=0),
        "further_facts": {"warm_up_requests": len(lines) - len(measured)},
    }
    yield validated(Benchmark, described, str(path))


def _profiled(metadata: Located, line: Located, began: int, turns: bool) -> RecordedRequest:
    turn = metadata.get("turn_index", int) + 1
    error, drafts = line.get("error", dict), line.get("spec_decode_acceptance", dict)
    cancelled = "cancelled" if metadata.values.get("was_cancelled") else ""
    values: dict[str, Any] = {
        "sample_id": metadata.values.get("conversation_id"),
        "turn": turn if turns else None,
        "error": error.get("message") or error.get("type") or cancelled,
        "sent": scaled(metadata.get("request_start_ns", int) - began, 1e-9),
        **{column: drafts.get(key) for column, key in _ACCEPTANCE.items()},
    }
    for column, key in _AIPERF.items():
        metric = line.part("metrics").part(key)
        unit, units = metric.values.get("unit"), _TOKENS if column.endswith("tokens") else _TIMES
        choices = " or ".join(units)
        require(
            not metric.values or str(unit) in units,
            f"{metric.location} is in {shown(repr(unit))}, not in {choices}: export again",
        )
        values[column] = scaled(metric.values.get("value"), units.get(str(unit), 1))
    # Later prompts of a conversation contain answers, which differ.
    values["trait"] = f"{values['prompt_tokens']} tokens" if turn == 1 else None
    keys = {**_AIPERF, **_ACCEPTANCE, "sample_id": "conversation_id"}
    return request(line.location, values, keys)


_SPEED_BENCH = {
    **{"sample_id": "id", "category": "category", "error": "error", "stopped_by": "finish_reason"},
    **{"prompt_tokens": "prompt_tokens", "output_tokens": "completion_tokens"},
    **{"proposed": "draft_n", "accepted": "draft_n_accepted"},
    **{"prefill": "prompt_ms", "latency_seconds": "latency_s"},
}


@file_format("llama.cpp speed-bench", "config", "results", "selected_samples")
def speed_bench(path: Path, objects: Iterator[Located]) -> Iterator[Benchmark]:
    """Read what llama.cpp's ``speed_bench.py --output`` writes; a request is a conversation."""
    for bench in objects:
        config, entries = bench.part("config"), enumerate(bench.get("results", list))
        results = [Located(f"{bench.location}: `results[{i}]`", entry) for i, entry in entries]
        for result in results:
            is_object = isinstance(result.values, dict)
            require(is_object, f"{result.location} must be an object: export again")
        concurrency = config.values.get("concurrency")
        described = {
            "task": f"speed-bench-{config.values.get('bench')}",
            "requests": list(_speed_benched(results, concurrency == 1)),
            "model": config.values.get("model"),
            "engine": "llamacpp",
            "temperature": config.get("extra_inputs", dict).get("temperature"),
            "settings": {} if concurrency is None else {"concurrency": concurrency},
            "further_facts": facts({**bench.values, **config.values, "url": None}),
        }
        yield validated(Benchmark, described, bench.location)


def _speed_benched(results: Sequence[Located], one_by_one: bool) -> Iterator[RecordedRequest]:
    drafts = any(result.get("draft_n", int) for result in results)
    sent = 0.0  # from the first request on, if one follows the other
    for result in results:
        values = {column: result.values.get(key) for column, key in _SPEED_BENCH.items()}
        unknown = {n: values[n] or None for n in ("prompt_tokens", "output_tokens", "category")}
        values |= unknown | ({} if drafts else {"accepted": None})
        values["error"] = values["error"] or ("" if result.values.get("ok") else "no answer")
        values["prefill"] = scaled(values["prefill"], 1e-3)
        values["sent"] = sent if one_by_one else None
        values["trait"] = f"category {values['category']}"
        answered = request(result.location, values, _SPEED_BENCH)
        sent += answered.latency or 0.0
        yield answered


# The name of a file of samples, and the keys of a sample that are no scores.
_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)")
_NO_SCORES = {
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
    *("doc_hash", "prompt_hash", "target_hash"),
    *({*schema(SAMPLES), *schema(MEASURED)} - {*METRICS}),  # would be taken for these columns
    BLEU,  # of a corpus
}


@file_format("lm-eval", "doc_id", "resps", "filtered_resps")
def lm_eval(path: Path, objects: Iterator[Located]) -> Iterator[Benchmark]:
    """Read ``samples_*.jsonl`` of lm-eval: scores, and a task for each filter of its answers."""
    name = _SAMPLES.fullmatch(path.stem)
    task, date = (name["task"], name["date"]) if name else ("lm-eval", None)
    filters: dict[str, list[Located]] = {}
    for line in objects:
        filters.setdefault(str(line.values.get("filter")), []).append(line)
    for filter_name, lines in filters.items():
        first = lines[0]
        metrics = [
            metric
            for metric in first.get("metrics", list) or first.values
            if isinstance(metric, str)
            and metric not in _NO_SCORES
            and all(_is_score(line.values.get(metric)) for line in lines)
        ]
        missing = "has no metric that is a number from 0 to 1 for every document"
        require(bool(metrics), f"{first.location} {missing}: import another task")
        temperature = _temperature(first)
        same = all(_temperature(line) == temperature for line in lines)
        described = {
            "task": f"{task}/{filter_name}" if len(filters) > 1 else task,
            "requests": [_evaluated(line, metrics) for line in lines],
            "temperature": temperature if same else None,
            "metric": metrics[0],
            "further_facts": facts({"filter": filter_name, "date": date}),
        }
        yield validated(Benchmark, described, str(path))


def _is_score(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and 0 <= value <= 1


def _temperature(line: Located) -> Any:
    """Return the temperature of a request, None if the file does not tell."""
    match line.values.get("arguments"):
        case {"gen_args_0": {"arg_1": {"temperature": temperature}}} | [
            [_, {"temperature": temperature}, *_],
            *_,
        ]:
            return temperature
    return None


def _evaluated(line: Located, metrics: Sequence[str]) -> RecordedRequest:
    scores = {metric: float(line.values[metric]) for metric in metrics}
    hashes = [f"{key} {line.values.get(key)}" for key in ("doc_hash", "prompt_hash")]
    values = {
        "sample_id": str(line.get("doc_id", int)),
        "trait": " and ".join(hashes),
        "quality": scores[metrics[0]],
        "scores": scores,
    }
    match line.values.get("resps"):
        case [[str() as text, *_], *_]:
            values["text"] = text
    return request(line.location, values, {"sample_id": "doc_id"})
