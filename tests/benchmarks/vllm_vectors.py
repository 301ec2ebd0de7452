"""Judge vLLM's sampler by the cases of `specbench vectors`: python vllm_vectors.py vectors.json.

It runs with vLLM's Python. The uniform numbers of drafts are those of the cases, and what the last
token is drawn from is judged by many draws, since vLLM draws it with exponential numbers.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

REPEATS = 2000  # draws of each last token


def sampled(case, rows, u):
    """Return the tokens ``[B, N + 1]`` of the texts of a case, -1 behind the last."""
    p, q, x = (np.array(case[key])[rows] for key in ("p", "q", "drafts"))
    counts = np.array(case["counts"])[rows]
    flat = [(row, i) for row, n in enumerate(counts) for i in range(n)]
    if not flat:
        return None
    index = tuple(np.array(flat).T)
    uniforms = torch.tensor(u[index])
    rejection_sampler.generate_uniform_probs = lambda *_: uniforms
    bonus = [np.random.choice(p.shape[-1], p=p[row, n]) for row, n in enumerate(counts)]
    return rejection_sampler.rejection_sample(
        torch.tensor(x[index], dtype=torch.int32),
        counts.tolist(),
        int(counts.max()),
        torch.tensor(counts.cumsum(), dtype=torch.int32),
        torch.tensor(q[index], dtype=torch.float32),
        torch.tensor(p[index], dtype=torch.float32).log(),
        torch.tensor(bonus, dtype=torch.int32)[:, None],
        SimpleNamespace(
            all_greedy=False, all_random=True, temperature=torch.ones(len(counts)), generators={}
        ),
    ).numpy()


def main(path):
    np.random.seed(1)
    torch.manual_seed(1)
    if current_platform.is_cpu():  # its kernels are in C++
        current_platform.register_triton_kernel_overrides()
    cases = json.loads(Path(path).read_text())["cases"]
    for case in (case for case in cases if case["form"] == "tokens"):
        count = len(case["counts"])
        rows = np.tile(np.arange(count), REPEATS)
        u, accepted = np.array(case["uniforms"])[rows], np.array(case["accepted"])[rows]
        tokens = sampled(case, rows, u)
        wrong = (tokens >= 0).sum(-1) != accepted + 1
        last = np.take_along_axis(tokens, accepted[:, None], 1)[:, 0].reshape(REPEATS, count)
        largest = 0.0  # deviation of a token's count, in standard deviations
        for row, source in enumerate(np.array(case["source"])):
            share = source / source.sum()
            drawn = last[last[:, row] >= 0, row]
            deviation = np.abs(np.bincount(drawn, minlength=len(share)) - len(drawn) * share)
            spread = np.sqrt(len(drawn) * share * (1 - share))
            largest = max(largest, *(deviation / np.where(spread > 0, spread, 1e-9)))
        other = int(wrong.reshape(REPEATS, -1).any(0).sum())
        print(
            f"{case['name']}: {other} of {count} texts have another length; "
            f"counts of last tokens deviate by at most {largest:.1f} standard deviations"
        )


if __name__ == "__main__":
    main(sys.argv[1])
