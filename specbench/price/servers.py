"""Scores of texts from two servers that give log-probabilities of given tokens.

From p(y) and q(y) follow the rounds of drawn drafts under every rule, and from the rank of y those
of greedy drafts. Entropies, largest probabilities and TV(p, q) remain unknown (NaN), so policies
that read them have no price, and texts are not compared with the target's law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.decoding.sampling import Sampling
from specbench.errors import UsageError, require
from specbench.price.scores import COLUMNS, MOST_RANK, ROUNDING, ScoredText
from specbench.servers.server import Server

FORCED = 1e9  # added to the logit of a token that must come; what is reported is without it


@dataclass(frozen=True)
class ServedScores:
    """Scores by two servers of one vocabulary, at temperature 1 without filters.

    Raises:
        UsageError: Texts were drawn otherwise.
    """

    target: Server
    draft: Server
    sampling: Sampling

    def __post_init__(self) -> None:
        """Check the sampling."""
        require(
            self.sampling == Sampling(),
            "servers give log-probabilities at temperature 1 without filters: give texts that were "
            "drawn so, or omit --servers",
        )

    @property
    def conditions(self) -> dict[str, Any]:
        """What decides the scores beside a text."""
        servers = {"target": self.target, "draft": self.draft}
        return {name: [s.base, s.told()["model"]] for name, s in servers.items()}

    def __call__(self, text: ScoredText) -> dict[str, list[float]]:
        """Return the columns of ``Scores`` for a text."""
        columns: dict[str, list[float]] = {}
        for name, server in (("p", self.target), ("q", self.draft)):
            laws = given_tokens(server, text.prompt, text.tokens)
            columns[name] = [math.exp(logarithm) for logarithm, _ in laws]
            columns[f"rank_{name}"] = [rank for _, rank in laws]
        return {name: columns.get(name, [math.nan] * len(text.tokens)) for name in COLUMNS}


def given_tokens(
    server: Server, prompt: Sequence[int], tokens: Sequence[int]
) -> list[tuple[float, int]]:
    """Return the log-probability and the rank, 1 or more, of each token after a prompt.

    vLLM gives them for a whole prompt. llama.cpp gives the one of a token that it writes, before
    biases, so each token is forced in a request of its own.

    Raises:
        UsageError: The server answers something else.
    """
    facts = server.told()
    whole = [*prompt, *tokens]
    try:
        if facts.get("software") == "llama.cpp":
            bodies = [
                {
                    **{"prompt": whole[:end], "n_predict": 1, "n_probs": 1, "cache_prompt": True},
                    **{"temperature": 1, "samplers": [], "logit_bias": [[whole[end], FORCED]]},
                }
                for end in range(len(prompt), len(whole))
            ]
            address = f"{server.base.removesuffix('/v1')}/completion"
            rows = [
                answer["completion_probabilities"][0]
                for answer in server.client.post(address, bodies)
            ]
            answered = [
                (row["id"], row["logprob"], 1 if row["top_logprobs"][0]["id"] == row["id"] else 2)
                for row in rows
            ]
        else:
            body = {"model": facts["model"], "prompt": whole, "max_tokens": 1, "prompt_logprobs": 0}
            (answer,) = server.client.post(server.endpoint, [body])
            rows = answer["choices"][0]["prompt_logprobs"][len(prompt) :]
            answered = [
                (token, row[str(token)]["logprob"], row[str(token)]["rank"])
                for token, row in zip(tokens, rows, strict=True)
            ]
        values = [(float(value), int(rank)) for _, value, rank in answered]
        if [token for token, *_ in answered] != list(tokens) or not all(
            -math.inf < value <= ROUNDING and 1 <= rank < MOST_RANK for value, rank in values
        ):
            raise ValueError
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{server.base} does not give the log-probabilities of given tokens: give a server of "
            "vLLM or llama.cpp with the pair's vocabulary"
        ) from error
    return [(min(0.0, value), rank) for value, rank in values]
