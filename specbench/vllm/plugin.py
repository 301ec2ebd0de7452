"""What vLLM loads: it replaces vLLM's verification if a variable names a rule.

vLLM calls ``register`` once in each of its processes. Without ``SPECBENCH_VLLM_RULE`` nothing
changes. With it, a request may name another rule, which is checked when it arrives, and functions
of vLLM's first model runner are wrapped: a step's sampling, where the requests are known; the
sampler's view of the raw logits; the rejection of drafts; and the drawing of drafts, whose
probabilities and hidden states are kept. On a CPU, vLLM's expansion of temperatures is repaired
(vllm-project/vllm#55005).
"""

from __future__ import annotations

import inspect
import os
import re
from functools import wraps
from typing import Any

from specbench.errors import UsageError, require
from specbench.servers.arm import ARGUMENT, ROUNDS, VARIABLE

SUPPORTED = re.compile(r"0\.(31|32|33)\.")
#: The parameters of ``rejection_sample`` that are used here.
REJECTION = (
    *("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens"),
    *("draft_probs", "target_logits", "bonus_token_ids", "sampling_metadata"),
)


def register() -> None:
    """Replace vLLM's verification by the rule that the environment names, if it names one.

    Raises:
        UsageError: The rule cannot be used, or this is another version of vLLM.
    """
    if not (default := os.environ.get(VARIABLE)):
        return
    from specbench.vllm.rules import rule_of

    rule_of(default)
    import vllm
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.worker_base import WorkerBase

    if hasattr(WorkerBase, ROUNDS):
        return  # vLLM may call a plugin again
    sampler = rejection_sampler.RejectionSampler
    present = tuple(inspect.signature(rejection_sampler.rejection_sample).parameters)
    require(
        bool(SUPPORTED.match(vllm.__version__)) and present[: len(REJECTION)] == REJECTION,
        f"{VARIABLE} needs vLLM 0.31 to 0.33, not {vllm.__version__}: install one of them",
    )
    repair()
    step = _Step(default)
    SamplingParams._verify_args = step.checking(SamplingParams._verify_args)
    GPUModelRunner.sample_tokens = step.sampling(GPUModelRunner.sample_tokens)
    sampler.forward = step.judging(sampler.forward)
    rejection_sampler.rejection_sample = step.rejecting
    SpecDecodeBaseProposer._sample_draft_tokens = step.drafting(
        SpecDecodeBaseProposer._sample_draft_tokens
    )
    setattr(WorkerBase, ROUNDS, lambda worker, key: step.rounds.take(key))


def repair() -> None:
    """Replace a function of vLLM that reads the temperatures of drafts from other memory on a CPU.

    vLLM's issue 55005: the kernel fills a converted copy of its output, and drops it.
    """
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    if current_platform.is_cpu():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


class _Step:
    """One step of the model runner, on its way through the wrapped functions."""

    def __init__(self, default: str) -> None:
        from specbench.vllm.rounds import Rounds

        self.rounds = Rounds()
        self._default = default
        self._runner: Any = None
        self._h_p: Any = None  # [T + B, hidden] of the target
        self._judged: Any = None  # raw logits [T, V] and hidden states [T, hidden] of the target
        self._drafting: list[Any] = []  # hidden states of the draft [B, hidden], in this step
        self._h_q: dict[str, Any] = {}  # [N, hidden] of the newest drafts, by request

    def checking(self, original: Any) -> Any:
        """Wrap the check of a request's parameters, which then refuses unusable rules."""
        from specbench.vllm.rules import checked_rule

        @wraps(original)
        def verify(parameters: Any) -> None:
            original(parameters)
            try:
                checked_rule(parameters.extra_args, self._default)
            except UsageError as error:
                raise ValueError(str(error)) from error

        return verify

    def sampling(self, original: Any) -> Any:
        """Wrap ``GPUModelRunner.sample_tokens``: it verifies the last drafts and draws the next."""

        @wraps(original)
        def sample(runner: Any, *args: Any, **named: Any) -> Any:
            import torch

            self._runner, self._drafting = runner, []
            if (state := runner.execute_model_state) is not None:
                self._h_p = state.sample_hidden_states
            output = original(runner, *args, **named)
            if self._drafting:
                names = list(runner.input_batch.req_ids)
                # N calls with B rows, or one with B N rows if the draft model drafts at once.
                states = torch.stack(self._drafting, 1)
                states = states.reshape(len(names), -1, states.shape[-1])
                self._h_q = dict(zip(names, states, strict=True))
            return output

        return sample

    def judging(self, original: Any) -> Any:
        """Wrap ``RejectionSampler.forward``, which has the logits before they are processed."""

        @wraps(original)
        def forward(
            sampler: Any, metadata: Any, draft_probs: Any, logits: Any, *args: Any, **named: Any
        ) -> Any:
            rows = metadata.target_logits_indices
            self._judged = logits[rows].float(), self._h_p[rows]
            return original(sampler, metadata, draft_probs, logits, *args, **named)

        return forward

    def drafting(self, original: Any) -> Any:
        """Wrap vLLM's drawing of drafts, so that greedy drafts have probabilities too.

        vLLM keeps the softmax at temperature 1 for greedy requests among others, but none if all
        requests are greedy. Rules that mix or compare probabilities need it there.
        """

        @wraps(original)
        def sample(proposer: Any, hidden_states: Any, sampling_metadata: Any) -> Any:
            self._drafting.append(hidden_states.clone())  # a captured graph reuses its memory
            if not (proposer._enable_probabilistic_draft_probs and sampling_metadata.all_greedy):
                return original(proposer, hidden_states, sampling_metadata)
            logits = proposer.model.compute_logits(hidden_states)
            return logits.argmax(dim=-1), logits.float().softmax(dim=-1)

        return sample

    def rejecting(
        self,
        draft_token_ids: Any,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Any,
        draft_probs: Any,
        target_logits: Any,
        bonus_token_ids: Any,
        sampling_metadata: Any,
        **further: Any,
    ) -> Any:
        """Replace ``rejection_sample``; return tokens ``[B, max_spec_len + 1]``, -1 at the end."""
        import torch

        from specbench.vllm.rejection import Flattened, reject

        names = self._runner.input_batch.req_ids[: len(num_draft_tokens)]
        parameters = [self._runner.requests[name].sampling_params for name in names]
        arguments = [request.extra_args or {} for request in parameters]
        drafted = [(name, n) for name, n in zip(names, num_draft_tokens, strict=True) if n]
        known = drafted and all(name in self._h_q for name, _ in drafted)
        h_q = torch.cat([self._h_q[name][:n] for name, n in drafted]) if known else None
        raw_logits, h_p = self._judged
        tokens, report = reject(
            Flattened(
                draft_token_ids, draft_probs, target_logits, raw_logits, h_p, h_q, num_draft_tokens
            ),
            bonus_token_ids,
            rules=[values.get(ARGUMENT, self._default) for values in arguments],
            temperatures=[request.temperature for request in parameters],
            generators=sampling_metadata.generators,
        )
        self.rounds.append([values.get(ROUNDS) for values in arguments], num_draft_tokens, report)
        return tokens


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Return each request's value once per token of the request; see vLLM's function."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = x.masked_fill(x == replace_from, replace_to)
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)
