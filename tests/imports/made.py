"""Small files as other tools write them, with values that a reader can check by hand."""

import json
from typing import Any


def vllm(**changes: Any) -> str:
    """Two requests in flight together, 0.05 s apart, and one that failed without a reason."""
    bench = {
        **{"date": "20261123-101112", "backend": "vllm", "model_id": "org/m", "num_prompts": 3},
        **{"request_rate": "inf", "max_concurrency": 2, "completed": 2, "failed": 1},
        **{"input_lens": [3, 5, 4], "output_lens": [7, 4, 0], "start_times": [10.0, 10.05, 10.2]},
        **{"ttfts": [0.05, 0.06, 0.0], "itls": [[0.02, 0.03], [0.02], []]},
        **{"latencies": [0.1, 0.08, 0.0], "generated_texts": ["a", "b", ""]},
        **{"errors": ["", "", ""], "mean_ttft_ms": 55.0, "request_goodput": None},
        **{"spec_decode_acceptance_rate": 51.4, "spec_decode_num_drafts": 7},
        "spec_decode_per_position_acceptance_rates": [0.86, 0.71, 0.43],
    }
    return json.dumps({name: value for name, value in {**bench, **changes}.items() if value != "-"})


def profiled(number: int, **changes: Any) -> dict[str, Any]:
    """One line of aiperf: 11 tokens, the first after 100 ms and the last after 300 ms."""
    milliseconds = {"time_to_first_token": 100.0, "request_latency": 300.0}
    tokens = {"input_sequence_length": 20 + number, "output_sequence_length": 11}
    metrics = {name: {"value": value, "unit": "ms"} for name, value in milliseconds.items()}
    metrics |= {name: {"value": value, "unit": "tokens"} for name, value in tokens.items()}
    begin = 1_790_000_000_000_000_000 + number * 10**9
    line = {
        "metadata": {
            **{"session_num": number, "conversation_id": f"c{number}", "turn_index": 0},
            **{"request_start_ns": begin, "request_end_ns": begin + 3 * 10**8},
            **{"benchmark_phase": "profiling", "was_cancelled": False},
        },
        "metrics": metrics,
        "spec_decode_acceptance": {
            **{"engine": "vllm", "num_accepted_draft_tokens": 6, "num_draft_tokens": 12},
            **{"num_spec_steps": 4, "num_spec_tokens": 3},
        },
        "error": None,
    }
    return line | changes


def aiperf(*lines: dict[str, Any]) -> str:
    """A warm-up, two requests, and one that was cancelled; or these lines."""
    first, cancelled = profiled(0), profiled(3)
    first["metadata"]["benchmark_phase"] = "warmup"
    cancelled["metadata"]["was_cancelled"] = True
    cancelled |= {"metrics": {}, "error": {"code": 499, "type": "X", "message": "was cancelled"}}
    written = lines or (first, profiled(1), profiled(2), cancelled)
    return "".join(f"{json.dumps(line)}\n" for line in written)


def speed_bench(drafts: int = 10, **changes: Any) -> str:
    """Two conversations one after the other, 0.08 s of their 0.5 s for the prompt."""
    result = {
        **{"category": "coding", "ok": True, "turns": 1, "latency_s": 0.5, "prompt_tokens": 9},
        **{"completion_tokens": 21, "finish_reason": "length", "draft_n": drafts},
        **{"draft_n_accepted": drafts // 2, "prompt_ms": 80.0, "predicted_ms": 400.0},
        "error": None,
    }
    config = {"url": "http://user:secret@h/v1", "model": None, "bench": "qualitative"}
    config |= {"concurrency": 1, "extra_inputs": {"temperature": 0}}
    bench = {
        **{"config": config, "selected_samples": 2, "summary": []},
        "results": [{"id": name, **result} for name in ("q1", "q2")],
    }
    return json.dumps(bench | changes, indent=2)


def lm_eval(scores: Any = (1.0, 0.0), **changes: Any) -> str:
    """Two documents with two filters each: the scores, and all of them right."""
    lines = []
    for name, of_filter in (("strict-match", scores), ("flexible-extract", (1.0, 1.0))):
        for number, score in enumerate(of_filter):
            sampling = {"until": ["\n"], "temperature": 0.7}
            line = {
                **{"doc_id": number, "doc": {"question": "1+1?"}, "target": "2", "filter": name},
                "arguments": {"gen_args_0": {"arg_0": "Q: 1+1?", "arg_1": sampling}},
                **{"resps": [["2."]], "filtered_resps": ["2"], "metrics": ["exact_match", "n"]},
                **{"exact_match": score, "n": 7, "doc_hash": f"h{number}", "prompt_hash": "p"},
            }
            lines.append(line | changes)
    return "".join(f"{json.dumps(line)}\n" for line in lines)
