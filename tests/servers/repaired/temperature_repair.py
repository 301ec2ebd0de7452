"""A plugin for vLLM on a CPU, whose speculation reads temperatures from uninitialised memory.

vLLM's issue 55005: the kernel of ``expand_batch_to_tokens`` fills a converted copy of its output
and drops it. vLLM loads a plugin by the entry point in the folder beside this file.
"""

from typing import Any


def install() -> None:
    """Replace the function by one that repeats each request's value."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Return each request's value once per token of the request; see vLLM's function."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = x.masked_fill(x == replace_from, replace_to)
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)
