"""Compare one update of a head at an 8B/1B pair's sizes with the plain formulation.

    python tasks/measure/head_update.py [--texts B] [--tokens T] [--repeats R] [--device cpu]

Random data at the sizes of Llama 3.1 8B with Llama 3.2 1B: hidden states of 4,096 and 2,048, a
vocabulary of 128,256. Our update uses, per token, the hidden states and three scalars. The plain
formulation, as in the authors' release, differentiates through softmax, mixture and logarithm of
the ``[B, T, V]`` logits of both models. Both do one forward pass, one backward pass and one step of
Adam. Each runs in a process of its own, and they take turns. Memory is the peak of a process,
including inputs, minus its memory before. Computing the three scalars, once per set of rollouts, is
timed separately.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor

from specbench.analysis.tables.table import Column, Table, with_interval
from specbench.cli.output import print_table
from specbench.decoding.heads.head import Head
from specbench.training.objective import Surrogate, evaluate
from specbench.training.rollouts import Rollouts

HIDDEN_P, HIDDEN_Q, VOCABULARY = 4096, 2048, 128_256
OURS, PLAIN, SCALARS = "three scalars", "plain logits", "making the scalars (once)"
FASTER, SMALLER = 10, 10  # targets of the project
ACCEPTANCE_WEIGHT = 0.4


def main() -> None:
    """Measure, then print the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("texts", 4), ("tokens", 128), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    workers = {system: start(system, options) for system in WORK}
    runs: dict[str, list[list[float]]] = {system: [] for system in WORK}
    for _ in range(options.repeats):
        for system, worker in workers.items():
            worker.send(True)
            runs[system].append(worker.recv())
    for worker in workers.values():
        worker.send(False)
    show({system: np.array(measured) for system, measured in runs.items()}, options)


def start(system: str, options: argparse.Namespace) -> Connection:
    """Start the process of a system; return the end of its pipe."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=serve, args=(system, options, there), daemon=True).start()
    return here


def serve(system: str, options: argparse.Namespace, requests: Connection) -> None:
    """Create the inputs; for each request, run the system and send its seconds and peak memory."""
    device = torch.device(options.device)
    before = peak(device)
    torch.manual_seed(0)
    work = WORK[system]((options.texts, options.tokens), device)
    work()  # a warm-up
    while requests.recv():
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        requests.send([time.perf_counter() - began, peak(device) - before])


def ours(shape: tuple[int, int], device: torch.device) -> Callable[[], None]:
    """The update as ``specbench train`` does it."""
    inputs = torch.randn(shape[0] * shape[1], HIDDEN_Q + HIDDEN_P, device=device)
    p, q, tv = torch.rand(3, len(inputs), device=device)
    row = torch.arange(shape[0], device=device).repeat_interleave(shape[1])
    rollouts = Rollouts([""] * shape[0], [False] * shape[0], row, row, inputs, p, q, tv)
    head, update = trainer(device)
    old = head(inputs).detach()
    advantage = torch.randn(shape[0], device=device)
    step = Surrogate(rollouts, old, old, torch.ones_like(advantage), advantage, ACCEPTANCE_WEIGHT)
    return lambda: update(evaluate(head, step).objective)


def plain(shape: tuple[int, int], device: torch.device) -> Callable[[], None]:
    """The update through complete distributions."""
    inputs = torch.randn(*shape, HIDDEN_Q + HIDDEN_P, device=device)
    logits_p, logits_q = logits(shape, device)
    tokens = torch.randint(VOCABULARY, (*shape, 1), device=device)
    advantage = torch.randn(shape[0], device=device)
    head, update = trainer(device)

    def objective() -> Tensor:
        w: Tensor = head(inputs).unsqueeze(-1)
        q = logits_q.softmax(-1)
        v = w * logits_p.softmax(-1) + (1 - w) * q
        spoken = v.log().gather(-1, tokens).squeeze(-1).sum(-1)
        accepted = torch.minimum(q, v).sum(-1).mean()
        return (advantage * spoken).mean() + ACCEPTANCE_WEIGHT * accepted

    return lambda: update(objective())


def scalars(shape: tuple[int, int], device: torch.device) -> Callable[[], None]:
    """The extra work of a rollout for each token: p(x), q(x) and TV."""
    logits_p, logits_q = logits(shape, device)
    tokens = torch.randint(VOCABULARY, (*shape, 1), device=device)

    def make() -> None:
        for t in range(shape[1]):
            p, q = logits_p[:, t].softmax(-1), logits_q[:, t].softmax(-1)
            p.gather(-1, tokens[:, t])
            q.gather(-1, tokens[:, t])
            (p - q).abs().sum(-1)

    return make


WORK = {OURS: ours, PLAIN: plain, SCALARS: scalars}


def trainer(device: torch.device) -> tuple[Head, Callable[[Tensor], None]]:
    """Return a head, and a function that takes one gradient step on an objective."""
    head = Head("linear", (HIDDEN_P, HIDDEN_Q)).to(device)
    optimizer = torch.optim.Adam(head.parameters())

    def update(objective: Tensor) -> None:
        optimizer.zero_grad()
        (-objective).backward()
        optimizer.step()

    return head, update


def logits(shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return random logits of both models."""
    size = (*shape, VOCABULARY)
    return torch.randn(size, device=device), torch.randn(size, device=device)


def peak(device: torch.device) -> int:
    """Return the peak memory in bytes, of the device or, on a CPU, of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show(runs: dict[str, np.ndarray], options: argparse.Namespace) -> None:
    """Print seconds and bytes ``[repeats, 2]`` of every system, and the ratios."""
    title = (
        f"{options.texts} texts of {options.tokens} tokens, hidden {HIDDEN_Q} + {HIDDEN_P}, "
        f"vocabulary {VOCABULARY:,}, float32, {options.device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; n = {options.repeats}"
    )
    rows = [
        [name, _range(costs[:, 0], ".4f"), f"{np.median(costs[:, 1]) / 1e6:.0f}"]
        for name, costs in runs.items()
    ]
    ratios = []
    for column, quantity, promised in ((0, "time", FASTER), (1, "memory", SMALLER)):
        ratio = runs[PLAIN][:, column] / runs[OURS][:, column]
        met = "yes" if ratio.min() >= promised else "no"
        ratios.append([f"plain / ours, {quantity}", _range(ratio, ".0f"), f"{promised}", met])
    headings = ("", "seconds (median, range)", "peak memory, MB (median)")
    promises = ("ratio", "median, range", "promised", "met")
    print_table(
        Table(title, [Column(name) for name in headings], rows),
        Table("", [Column(name) for name in promises], ratios),
    )


def _range(values: np.ndarray, form: str) -> str:
    return with_interval(np.median(values), values.min(), values.max(), form)


if __name__ == "__main__":
    main()
