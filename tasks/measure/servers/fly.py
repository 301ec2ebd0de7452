"""Run vLLM 0.33's own kernels of FLy beside specbench's definition, on a CPU.

    uv pip install --target FOLDER --no-deps vllm==0.33.0 scipy
    .servers/bin/python tasks/measure/servers/fly.py FOLDER

vLLM refuses FLy on a CPU, so Triton's interpreter runs its kernels: those of the first runner,
which overwrite uniform numbers or target tokens before the usual rejection, and those of the
second, whose rejection defers by itself. Rounds are random, greedy and drawn, with zeros in p and
with fewer than N drafts. With vLLM's own uniform numbers, as many drafts must be accepted as by
`validation.outputs.fly`, from which `tests/methods/test_block.py` derives the law of the rule. What
replaces a rejected draft must have the law of the residual. Other windows and gates are controls.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).parents[3]
sys.path[:0] = [*sys.argv[1:2], str(ROOT)]

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from scipy.stats import chisquare  # noqa: E402
from torch import Tensor  # noqa: E402
from triton.backends import backends  # noqa: E402

from specbench.validation.outputs import fly  # noqa: E402
from specbench.validation.texts import NOTHING  # noqa: E402

# vLLM uses Triton only where it sees one active driver.
backends.clear()
backends["interpreter"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

from vllm import __version__  # noqa: E402
from vllm.v1.sample import rejection_sampler as first  # noqa: E402
from vllm.v1.worker.gpu.sample.gumbel import tl_rand32  # noqa: E402
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as second  # noqa: E402

SIZE, DRAFTS, ROUNDS, REPLACED = 6, 5, 200, 1000
SETTINGS = [(1, 0.0), (1, 0.3), (2, 0.3), (2, 0.8), (4, 0.3)]  # window, entropy
FALSE_ALARM = 1e-4

# The interpreter has no functions of CUDA's library.
second.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1 + x))


class Rounds(NamedTuple):
    """Rounds of up to N drafts."""

    p: Tensor  # [B, N + 1, V]
    q: Tensor  # [B, N, V]
    x: Tensor  # [B, N], NOTHING behind the last draft
    greedy: Tensor  # [B]

    @property
    def drafted(self) -> Tensor:
        return self.x.ne(NOTHING)

    def accepted(self, uniforms: Tensor, window: int, entropy: float) -> Tensor:
        """Return how many drafts specbench accepts, ``[B]``, given numbers ``[B, N]``."""
        x, p = self.x.clamp_min(0)[..., None], self.p[:, :-1]
        ratio = (p.gather(-1, x) / self.q.gather(-1, x))[..., 0]
        equal = p.argmax(-1) == self.x
        flags = torch.where(self.greedy[:, None], equal, ratio >= uniforms) & self.drafted
        judged = [
            fly(flags[[b]], p[[b]], self.x[[b]], window=window, entropy=entropy)[0, 0]
            for b in range(len(p))
        ]
        return (torch.stack(judged) & self.drafted).long().cumprod(-1).sum(-1)


def random_rounds(count: int, seed: int) -> Rounds:
    """Return rounds with certain and uncertain targets, a third of them greedy."""
    generator = torch.Generator().manual_seed(seed)

    def rows(*shape: int) -> Tensor:
        sharpness = 4 * torch.rand(*shape, 1, generator=generator)
        logits = torch.randn(*shape, SIZE, generator=generator) * sharpness
        logits[torch.rand(*shape, SIZE, generator=generator) < 0.1] = -torch.inf
        logits[..., 0] = logits[..., 0].clamp_min(-1)
        return logits.softmax(-1)

    p, q = rows(count, DRAFTS + 1), rows(count, DRAFTS)
    q = (q + p[:, :-1]) / 2
    x = q.flatten(0, 1).multinomial(1, generator=generator).view(count, DRAFTS)
    lengths = torch.randint(2, DRAFTS + 1, (count,), generator=generator)
    x[torch.arange(DRAFTS) >= lengths[:, None]] = NOTHING
    return Rounds(p, q, x, torch.arange(count) % 3 == 0)


def of_first_runner(rounds: Rounds, window: int, entropy: float) -> tuple[Tensor, Tensor]:
    """Return tokens ``[B, N + 1]`` that the first runner emits, and its numbers ``[B, N]``."""
    drafted, counts = rounds.drafted, rounds.drafted.sum(-1)
    numbers = torch.rand(drafted.shape, generator=torch.Generator().manual_seed(1)).double()
    first.generate_uniform_probs = lambda *_: numbers[drafted].clone()
    sampling = SimpleNamespace(
        all_greedy=False,
        all_random=False,
        temperature=torch.where(rounds.greedy, 0.0, 1.0),
        generators={},
    )
    tokens = first.rejection_sample(
        rounds.x[drafted].int(),
        counts.tolist(),
        DRAFTS,
        counts.cumsum(0).int(),
        rounds.q[drafted].contiguous(),
        rounds.p[:, :-1][drafted].log(),
        torch.full((len(counts), 1), SIZE, dtype=torch.int32),
        sampling,
        fly_window_size=window,
        fly_entropy_threshold=entropy,
    )
    return tokens.long(), numbers


@triton.jit  # type: ignore[untyped-decorator]
def _uniforms_of(output: Any, seeds: Any, positions: Any) -> None:
    i = tl.program_id(0)
    tl.store(output + i, tl_rand32(tl.load(seeds + i), tl.load(positions + i), includes_zero=False))


def of_second_runner(rounds: Rounds, window: int, entropy: float) -> tuple[Tensor, Tensor]:
    """Return tokens ``[B, N + 1]`` that the second runner emits, and its numbers ``[B, N]``."""
    count = len(rounds.p)
    requests, rows = torch.arange(count), rounds.drafted.sum(-1) + 1
    inside = torch.arange(DRAFTS + 1) < rows[:, None]
    drafts = torch.nn.functional.pad(rounds.x, (1, 0), value=0)  # a draft stands in the next row
    positions = torch.arange(100, 100 + DRAFTS + 1).expand(count, -1)
    emitted, number = second.rejection_sample(
        rounds.p[inside].log(),
        rounds.q.log(),
        drafts[inside].int(),
        torch.nn.functional.pad(rows.cumsum(0), (1, 0)).int(),
        positions[inside].contiguous(),
        requests.int(),
        requests.repeat_interleave(rows).int(),
        torch.arange(DRAFTS + 1).expand(count, -1)[inside].int(),
        torch.where(rounds.greedy, 0.0, 1.0),
        requests.long(),
        DRAFTS,
        fly_window_size=window,
        fly_entropy_threshold=entropy,
    )
    emitted[torch.arange(DRAFTS + 1) >= number[:, None]] = NOTHING
    uniforms = torch.empty(count, DRAFTS)
    seeds = requests[:, None].expand_as(uniforms).contiguous()
    _uniforms_of[(uniforms.numel(),)](uniforms, seeds, positions[:, :-1].contiguous())
    return emitted, uniforms.double()


RUNNERS = {"first": of_first_runner, "second": of_second_runner}


def same_counts(runner: str) -> bool:
    """Compare counts of accepted drafts, and with those of another window and gate."""
    rounds, prefixes = random_rounds(ROUNDS, 0), True
    different = Counter[str]()
    for window, entropy in SETTINGS:
        tokens, uniforms = RUNNERS[runner](rounds, window, entropy)
        counts = tokens.ne(NOTHING).sum(-1) - 1
        settings = {
            "same": (window, entropy),
            "other window": (window % 4 + 1, entropy),
            "other gate": (window, 9.0),
        }
        for name, setting in settings.items():
            different[name] += int((counts != rounds.accepted(uniforms, *setting)).sum())
        accepted = torch.arange(DRAFTS) < counts[:, None]
        prefixes &= bool((tokens[:, :-1] == rounds.x)[accepted].all())
    print(f"{runner} runner, {len(SETTINGS) * ROUNDS} rounds, other counts: {dict(different)}")
    return prefixes and not different.pop("same") and all(different.values())


def same_residual(runner: str, window: int = 2) -> bool:
    """Compare what replaces the first draft with the law of the residual, where windows fail."""
    rounds = random_rounds(ROUNDS, 3)
    residual = (rounds.p[:, 0] - rounds.q[:, 0]).clamp_min(0)
    target = rounds.p[:, 0] * (residual > 0)
    laws = [law / law.sum(-1, keepdim=True) for law in (residual, target)]
    far = (laws[0] - laws[1]).abs().sum(-1).nan_to_num()
    # Several tokens can replace the first draft, with a law far from that of the target.
    chosen = int(torch.where(residual.count_nonzero(-1) >= 3, far, 0).argmax())
    p, q = rounds.p[[chosen]], rounds.q[[chosen]]
    # The least likely drafts under p, so that many are rejected and many windows fail.
    x = torch.where(p[:, :-1] > 0, p[:, :-1] / q, torch.inf).argmin(-1)
    p, q, x = (part.expand(REPLACED, *part.shape[1:]).contiguous() for part in (p, q, x))
    many = Rounds(p, q, x, greedy=torch.zeros(REPLACED, dtype=torch.bool))
    tokens, _ = RUNNERS[runner](many, window, 0.0)
    replaced = tokens[tokens.ne(NOTHING).sum(-1) == 1, 0]
    counts = replaced.bincount(minlength=SIZE)[:SIZE]
    possible = residual[chosen] > 0

    def by_chance(law: Tensor) -> float:
        """Return the probability of counts as unlikely as these under a law of tokens ``[V]``."""
        shares = law[possible].double() / law[possible].double().sum()
        expected = shares * counts[possible].sum()
        return float(chisquare(counts[possible].numpy(), expected.numpy()).pvalue)

    same, control = (by_chance(law[chosen]) for law in laws)
    print(
        f"{runner} runner: {len(replaced)} drafts replaced by {int(possible.sum())} tokens, "
        f"p-value {same:.2g}; of the target's law {control:.2g}"
    )
    return bool(counts[~possible].sum() == 0 and same > FALSE_ALARM > control)


if __name__ == "__main__":
    print("vLLM", __version__)
    results = [test(runner) for runner in RUNNERS for test in (same_counts, same_residual)]
    sys.exit("FLy in vLLM is another rule" if not all(results) else None)
