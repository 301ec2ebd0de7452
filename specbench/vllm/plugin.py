"""What vLLM loads: it replaces vLLM's verification if a variable names a rule.

vLLM calls ``register`` once in each of its processes. Without ``SPECBENCH_VLLM_RULE`` nothing
changes. With it, a request may name another rule, which is checked when it arrives, and four
functions of vLLM's first model runner are wrapped: its sampling, where the requests are known; the
sampler's view of the raw logits; the rejection of drafts; and greedy drafting, which then keeps the
draft's probabilities. On a CPU, vLLM's expansion of temperatures is repaired
(vllm-project/vllm#55005).
"""

from __future__ import annotations

import inspect
import os
import re
from functools import wraps
from typing import Any

from specbench.errors import UsageError, require
from specbench.servers.arm import VARIABLE

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
    from specbench.vllm.rules import ChosenRules

    rules = ChosenRules(default)
    import vllm
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if getattr(rejection_sampler, "_specbench", False):
        return  # vLLM may call a plugin again
    present = tuple(inspect.signature(rejection_sampler.rejection_sample).parameters)
    require(
        bool(SUPPORTED.match(vllm.__version__)) and present[: len(REJECTION)] == REJECTION,
        f"{VARIABLE} needs vLLM 0.31 to 0.33, not {vllm.__version__}: install one of them",
    )
    repair()
    SamplingParams._verify_args = with_known_rule(SamplingParams._verify_args, rules)
    step = _Step(rules)
    GPUModelRunner._sample = step.sampling(GPUModelRunner._sample)
    rejection_sampler.RejectionSampler.forward = step.judging(
        rejection_sampler.RejectionSampler.forward
    )
    rejection_sampler.rejection_sample = step.rejecting
    SpecDecodeBaseProposer._sample_draft_tokens = with_probabilities(
        SpecDecodeBaseProposer._sample_draft_tokens
    )
    rejection_sampler._specbench = True


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

    def __init__(self, rules: Any) -> None:
        self._rules = rules
        self._runner: Any = None
        self._raw_logits: Any = None  # [T, V]

    def sampling(self, original: Any) -> Any:
        """Wrap ``GPUModelRunner._sample``, which knows the requests."""

        @wraps(original)
        def sample(runner: Any, *args: Any, **named: Any) -> Any:
            self._runner = runner
            return original(runner, *args, **named)

        return sample

    def judging(self, original: Any) -> Any:
        """Wrap ``RejectionSampler.forward``, which has the logits before they are processed."""

        @wraps(original)
        def forward(
            sampler: Any, metadata: Any, draft_probs: Any, logits: Any, *args: Any, **named: Any
        ) -> Any:
            self._raw_logits = logits[metadata.target_logits_indices].float()
            return original(sampler, metadata, draft_probs, logits, *args, **named)

        return forward

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
        from specbench.vllm.rejection import Flattened, reject

        drafts = Flattened(
            draft_token_ids, draft_probs, target_logits, self._raw_logits, num_draft_tokens
        )
        batch, requests = self._runner.input_batch, self._runner.requests
        names = batch.req_ids[: len(num_draft_tokens)]
        parameters = [requests[name].sampling_params for name in names]
        return reject(
            drafts,
            bonus_token_ids,
            rules=[self._rules.of(asked.extra_args) for asked in parameters],
            temperatures=[asked.temperature for asked in parameters],
            generators=sampling_metadata.generators,
            device=target_logits.device,
            most=max_spec_len,
        )


def with_known_rule(original: Any, rules: Any) -> Any:
    """Wrap the check of a request's parameters, which then refuses rules that cannot be used."""

    @wraps(original)
    def verify(parameters: Any) -> None:
        original(parameters)
        try:
            rules.of(parameters.extra_args)
        except UsageError as error:
            raise ValueError(str(error)) from error

    return verify


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Return each request's value once per token of the request; see vLLM's function."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = x.masked_fill(x == replace_from, replace_to)
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)


def with_probabilities(original: Any) -> Any:
    """Wrap vLLM's drawing of drafts, so that greedy drafts of drawn ones have probabilities too.

    vLLM keeps the softmax at temperature 1 for greedy requests among others, but none if all
    requests are greedy. Rules that mix or compare probabilities need it there.
    """

    @wraps(original)
    def sample(proposer: Any, hidden_states: Any, sampling_metadata: Any) -> Any:
        if not (proposer._enable_probabilistic_draft_probs and sampling_metadata.all_greedy):
            return original(proposer, hidden_states, sampling_metadata)
        logits = proposer.model.compute_logits(hidden_states)
        return logits.argmax(dim=-1), logits.float().softmax(dim=-1)

    return sample
