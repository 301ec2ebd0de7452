"""Time one verification in vLLM by each rule, beside vLLM's own sampler, in vLLM's environment.

    PYTHONPATH=. DIR/bin/python tasks/measure/servers/cost.py [FILE]

Prints microseconds per step: the median of interleaved repetitions, and the middle half of them.
On a CPU it is the processor time of one thread, so other work on the machine does not count. Models
do not run. vLLM's own time is that of ``rejection_sample``, which a rule replaces; the time
of a rule includes its softmaxes and its report.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata

from specbench.serving.vllm.plugin import prepare_cpu
from specbench.serving.vllm.step import Flattened, reject

VLLM_STEP = "vLLM's own"
RULES = (
    *("sd", "static:weight=0.5", "lossy:lenience=0.5", "typical", "gated"),
    *("diversed:head=python/python-line", "diversed:head=mini/mini-math"),
)
DRAFTS, SIZES, SECONDS = 5, (1, 16), 40
SETTINGS = (32_000, 1.0), (151_936, 1.0), (151_936, 0.7)  # vocabularies and temperatures
HIDDEN = 192, 64  # of the bundled pair mini


def steps(
    texts: int, vocabulary: int, temperature: float, device: str
) -> dict[str, Callable[[], object]]:
    """Return a step by each rule, on random logits."""
    torch.manual_seed(0)
    total = texts * DRAFTS
    raw = torch.randn(total, vocabulary, device=device)
    logits = raw / temperature
    q = (torch.randn(total, vocabulary, device=device) / temperature).softmax(-1)
    x, counts = q.multinomial(1)[:, 0].int(), [DRAFTS] * texts
    cumulative = torch.arange(1, texts + 1, dtype=torch.int32, device=device) * DRAFTS
    bonus = torch.zeros(texts, 1, dtype=torch.int32, device=device)
    none = torch.empty(0, device=device)
    sampling = SamplingMetadata(
        temperature=torch.full((texts,), temperature, device=device),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[[] for _ in range(texts)],
        spec_token_ids=[[] for _ in range(texts)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    h_p, h_q = (torch.randn(total, size, device=device) for size in HIDDEN)
    drafts = Flattened(x, q, logits, raw, h_p, h_q, counts)

    def by(rule: str) -> Callable[[], object]:
        return lambda: reject(
            drafts, bonus, rules=[rule] * texts, temperatures=[temperature] * texts, generators={}
        )

    def by_vllm() -> object:
        return rejection_sampler.rejection_sample(
            x, counts, DRAFTS, cumulative, q, logits, bonus, sampling
        )

    return {VLLM_STEP: by_vllm, **{rule: by(rule) for rule in RULES}}


def main() -> None:
    """Print a table, and write it to a file."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    clock = time.perf_counter if device == "cuda" else time.thread_time
    torch.set_num_threads(1)
    prepare_cpu()
    current_platform.register_triton_kernel_overrides()
    lines = ["rule,texts,vocabulary,temperature,microseconds,low,high"]
    for texts in SIZES:
        for vocabulary, temperature in SETTINGS:
            rules = steps(texts, vocabulary, temperature, device)
            times: dict[str, list[float]] = {name: [] for name in rules}
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                for name in random.sample([*rules], len(rules)):
                    began = clock()
                    rules[name]()
                    if device == "cuda":
                        torch.cuda.synchronize()
                    times[name].append(clock() - began)
            for name, seconds in times.items():
                low, middle, high = (1e6 * s for s in statistics.quantiles(seconds[2:], n=4))
                lines.append(
                    f"{name},{texts},{vocabulary},{temperature},{middle:.0f},{low:.0f},{high:.0f}"
                )
                print(lines[-1], len(seconds), flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
