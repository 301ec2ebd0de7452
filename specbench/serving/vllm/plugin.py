"""What vLLM loads: it replaces vLLM's verification if a variable names rules.

vLLM calls ``register`` once in each of its processes. Without ``SPECBENCH_VLLM_RULE`` nothing
changes. With it, a request may name its rule, and functions of vLLM's first model runner are
wrapped, see ``step``. A request that names a key in ``vllm_xargs`` has its rounds kept, and
its client reads them at ``/v1/specbench_rounds/KEY`` if ``VLLM_PLUGINS`` names specbench.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from specbench.errors import require
from specbench.serving.arm import ROUNDS, SEPARATOR, VARIABLE

SUPPORTED = "0.31.", "0.32.", "0.33."
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
#: The parameters of ``rejection_sample`` that are used.
REJECTION = (
    *("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens"),
    *("draft_probs", "target_logits", "bonus_token_ids", "sampling_metadata"),
)


def register() -> None:
    """Replace vLLM's verification by the rules that the environment names, if it names some."""
    if not (rules := os.environ.get(VARIABLE, "").split(SEPARATOR))[0]:
        return
    from specbench.serving.vllm.rules import rule_of

    for rule in rules:
        rule_of(rule)
    import vllm
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.worker_base import WorkerBase

    from specbench.serving.vllm.step import EngineStep

    if hasattr(WorkerBase, ROUNDS):
        return  # vLLM may call a plugin again
    present = tuple(inspect.signature(rejection_sampler.rejection_sample).parameters)
    supported = vllm.__version__.startswith(SUPPORTED) and present[: len(REJECTION)] == REJECTION
    require(
        supported and os.environ.setdefault(RUNNER, "0") == "0",
        f"{VARIABLE} needs vLLM 0.31 to 0.33 (this is {vllm.__version__}) and {RUNNER}=0",
    )
    prepare_cpu()
    step = EngineStep(rules)
    for owner, name, wrapped in (
        (SamplingParams, "_verify_args", step.checking),
        (GPUModelRunner, "sample_tokens", step.sampling),
        (rejection_sampler, "rejection_sample", step.rejecting),
        (SpecDecodeBaseProposer, "_sample_draft_tokens", step.drafting),
    ):
        setattr(owner, name, wrapped(getattr(owner, name)))
    setattr(WorkerBase, ROUNDS, lambda worker, key: step.take_rounds(key))


def prepare_cpu() -> None:
    """On a CPU, keep freed memory, and repair a function that reads temperatures of drafts.

    It reads them from other memory: the kernel fills a converted copy of its output, and drops it
    (vLLM's issue 55005).
    """
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    from specbench.engine.device import keep_freed_memory

    if current_platform.is_cpu():
        keep_freed_memory()
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Return each request's value once per token of the request; see vLLM's function."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = x.masked_fill(x == replace_from, replace_to)
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)


class Endpoint:
    """The route that tells the rounds of a request, an endpoint plugin of vLLM."""

    name = "specbench"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Add the route."""
        app.add_api_route(f"/v1/{ROUNDS}/{{key}}", self.read, methods=["GET"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Remember what reaches the workers."""
        self._engine = engine_client

    async def read(self, key: str) -> list[list[float]]:
        """Return the rounds of a request; all workers have the same."""
        workers: list[list[list[float]]] = await self._engine.collective_rpc(ROUNDS, args=(key,))
        return workers[0]
