"""Two further checks: the target as its own draft, and whether the measured speed is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from specbench.decoding.records import RoundRecord
from specbench.engine.device import copy_bandwidth, now
from specbench.engine.pair import LoadedPair
from specbench.runs.table import percent
from specbench.validation.findings import REPORT, Finding, judged
from specbench.validation.texts import Context, Setup, decode_one, sample

OWN_DRAFT, TIME = "own draft", "time"

MIN_ACCEPTANCE = 0.999  # mean acceptance probability; float32 rounding costs far less than 0.001
TEXTS = 32

TOKENS, WARM_UP, REPEATS = 64, 16, 3
# Decoding may exceed the copy bandwidth a little: copies also write, and caches hold small models.
MAX_SHARE = 2.0
MIN_ACCOUNTED = 0.8  # minimum share of the elapsed time that the records account for


def check_own_draft(setup: Setup, contexts: Sequence[Context], *, exact: bool) -> Finding:
    """Decode with the target as its own draft: q equals p, so every draft must be accepted.

    The control is the pair's draft, which must be accepted less often.
    """
    pair = setup.pair
    twins = replace(pair, draft=pair.target.twin())
    rounds = _rounds(setup._replace(pair=twins), contexts)
    mean_of_draft = _mean(_rounds(setup, contexts))
    drafts = sum(record.accepted + (record.rejected is not None) for record in rounds)
    accepted = sum(record.accepted for record in rounds)
    mean = _mean(rounds)
    sentence = (
        f"{accepted:,} of {drafts:,} drafts accepted, mean probability {mean:.6f} "
        f"(with the pair's draft {mean_of_draft:.3f})"
    )
    facts = {
        "judged": drafts,
        "accepted": accepted,
        "expected": mean,
        "expected_of_draft": mean_of_draft,
    }
    rejected, weak = min(mean, accepted / drafts) < MIN_ACCEPTANCE, mean_of_draft >= MIN_ACCEPTANCE
    finding = Finding(OWN_DRAFT, "sd, T=1", OWN_DRAFT, *judged(rejected, weak, sentence, facts))
    return finding if exact else replace(finding, verdict=REPORT)


def check_time(pair: LoadedPair, context: Context) -> Finding:
    """Time the target alone, and compare with the wall clock and the memory bandwidth."""
    endless = replace(pair, eos_ids=frozenset())
    device = pair.target.device
    decode_one(endless, context, WARM_UP, temperature=1.0)
    texts, shares = [], []
    for _ in range(REPEATS):
        pair.forget_prompts()  # the wall clock is that of reading it
        began = now(device)
        texts.append(text := decode_one(endless, context, TOKENS, temperature=1.0))
        shares.append((text.prefill_seconds + text.decode_seconds) / (now(device) - began))
    accounted = max(shares)  # other processes can only lower it
    rate = REPEATS * TOKENS / sum(text.decode_seconds for text in texts)
    size = pair.target.weight_bytes()
    reads = size + pair.target.cache_bytes(len(context.prompt) + TOKENS / 2)
    bandwidth = copy_bandwidth(device, size)
    share = rate * reads / bandwidth
    sentence = (
        f"{rate:,.0f} tokens/s read {rate * reads / 1e9:,.1f} GB/s, {percent(share)} of the copy "
        f"bandwidth; the records account for {percent(accounted)} of the elapsed time"
    )
    possible = share <= MAX_SHARE and MIN_ACCOUNTED <= accounted <= 1.01
    facts = {
        "tokens_per_second": rate,
        "bytes_per_token": reads,
        "copy_bandwidth": bandwidth,
        "bandwidth_share": share,
        "accounted": accounted,
    }
    subject = f"autoregressive, {str(pair.target.dtype).removeprefix('torch.')}"
    return Finding(TIME, subject, TIME, *judged(not possible, False, sentence, facts))


def _rounds(setup: Setup, contexts: Sequence[Context]) -> list[RoundRecord]:
    batch = sample(setup._replace(texts=max(1, TEXTS // len(contexts))), contexts)
    return [record for texts in batch for text in texts for record in text.rounds]


def _mean(rounds: Sequence[RoundRecord]) -> float:
    return fmean(probability for record in rounds for probability in record.expected)
