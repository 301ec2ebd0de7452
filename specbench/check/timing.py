"""Whether the times that are reported can be true."""

from __future__ import annotations

from dataclasses import replace

from specbench.check.findings import FAILED, OK, Finding
from specbench.check.texts import Context
from specbench.decoding.loop import decode
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.bandwidth import copy_bandwidth, states_read, weights_read
from specbench.engine.clock import now
from specbench.engine.loading import LoadedPair

PART = "time"
TOKENS, WARM_UP, TURNS = 64, 16, 3
# Copies write as well as read and a small model stays in caches: only far more is impossible.
MOST_SHARE = 2.0
LEAST_TOLD = 0.8  # part of the time that passed which the records must account for


def check_time(pair: LoadedPair, context: Context) -> Finding:
    """Time the target alone and compare with the clock on the wall and the memory's bandwidth."""
    endless = replace(pair, eos_ids=frozenset())
    device = pair.target.device
    _decode(endless, context, WARM_UP)
    began = now(device)
    texts = [_decode(endless, context, TOKENS) for _ in range(TURNS)]
    passed = now(device) - began
    told = sum(text.prefill_seconds + text.decode_seconds for text in texts)
    rate = TURNS * TOKENS / sum(text.decode_seconds for text in texts)
    size = weights_read(pair.target)
    reads = size + states_read(pair.target, len(context.prompt) + TOKENS / 2)
    bandwidth = copy_bandwidth(device, size)
    share = rate * reads / bandwidth
    says = (
        f"{rate:,.0f} tokens/s read {rate * reads / 1e9:,.1f} GB/s, {share:.0%} of what copies "
        f"reach; the records account for {told / passed:.0%} of the time that passed"
    )
    possible = share <= MOST_SHARE and LEAST_TOLD <= told / passed <= 1.01
    facts = {
        "tokens_per_second": rate,
        "bytes_per_token": reads,
        "copy_bandwidth": bandwidth,
        "bandwidth_share": share,
        "accounted": told / passed,
    }
    subject = f"autoregressive, {str(pair.target.dtype).removeprefix('torch.')}"
    return Finding(PART, subject, PART, OK if possible else FAILED, says, facts)


def _decode(pair: LoadedPair, context: Context, tokens: int) -> Generation:
    return decode(
        pair,
        None,
        context.prompt,
        sampling=Sampling(),
        draft_length=0,
        max_new_tokens=tokens,
        seed=0,
        sample_key="check/time",
    )
