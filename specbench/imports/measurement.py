"""What a file of another tool tells of a benchmark; what it does not tell is None."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from specbench.validation import StrictModel

ROUNDING = 1e-3  # seconds by which recorded times may contradict each other

Count = Annotated[int, Field(ge=0, le=10**9)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(ge=0, le=10**6)]
Settings = dict[str, Count | Annotated[float, Field(ge=0)]]


class RecordedRequest(StrictModel):
    """One request, in columns of samples.

    Attributes:
        sample_id: Id of the prompt, by which arms are paired.
        trait: A property of the prompt that all arms must share.
        error: Why the request failed; empty if it did not.
        sent: Seconds at which it was sent, from any time that its measurement shares.
        prefill: Seconds of it that the server spent on the prompt.
        gaps: Seconds between the chunks of its answer.
    """

    sample_id: Name
    trait: str | None = None
    error: str = ""
    sent: float | None = None
    prefill: Seconds | None = None
    gaps: tuple[Seconds, ...] | None = Field(default=None, strict=False)
    turn: Annotated[int, Field(ge=1)] | None = None
    category: Name | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    first_token_seconds: Seconds | None = None
    latency_seconds: Seconds | None = None
    rounds: Count | None = None
    proposed: Count | None = None
    accepted: Count | None = None
    quality: Fraction | None = None
    scores: dict[str, Fraction] = Field(default_factory=dict)
    text: str | None = None
    stopped_by: Name | None = None

    @property
    def latency(self) -> float | None:
        """Seconds until the end of the answer."""
        if self.latency_seconds is None and self.gaps and self.first_token_seconds is not None:
            return self.first_token_seconds + sum(self.gaps)
        return self.latency_seconds

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        streamed = (self.first_token_seconds or 0.0) + sum(self.gaps or ())
        longest = max(streamed, self.prefill or 0.0)
        if self.latency is not None and longest > self.latency + ROUNDING:
            raise ValueError(
                f"a part took {longest:g} s, but the whole request {self.latency:g} s: correct the "
                "units of the file"
            )
        if (self.accepted or 0) > (self.proposed or 0):
            raise ValueError(
                f"{self.accepted} drafts are accepted, but {self.proposed} proposed: export again"
            )
        return self

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the sample, with those that follow from others."""
        left_out = {"trait", "error", "sent", "prefill", "gaps"}
        columns = self.model_dump(exclude=left_out, exclude_none=True)
        latency, first, tokens = self.latency, self.first_token_seconds, self.output_tokens
        columns["latency_seconds"] = latency
        if latency is not None and first is not None and tokens is not None and tokens > 1:
            columns["inter_token_seconds"] = max(latency - first, 0.0) / (tokens - 1)
        if self.accepted is not None and self.proposed:
            columns["draft_acceptance_rate"] = self.accepted / self.proposed
        if self.accepted is not None and self.rounds:
            columns["acceptance_length"] = 1 + self.accepted / self.rounds
        return columns

    @property
    def span(self) -> tuple[float, float, float] | None:
        """When it was sent, and when the first token and the end came; None if not told."""
        if self.sent is None or self.latency is None:
            return None
        firsts = (self.first_token_seconds, self.prefill, self.latency)
        first = next(seconds for seconds in firsts if seconds is not None)
        return self.sent, self.sent + first, self.sent + self.latency


class Benchmark(StrictModel):
    """A benchmark of one arm on one task; ``further_facts`` are for ``config.json``."""

    task: Name
    requests: tuple[RecordedRequest, ...] = Field(strict=False)
    model: Name | None = None
    engine: Name | None = None
    draft_length: Annotated[int, Field(ge=0, le=2**16)] = 0
    temperature: Annotated[float, Field(ge=0, le=10**3)] | None = None
    settings: Settings = Field(default_factory=dict)
    metric: Name | None = None
    further_facts: dict[str, Any] = Field(default_factory=dict)
