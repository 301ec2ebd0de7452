"""One speculative round of any method, for a batch of texts.

A round drafts N tokens, runs the target over them in one pass, accepts drafts up to the first
rejection, and adds one token: a draw from the residual at the rejected position, or from p after
the last draft (the bonus token). With N = 0 it is one autoregressive step. The parts are functions
of tensors that never wait for the device, so an engine can compile or capture them.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafting import Drafter, Drafts, State, context_of, kv_length, within
from specbench.decoding.records import NO_WEIGHT, REPORT
from specbench.decoding.sampling import Sampling, draw
from specbench.engine.device import Timestamp, timestamp
from specbench.engine.pair import LoadedPair, Model
from specbench.methods import Positions, Rule, Verdict
from specbench.methods.control import DraftControl
from specbench.methods.laws import TINY, BoundLaw, Next
from specbench.methods.verdict import fault_of_form, in_blocks, likeliest_token
from specbench.plugins import user_code

CACHED = 2**22  # bytes of a tensor of distributions; a rule makes several such tensors


class TargetOutput(NamedTuple):
    """The target's output for the next n + 1 tokens of B texts."""

    p: Tensor  # [B, n + 1, V] processed
    p1: Tensor  # [B, n + 1, V] softmax at temperature 1
    hidden: Tensor  # [B, n + 1, hidden]
    top: Tensor | None = None  # [B, n + 1] largest logit
    states: Tensor | None = None  # [B, n + 1, layers * hidden] after the target's ``layers``


class StepOutput(NamedTuple):
    """The result of a round for B texts."""

    last: Tensor  # [B, 2] the two newest tokens
    length: Tensor  # [B] tokens of each text
    report: Tensor  # [B, columns] the data for the host, see ``records.REPORT``
    # [B, n + 1, 2] log p and log of the law
    laws: Tensor | None = None
    states: Tensor | None = None  # [B, W, layers * hidden] the next ``State.states``


class StepTimes(NamedTuple):
    """Timestamps between the parts of a round."""

    started: Timestamp
    drafted: Timestamp
    verified: Timestamp
    finished: Timestamp


def speculative_step(
    pair: LoadedPair,
    rule: Rule | None,
    state: State,
    sampling: Sampling,
    drafter: Drafter = Drafter(),  # noqa: B008 (frozen)
    control: DraftControl | None = None,
    law: BoundLaw | None = None,
) -> tuple[StepOutput, StepTimes]:
    """Draft up to N tokens of every text, verify them and add one more.

    The parameters of ``rule`` are bound; it is None for N = 0. ``control`` decides how many of the
    N tokens are drafted; None drafts all of them. ``law`` adds the new tokens' ``laws``.
    """
    rows, draws = state.uniforms.shape
    assert state.last.shape == (rows, 2) and state.length.shape == state.active.shape == (rows,)
    assert draws % 2 == 1 and (rule is None) == (draws == 1)
    engine, device = pair.engine, pair.target.device
    started = timestamp(device)
    state = engine.place(state)
    if rule is None:
        result = engine(autoregressive_step)(pair.target, state, sampling)
        finished = timestamp(device)
        return result, StepTimes(started, started, finished, finished)
    drafts = drafter(pair, state, sampling, control)
    if (context := context_of(drafter, pair)) is not None:
        drafts = engine(within)(drafts, state.length, context)
    drafted = timestamp(device)
    output = engine(target_forward)(pair.target, state, drafts.x, sampling)
    verified = timestamp(device)
    with user_code(rule):
        result = engine(verify)(rule, state, drafts, output, sampling.greedy, law)
    return result, StepTimes(started, drafted, verified, timestamp(device))


def target_forward(
    model: Model, state: State, x: Tensor | None, sampling: Sampling
) -> TargetOutput:
    """Read the newest token of every text, and its drafts ``x`` ``[B, n]``, in one pass."""
    tokens = state.last[:, 1:] if x is None else torch.cat((state.last[:, 1:], x), 1)
    n = tokens.shape[1] - 1
    positions = state.length[:, None] + torch.arange(-1, n, device=tokens.device)
    hidden, logits = model.read(tokens, positions, kv_length(state, n))
    hidden, states = hidden.tensor_split([model.hidden_size], -1)
    top = in_blocks(logits, -torch.inf).amax(-1).amax(-1)  # at once, a GPU takes longer
    return TargetOutput(*sampling.distributions(logits), hidden, top, states)


def autoregressive_step(model: Model, state: State, sampling: Sampling) -> StepOutput:
    """Draw the next token of every text from p."""
    output = target_forward(model, state, None, sampling)
    p = output.p[:, 0]
    x = (p.argmax(-1) if sampling.greedy else draw(p, state.uniforms[:, 0]))[:, None]
    none, length = torch.zeros_like(x), state.length + state.active
    report = _report(
        **{"length": length[:, None], "accepted": none, "proposed": none, "new_tokens": x},
        **_checks(p, output.p1, output.p1[:, :0]),
        **{"has_zero_p": none},
    )
    return StepOutput(torch.cat((state.last[:, 1:], x), 1), length, report)


def verify(
    rule: Rule,
    state: State,
    drafts: Drafts,
    output: TargetOutput,
    greedy: bool,
    law: BoundLaw | None = None,
) -> StepOutput:
    """Accept drafts up to the first rejection, and draw one more token.

    On a CPU, only as many texts are verified at once as have distributions that fit into its cache.
    """
    most = texts_in_cache(drafts.q[0])
    if len(drafts.x) > most and not torch.compiler.is_compiling():
        parts = []
        for begin in range(0, len(drafts.x), most):
            s, d, o = (_texts(values, begin, most) for values in (state, drafts, output))
            parts.append(verify(rule, s, d, o, greedy, law))
        columns = zip(*parts, strict=True)
        return StepOutput._make(None if c[0] is None else torch.cat(c) for c in columns)
    x, q, q1, h_q, proposed = drafts
    p, p1, h_p, top, states = output
    rows, n = x.shape
    longest = state.uniforms.shape[1] // 2  # N; a control may have drafted fewer
    judged, flat = p[:, :n].flatten(0, 1), q.flatten(0, 1)
    at = Positions(  # [B n, ...]; without processing p1 is p, and q1 is q
        judged,
        flat,
        judged if p1 is p else p1[:, :n].flatten(0, 1),
        flat if q1 is q else q1.flatten(0, 1),
        h_p[:, :n].flatten(0, 1),
        h_q.flatten(0, 1),
        greedy,
        n,
        None if top is None else top[:, :n].flatten(),
        longest,
    )
    verdict = _judge(rule, at, x.flatten())
    if (fault := fault_of_form(verdict, *at.p.shape)) is not None:
        raise ValueError(fault)
    accept, expected = verdict.accept.reshape(rows, n), verdict.expected.reshape(rows, n)
    residual = verdict.residual.reshape(p[:, :n].shape)

    proposed = (torch.full_like(state.length, n) if proposed is None else proposed)[:, None]
    is_proposed = torch.arange(n, device=p.device) < proposed
    passed = is_proposed & (state.uniforms[:, longest : longest + n] < accept)
    accepted = passed.cumprod(1).sum(1, keepdim=True)  # [B, 1] drafts before the first rejection
    row = torch.arange(rows, device=p.device)[:, None]
    correction = residual[row, accepted.clamp_max(n - 1)]
    # [B, V] what the last token is drawn from
    source = torch.where((accepted < proposed)[..., None], correction, p[row, accepted])[:, 0]
    final = draw(source, state.uniforms[:, -1])[:, None]
    new_tokens = torch.cat((x, final), 1).scatter(1, accepted, final)

    length = state.length + (accepted[:, 0] + 1) * state.active
    newest = torch.cat((state.last[:, 1:], new_tokens), 1)
    last = newest.gather(1, torch.cat((accepted, accepted + 1), 1))
    agreed = likeliest_token(judged).view(rows, n) == x
    weight = torch.full_like(expected, NO_WEIGHT)
    if verdict.weight is not None:
        weight = verdict.weight.reshape(rows, n)
    has_zero_p = p.gather(2, new_tokens[..., None])[..., 0] == 0
    report = _report(
        **{"length": length[:, None], "accepted": accepted, "proposed": proposed},
        **{"new_tokens": new_tokens, "drafted": x, "agreed": agreed, "accept": accept},
        **{"expected": expected, "weights": weight, "has_zero_p": has_zero_p},
        **_checks(source, p1, q1),
    )
    if state.states is not None and states is not None:
        width = state.states.shape[1]
        window = torch.arange(width, device=p.device) + accepted + 1  # up to the last accepted
        first = width + 1 - state.length[:, None]  # before it are copies of the text's first state
        states = torch.cat((state.states, states), 1)[row, window.maximum(first)]
    laws = None if law is None else laws_of_tokens(law, at, verdict, p, new_tokens, is_proposed)
    return StepOutput(last, length, report, laws, states)


def texts_in_cache(rows: Tensor) -> int:
    """Return for how many texts tensors of the size of ``rows`` ``[n, V]`` fit into a CPU's cache.

    On other devices there is no such limit.
    """
    return max(1, CACHED // rows.nbytes) if rows.device.type == "cpu" else sys.maxsize


def _texts(values: Any, begin: int, count: int) -> Any:
    """Return some texts of a tuple of tensors ``[B, ...]``.

    A tensor that the tuple has twice stays one object: rules skip work if p1 is p.
    """
    parts = {id(v): v[begin : begin + count] for v in values if isinstance(v, Tensor)}
    return values._make(parts.get(id(value), value) for value in values)


def _judge(rule: Rule, at: Positions, x: Tensor) -> Verdict:
    """Apply a rule to inputs that are read again afterwards."""
    if torch.compiler.is_compiling():  # PyTorch 2.11 cannot compile a change of the mode
        return rule(at, x)
    is_own = not getattr(getattr(rule, "func", rule), "__module__", "").startswith("specbench.")
    inputs = {**at._asdict(), "x": x} if is_own and x.device.type == "cpu" else {}
    before = {name: v.clone() for name, v in inputs.items() if isinstance(v, Tensor)}
    with torch.inference_mode(False), torch.no_grad():  # there, writing to the inputs is refused,
        verdict = rule(at, x)  # but not through NumPy
    for name, value in before.items():
        if ((value != inputs[name]) & (value == value)).any():
            raise ValueError(f"it writes to `{name}`")
    return verdict


def laws_of_tokens(
    law: BoundLaw, at: Positions, verdict: Verdict, p: Tensor, tokens: Tensor, proposed: Tensor
) -> Tensor:
    """Return ``StepOutput.laws`` of ``tokens`` ``[B, n + 1]``; without a draft, p is the law."""
    further = (at.position, at.greedy, at.top)
    accepted, replaced = law(Next._make((*map(Tensor.double, at[:4]), *further)), verdict.weight)
    mu = torch.where(proposed[..., None], (accepted + replaced).view_as(p[:, :-1]), p[:, :-1])
    both = (p.double(), torch.cat((mu, p[:, -1:]), 1))
    of_tokens = [rows.gather(2, tokens[..., None]) for rows in both]
    return torch.cat(of_tokens, -1).clamp_min(TINY).log()


def _checks(source: Tensor, p1: Tensor, q1: Tensor) -> dict[str, Tensor]:
    """Return the numbers ``[B, 2]`` by which ``RoundReport.fault`` tells whether a round is valid.

    Of ``source`` ``[B, V]`` that is the least number and the sum. Where the logits of a model are
    not finite, a whole row of their softmax ``p1`` or ``q1`` ``[B, n, V]`` is NaN, so one column is
    enough.
    """
    logits = [softmax[:, :, 0].sum(1) for softmax in (p1, q1)]
    blocks = in_blocks(source, 0.0)
    sums = [blocks.amin(-1).amin(-1), blocks.sum(-1).sum(-1)]
    return {"source": torch.stack(sums, 1), "logits": torch.stack(logits, 1)}


def _report(**columns: Tensor) -> Tensor:
    """Join the columns of a round ``[B, ...]`` in the order of ``records.REPORT``."""
    return torch.cat([columns[name] for name in REPORT if name in columns], 1)
