"""One step of vLLM's first model runner, on its way through functions that are wrapped.

A step samples after the target's pass: it verifies the drafts of the step before, which vLLM
flattens, by ``decoding.round.verify``, and draws the next. Outside of a step, as when vLLM warms
up, the wrapped functions do what vLLM's own do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafting import Drafts, State
from specbench.decoding.records import report_columns
from specbench.decoding.round import TargetOutput, texts_in_cache, verify
from specbench.errors import UsageError
from specbench.serving.arm import ARGUMENT, ROUNDS, VLLM
from specbench.serving.vllm.rules import checked_rule, rule_of

END = -1  # behind the tokens of a text
MOST_REQUESTS = 1000  # whose rounds nobody has read


class Flattened(NamedTuple):
    """The drafts of B requests one behind the other, T in all, as vLLM gives them."""

    x: Tensor  # [T] drafted tokens
    q: Tensor | None  # [T, V] that they were drawn from; at temperature 0 the softmax at 1
    logits: Tensor  # [T, V] of the target, processed
    raw_logits: Tensor  # [T, V] of the target
    h_p: Tensor  # [T, hidden] of the target
    h_q: Tensor | None  # [T, hidden] of the draft; None if no model drafts
    counts: Sequence[int]  # of each request's drafts

    def of_requests(self, rows: Sequence[int], n: int) -> Flattened:
        """Return the drafts of some requests as tensors ``[B, n, ...]``.

        Neighbours with n drafts each are not copied. Other rows hold anything behind their counts.
        """
        starts, counts = [0, *accumulate(self.counts)], [self.counts[row] for row in rows]
        if counts == [n] * len(rows) and list(rows) == list(range(rows[0], rows[-1] + 1)):
            places: Any = slice(starts[rows[0]], starts[rows[0]] + n * len(rows))
        else:
            last = len(self.x) - 1
            index = [min(starts[row] + i, last) for row in rows for i in range(n)]
            places = torch.tensor(index).to(self.x.device, non_blocking=True)
        parts: list[Any] = [
            None if values is None else values[places].unflatten(0, (len(rows), n))
            for values in self[:-1]
        ]
        return Flattened._make([*parts, counts])


def reject(
    drafts: Flattened,
    bonus: Tensor,
    *,
    rules: Sequence[str],
    temperatures: Sequence[float],
    generators: Mapping[int, torch.Generator],
    longest: int = 0,
) -> tuple[Tensor, Tensor]:
    """Verify the drafts of all requests; those with the same rule and temperature together.

    The tokens ``bonus`` ``[B, 1]`` follow if all drafts of a request are accepted; ``generators``
    are those of requests with a seed, by row, and ``longest`` is the server's N, by which rules and
    random numbers do not depend on the other requests. Return the new tokens of each request
    ``[B, n + 1]``, with ``END`` behind its last one and n the largest number of drafts, and the
    report ``[B, columns]`` of the round, see ``records.REPORT``.
    """
    device, most_drafts = drafts.logits.device, max(drafts.counts, default=0)
    if most_drafts == 0:
        return bonus.int(), bonus
    n = max(most_drafts, longest)
    uniforms = torch.rand(len(rules), 2 * n + 1, device=device)
    for row, generator in generators.items():
        uniforms[row].uniform_(generator=generator)
    groups: dict[tuple[str, float], list[int]] = {}
    for row, key in enumerate(zip(rules, temperatures, strict=True)):
        groups.setdefault(key, []).append(row)
    # Together, the distributions of few texts only stay in a processor's cache.
    most = texts_in_cache(drafts.logits[:n])
    reports = [
        _report(drafts, *key, part, bonus[part].long(), uniforms[part])
        for key, rows in groups.items()
        for part in (rows[first : first + most] for first in range(0, len(rows), most))
    ]
    order = torch.tensor([row for rows in groups.values() for row in rows])
    report = torch.cat(reports)[order.argsort().to(device)]
    columns = report_columns(report.shape[1])
    accepted, tokens = report[:, columns["accepted"]], report[:, columns["new_tokens"]].int()
    is_new = torch.arange(most_drafts + 1, device=device) <= accepted
    return torch.where(is_new, tokens[:, : most_drafts + 1], END), report


def _report(
    drafts: Flattened,
    rule: str,
    temperature: float,
    rows: Sequence[int],
    bonus: Tensor,
    uniforms: Tensor,
) -> Tensor:
    """Return the reports of requests with one rule and temperature."""
    device, n = drafts.logits.device, uniforms.shape[1] // 2
    x, q, logits, raw, h_p, h_q, counts = drafts.of_requests(rows, n)
    x, proposed = x.long().clamp_min(0), torch.tensor(counts).to(device, non_blocking=True)
    greedy = temperature == 0
    p = _one_hot(logits.argmax(-1), logits) if greedy else logits.softmax(-1)
    # Looking costs less than a softmax, but on a GPU the host would wait for the answer.
    unprocessed = not greedy and device.type == "cpu" and torch.equal(logits, raw)
    p1 = p if unprocessed else raw.softmax(-1)
    if q is None:
        q = q1 = _one_hot(x, p1)
    else:  # vLLM draws from a softmax with the request's temperature and without filters
        q1 = q if temperature in (0, 1) else q.log().mul_(temperature).softmax(-1)
        q = _one_hot(x, p1) if greedy else q
    if min(counts) < n:
        q = q * (torch.arange(n, device=device) < proposed[:, None])[..., None]
    # The token that follows all drafts is drawn already: it has all mass.
    final = torch.zeros_like(p[:, :1])
    p = torch.cat((p, final), 1).scatter(1, proposed[:, None, None].expand_as(final), 0.0)
    p[torch.arange(len(rows), device=device), proposed, bonus[:, 0]] = 1.0
    p1 = p if unprocessed else torch.cat((p1, final), 1)
    top = torch.cat((raw.amax(-1), final[..., 0]), 1)
    state = State(
        last=x.new_zeros(len(rows), 2),
        length=x.new_zeros(len(rows)),
        uniforms=uniforms,
        active=torch.ones_like(proposed, dtype=torch.bool),
        kv_length=None,
    )
    return verify(
        rule_of(rule, str(device)),
        state,
        Drafts(x, q, q1, h_p[..., :0] if h_q is None else h_q, proposed),
        TargetOutput(p, p1, h_p, top),
        greedy,
    ).report


def _one_hot(tokens: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(-1, tokens[..., None], 1.0)


class EngineStep:
    """The requests of a step, their drafts, and the rounds of requests that asked for them."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = allowed  # texts of rules, the default first
        self._requests: dict[str, Any] | None = None  # sampling parameters; None outside of a step
        self._judged: tuple[Tensor, Tensor]  # raw logits [T, V] and hidden states [T, hidden]
        self._drafting: list[Tensor] = []  # the draft's hidden states in this step
        self._longest = 0  # drafts of a round
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
            self._longest = runner.num_spec_tokens
            self._requests = {name: runner.requests[name].sampling_params for name in names}
            try:
                output = original(runner, *args, **named)
            finally:
                requests, self._requests = self._requests, None
            if self._drafting:
                # N calls with B rows, or one with B N rows if the draft model drafts at once.
                states = torch.stack(self._drafting, 1)
                states = states.reshape(len(requests), -1, states.shape[-1])
                self._h_q |= zip(requests, states, strict=True)
                # A request may leave out a step, and keeps its drafts.
                self._h_q = {name: h for name, h in self._h_q.items() if name in runner.requests}
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
            has_h_q = drafted and all(name in self._h_q for name, _ in drafted)
            h_q = torch.cat([self._h_q[name][:n] for name, n in drafted]) if has_h_q else None
            tokens, report = reject(
                Flattened(x, q, logits, *self._judged, h_q, counts),
                bonus,
                rules=["sd" if rule == VLLM else rule for rule in rules],
                temperatures=[request.temperature for request in requests.values()],
                generators=sampling.generators,
                longest=self._longest,
            )
            asking = [values if values[ARGUMENT] != VLLM else {} for values in arguments]
            keys = [values.get(ROUNDS, "") for values in asking]
            if any(keys):  # keep the rounds, without waiting for the device: in pinned memory
                copied = report.to("cpu", non_blocking=True)
                for key, count, row in zip(keys, counts, copied, strict=True):
                    if key and count:
                        self._rounds.setdefault(key, []).append(row)
                while len(self._rounds) > MOST_REQUESTS:
                    self._rounds.popitem(last=False)
            if by_vllm is None:
                return tokens
            replaced = torch.tensor([[rule == VLLM] for rule in rules], device=tokens.device)
            return torch.where(replaced, by_vllm, tokens)

        return sample

    def take_rounds(self, key: str) -> list[list[float]]:
        """Return and forget a request's rounds, as rows of ``decoding.round.verify``'s report."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return [row.tolist() for row in self._rounds.pop(key, ())]
