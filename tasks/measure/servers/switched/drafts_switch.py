"""One vLLM server for every number of drafts: an address that ends in /n3 has three per round.

vLLM's schedule by batch size chooses the number anew in every step. Here the last request's address
chooses it, so requests with different addresses must not be in flight together.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

FILE = "SPECBENCH_DRAFTS_FILE"
ADDRESS = re.compile(r"/n(\d+)(/.*)")


def register() -> None:
    """Let vLLM's scheduler read the number of drafts from the file, in each of its processes."""
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule = Scheduler.schedule
    file = Path(os.environ[FILE])

    def switched(scheduler: Any, *args: Any, **named: Any) -> Any:
        number = int(file.read_text() or 0)
        scheduler.dynamic_sd_lookup = [number] * len(scheduler.dynamic_sd_lookup)
        return schedule(scheduler, *args, **named)

    Scheduler.schedule = switched


class Switch:
    """Middleware that writes the number of drafts in the address of a request to the file."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (match := ADDRESS.fullmatch(scope["path"])):
            if scope["method"] == "POST":
                Path(os.environ[FILE]).write_text(match[1])
            scope = {**scope, "path": match[2], "raw_path": match[2].encode()}
        await self.app(scope, receive, send)
