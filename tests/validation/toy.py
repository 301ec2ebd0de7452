"""A small server with a speculative loop of its own over tables, in which faults can be planted."""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specbench.engine.pair import LoadedPair

from ..serving.fake import Quiet, threaded

PIECES = ["a", "b", "c", "d", "ab", "bc", "abc", " a", " ", "</s>"]
MERGES = [("a", "b"), ("b", "c"), ("ab", "c"), (" ", "a")]
END = len(PIECES) - 1
DRAFT_LENGTH = 3
FAULTS = ("temperature", "residual", "relaxed", "forced")
BONUS_FROM_Q = "bonus"
Floats = NDArray[np.float64]


class Table:
    """A model whose next token depends only on the last one."""

    device = torch.device("cpu")
    vocabulary, hidden_size, context = len(PIECES), 1, 4096

    def __init__(self, logits: Floats) -> None:
        self.logits = logits

    def plain(self, tokens: Tensor, last: int, hidden: bool) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.logits)[tokens][:, -last:].float(), torch.empty(0)

    @cache  # noqa: B019
    def law(self, token: int, temperature: float) -> Floats:
        logits = self.logits[token]
        if not temperature:
            return np.eye(len(logits))[logits.argmax()]
        weights = np.exp((logits - logits.max()) / temperature)
        return weights / weights.sum()


@cache
def toy() -> LoadedPair:
    """The pair that the server runs."""
    random = np.random.default_rng(3)
    target = 1.5 * random.normal(size=(len(PIECES), len(PIECES)))
    target[:, END] -= 2
    draft = target + 0.8 * random.normal(size=target.shape)
    return LoadedPair("toy", Table(target), Table(draft), tokenizer(), frozenset({END}))  # type: ignore[arg-type]


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    backend = Tokenizer(models.BPE(vocabulary, MERGES))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=PIECES[END], clean_up_tokenization_spaces=False
    )


class Position(NamedTuple):
    """What may follow a token: cumulative laws ``[V]``, and acceptance ``[V]`` by drafted token."""

    draft: list[float]
    acceptance: list[float]
    residual: list[float]
    bonus: list[float]


@cache
def position(token: int, temperature: float, fault: str) -> Position:
    pair = toy()
    p, q = (model.law(token, temperature) for model in (pair.target, pair.draft))  # type: ignore[attr-defined]
    hot = fault == "temperature" and temperature
    drafted = pair.draft.law(token, 1.0) if hot else q  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):  # greedy tokens that the draft never proposes
        acceptance = np.minimum(1, p / q * (1.5 if fault == "relaxed" else 1))
    if fault == "forced":
        acceptance = np.maximum(acceptance, 0.5)
    rest = np.maximum(p - q, 0)
    rest = rest if rest.sum() else p
    residual = rest / (1 if fault == "residual" else rest.sum())
    laws = drafted.cumsum(), acceptance, residual.cumsum(), (q if fault == BONUS_FROM_Q else p)
    return Position(*(law.tolist() for law in laws[:3]), laws[3].cumsum().tolist())


def speculate(prompt: Sequence[int], temperature: float, limit: int, seed: int, fault: str = ""):
    """Return the new tokens of a text by speculative sampling, with the end token if it ends."""
    text, start = list(prompt), len(prompt)
    most = 3 * (limit + DRAFT_LENGTH + 1)  # a drafted, rejected and corrected token takes three
    numbers = iter(np.random.default_rng(seed).random(most).tolist())
    while END not in text[start:] and len(text) - start < limit:
        for _ in range(DRAFT_LENGTH):
            at = position(text[-1], temperature, fault)
            x = _drawn(at.draft, numbers)
            if next(numbers) >= at.acceptance[x]:
                text.append(_drawn(at.residual, numbers))
                break
            text.append(x)
        else:
            text.append(_drawn(position(text[-1], temperature, fault).bonus, numbers))
    new = text[start : start + limit]
    return new[: new.index(END) + 1] if END in new else new


def _drawn(cumulative: list[float], numbers: Iterator[float]) -> int:
    return min(bisect_right(cumulative, next(numbers)), len(cumulative) - 1)


class Handler(Quiet):
    fault: ClassVar[str] = ""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked.get("model", "toy") != "toy":
            return self.reply(404, {"error": {"message": f"no model {asked['model']}"}})
        how = asked["temperature"], asked["max_tokens"], asked["seed"]
        tokens = speculate(asked["prompt"], *how, self.fault)
        reason = "stop" if tokens[-1] == END else "length"
        text = "".join(PIECES[token] for token in tokens if token != END)
        choice = {"text": text, "token_ids": tokens, "finish_reason": reason}
        self.reply(200, {"choices": [choice]})


def serving(fault: str = "", handler: type[BaseHTTPRequestHandler] = Handler):
    """Run a server of the pair in a thread; the context is its address."""
    return threaded(type("Own", (handler,), {"fault": fault}))
