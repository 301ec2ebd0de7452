"""One step of vLLM's first model runner, on its way through functions that are wrapped.

A step samples after the target's pass: it verifies the drafts of the step before and draws the
next. Outside of a step, as when vLLM warms up, the wrapped functions do what vLLM's own do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UsageError
from specbench.serving.arm import ARGUMENT, ROUNDS, VLLM
from specbench.serving.vllm.rejection import Flattened, reject
from specbench.serving.vllm.rules import checked_rule

MOST_REQUESTS = 1000  # whose rounds nobody has read


class EngineStep:
    """The requests of a step, their drafts, and the rounds of requests that asked for them."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = allowed  # texts of rules, the default first
        self._requests: dict[str, Any] | None = None  # sampling parameters; None outside of a step
        self._judged: tuple[Tensor, Tensor]  # raw logits [T, V] and hidden states [T, hidden]
        self._drafting: list[Tensor] = []  # the draft's hidden states in this step
        self._h_q: dict[str, Tensor] = {}  # [N, hidden] of the newest drafts, by request
        self._rounds: OrderedDict[str, list[Tensor]] = OrderedDict()  # of the newest requests

    def checking(self, original: Any) -> Any:
        """Wrap the check of a request's parameters, which then have the text of its rule."""

        def verify(parameters: Any) -> None:
            original(parameters)
            try:
                rule = checked_rule(parameters.extra_args, self._allowed)
            except UsageError as error:
                raise ValueError(str(error)) from error
            parameters.extra_args = {**(parameters.extra_args or {}), ARGUMENT: rule}

        return verify

    def sampling(self, original: Any) -> Any:
        """Wrap ``GPUModelRunner.sample_tokens``, which is a step and has the raw logits."""

        def sample(runner: Any, *args: Any, **named: Any) -> Any:
            if (state := runner.execute_model_state) is None:
                return original(runner, *args, **named)
            if state.spec_decode_metadata is not None:
                rows = state.spec_decode_metadata.target_logits_indices
                self._judged = state.logits[rows].float(), state.sample_hidden_states[rows]
            self._drafting, names = [], runner.input_batch.req_ids
            self._requests = {name: runner.requests[name].sampling_params for name in names}
            try:
                output = original(runner, *args, **named)
            finally:
                requests, self._requests = self._requests, None
            if self._drafting:
                # N calls with B rows, or one with B N rows if the draft model drafts at once.
                states = torch.stack(self._drafting, 1)
                states = states.reshape(len(requests), -1, states.shape[-1])
                self._h_q = dict(zip(requests, states, strict=True))
            return output

        return sample

    def drafting(self, original: Any) -> Any:
        """Wrap vLLM's drawing of drafts, so that greedy drafts have probabilities too.

        vLLM keeps the softmax at temperature 1 for greedy requests among others, but none if all
        requests are greedy. Rules that mix or compare probabilities need it there.
        """

        def sample(proposer: Any, hidden_states: Any, sampling: Any) -> Any:
            self._drafting.append(hidden_states.clone())  # a captured graph reuses its memory
            if not (proposer._enable_probabilistic_draft_probs and sampling.all_greedy):
                return original(proposer, hidden_states, sampling)
            logits = proposer.model.compute_logits(hidden_states)
            return logits.argmax(dim=-1), logits.float().softmax(dim=-1)

        return sample

    def rejecting(self, original: Any) -> Any:
        """Wrap ``rejection_sample``, which returns tokens ``[B, most + 1]``."""

        def sample(*args: Any, **named: Any) -> Any:
            requests = self._requests or {}
            arguments = [request.extra_args for request in requests.values()]
            rules = [values[ARGUMENT] for values in arguments]
            by_vllm = original(*args, **named) if VLLM in rules or not rules else None
            if {*rules} <= {VLLM}:
                return by_vllm
            x, counts, _, _, q, logits, bonus, sampling = args
            drafted = [(name, n) for name, n in zip(requests, counts, strict=True) if n]
            known = drafted and all(name in self._h_q for name, _ in drafted)
            h_q = torch.cat([self._h_q[name][:n] for name, n in drafted]) if known else None
            tokens, report = reject(
                Flattened(x, q, logits, *self._judged, h_q, counts),
                bonus,
                rules=["sd" if rule == VLLM else rule for rule in rules],
                temperatures=[request.temperature for request in requests.values()],
                generators=sampling.generators,
            )
            asking = [values if values[ARGUMENT] != VLLM else {} for values in arguments]
            keys = [values.get(ROUNDS, "") for values in asking]
            if any(keys):
                self._keep(keys, counts, report)
            if by_vllm is None:
                return tokens
            replaced = torch.tensor([[rule == VLLM] for rule in rules], device=tokens.device)
            return torch.where(replaced, by_vllm, tokens)

        return sample

    def _keep(self, keys: Sequence[str], counts: Sequence[int], report: Tensor) -> None:
        """Keep the rounds of requests with a key and drafts, without waiting for the device."""
        copied = report.to("cpu", non_blocking=True)  # into pinned memory
        for key, count, row in zip(keys, counts, copied, strict=True):
            if key and count:
                self._rounds.setdefault(key, []).append(row)
        while len(self._rounds) > MOST_REQUESTS:
            self._rounds.popitem(last=False)

    def take_rounds(self, key: str) -> list[list[float]]:
        """Return and forget a request's rounds, as rows of ``decoding.round.verify``'s report."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return [row.tolist() for row in self._rounds.pop(key, ())]
