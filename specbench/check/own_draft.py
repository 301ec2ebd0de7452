"""The target as its own draft: whatever is rejected then is no matter of distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specbench.check.findings import FAILED, OK, REPORT, WEAK, Finding
from specbench.check.texts import Context, Rule, Sampled, sample
from specbench.decoding.records import RoundRecord
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import Runner
from specbench.methods.rules import sd

PART = "own draft"
LEAST = 0.999  # mean acceptance probability; what rounding in float32 takes is far less
TEXTS = 32


def check_own_draft(pair: LoadedPair, contexts: Sequence[Context], how: Sampled) -> Finding:
    """Decode with the target as the draft: q is p, and every draft is accepted.

    The control is the pair's own draft, which must be accepted less often.
    """
    own = replace(pair, draft=Runner(pair.target.model, pair.target.vocabulary))
    rounds, control = (_rounds(each, contexts, how) for each in (own, pair))
    proposed = sum(record.accepted + (record.rejected is not None) for record in rounds)
    accepted = sum(record.accepted for record in rounds)
    mean, mean_of_draft = _mean(rounds), _mean(control)
    enough = min(mean, accepted / proposed) >= LEAST
    verdict = FAILED if not enough else OK if mean_of_draft < LEAST else WEAK
    says = (
        f"{accepted:,} of {proposed:,} drafts accepted, mean probability {mean:.6f} "
        f"(with the pair's draft {mean_of_draft:.3f})"
    )
    facts = {
        "judged": proposed,
        "accepted": accepted,
        "expected": mean,
        "expected_of_draft": mean_of_draft,
    }
    return Finding(PART, "sd, T=1", PART, verdict if how.exact else REPORT, says, facts)


def _rounds(pair: LoadedPair, contexts: Sequence[Context], how: Sampled) -> list[RoundRecord]:
    rule = Rule("sd", sd)
    return [
        record
        for context in contexts
        for text in sample(pair, rule, context, max(1, TEXTS // len(contexts)), Sampling(), how)
        for record in text.rounds
    ]


def _mean(rounds: Sequence[RoundRecord]) -> float:
    found = [chance for record in rounds for chance in record.expected]
    return sum(found) / len(found)
