"""Scores by two servers equal those of the pair's own passes."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from specbench.client import Client
from specbench.decoding.sampling import Sampling
from specbench.errors import UsageError
from specbench.pairs.registry import get_pair
from specbench.price.passes import PairScores
from specbench.price.scores import ScoredText, TextName
from specbench.price.servers import ServedScores, given_tokens
from specbench.proofs.libraries import llamacpp_server
from specbench.servers.server import Server

URL = "http://localhost:1"


def text(mini: Any) -> ScoredText:
    ids = mini.tokenizer.encode("What is 3 + 4? 3 + 4 = 7.\n#### 7")
    return ScoredText(TextName("task", "1", "sd"), ids[:6], ids[6:])


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the package xllamacpp")
def test_llamacpp_gives_the_scores_of_the_pair(mini: Any, tmp_path: Path) -> None:
    from specbench.engine.export import export_pair

    files = export_pair(get_pair("mini"), tmp_path, "f32")
    with (
        llamacpp_server(files[0], draft_length=1, threads=1) as target,
        llamacpp_server(files[1], draft_length=1, threads=1) as draft,
    ):
        served = ServedScores(target, draft, Sampling())(text(mini))
    passed = PairScores(mini, Sampling())(text(mini))
    for name in ("p", "q"):
        # The server normalizes in float32, which is 1e-5 off where p(y) is near 1.
        assert np.log(served[name]) == pytest.approx(np.log(passed[name]), abs=5e-5)
        assert [r == 1 for r in served[f"rank_{name}"]] == [r == 1 for r in passed[f"rank_{name}"]]
    assert all(math.isnan(value) for value in served["entropy_q"])


class Prepared:
    """Answers as vLLM does, with log-probabilities of the tokens 3 and 4 after 1 and 2."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def get(self, url: str) -> Any:
        return {"data": [{"id": "tiny"}]} if url.endswith("/models") else {"version": "0.1"}

    def post(self, url: str, bodies: list[dict[str, Any]]) -> list[Any]:
        (body,) = bodies
        assert body["prompt"] == [1, 2, 3, 4] and body["prompt_logprobs"] == 0
        return [{"choices": [{"prompt_logprobs": self.rows}]}]


def row(token: int, value: float, rank: int) -> dict[str, Any]:
    return {str(token): {"logprob": value, "rank": rank, "decoded_token": "x"}}


IMPOSSIBLE = (
    row(4, math.nan, 1),
    row(4, 50.0, 1),
    row(4, -math.inf, 1),
    row(4, -(10**400), 1),
    row(4, -1.0, -5),
    row(4, -1.0, 2**40),
)


def test_vllm_gives_those_of_a_whole_prompt() -> None:
    rows = [None, row(2, -1.0, 1), row(3, -0.5, 1), row(4, -2.5, 7)]
    server = Server(URL, cast(Client, Prepared(rows)))
    assert given_tokens(server, [1, 2], [3, 4]) == [(-0.5, 1), (-2.5, 7)]


@pytest.mark.parametrize(
    "rows",
    [
        *(None, [None], [None, None, None, row(5, -1.0, 1)]),
        *([None, None, row(3, -0.5, 1), last] for last in IMPOSSIBLE),
    ],
)
def test_another_answer_is_refused(rows: Any) -> None:
    server = Server(URL, cast(Client, Prepared(rows)))
    with pytest.raises(UsageError, match="does not give the log-probabilities of given tokens"):
        given_tokens(server, [1, 2], [3, 4])


def test_texts_of_another_temperature_are_refused() -> None:
    with pytest.raises(UsageError, match="temperature 1 without filters"):
        ServedScores(Server(URL), Server(URL), Sampling(temperature=0.5))
