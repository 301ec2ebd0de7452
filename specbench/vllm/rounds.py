"""The rounds of requests that ask for them: a worker keeps them, and a route of the server tells.

A request asks by a key of its own in ``vllm_xargs``, and its client reads ``/v1/ROUNDS/KEY``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.servers.arm import ROUNDS

MOST_REQUESTS = 1000  # whose rounds nobody has read


class Rounds:
    """The rounds of the newest requests, as rows of ``decoding.round.verify``'s report."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, list[Tensor]] = OrderedDict()

    def append(self, keys: Sequence[str | None], counts: Sequence[int], report: Tensor) -> None:
        """Keep the rows of requests that have a key and drafts, without waiting for the device."""
        if not any(keys):
            return
        copied = report.to("cpu", non_blocking=True)  # into pinned memory
        for key, count, row in zip(keys, counts, copied, strict=True):
            if key and count:
                self._rows.setdefault(key, []).append(row)
        while len(self._rows) > MOST_REQUESTS:
            self._rows.popitem(last=False)

    def take(self, key: str) -> list[list[float]]:
        """Return and forget the rounds of a request, when the device has written them."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return [row.tolist() for row in self._rows.pop(key, ())]


class Endpoint:
    """The route that tells the rounds of a request, an endpoint plugin of vLLM.

    vLLM loads it if ``VLLM_PLUGINS`` names it.
    """

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
