"""A sample's record: the model that writes, reads, checks and documents a line of a run.

``samples.jsonl`` has one record a line. The columns of ``samples.csv`` are those of its fields that
are declared by ``column`` or ``measured``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specbench.errors import RunError, UsageError
from specbench.runs.columns import (
    EXPECTED_ACCEPTANCE,
    MEAN_WEIGHT,
    NO_BENCHMARK,
    NO_SERVER,
    UNDRAFTED,
    UNMARKED,
    UNRECORDED,
    UNTOLD,
    SampleColumns,
    column,
    measured,
)

# The status of a sample.
Status = Literal["ok", "unscored", "error"]
OK: Status = "ok"
UNSCORED: Status = "unscored"  # decoded, but its metric failed
ERROR: Status = "error"  # could not be decoded; in samples.jsonl, but in no table

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
RoundCount = Annotated[int, Field(ge=0, le=2**16)]  # tokens of a round
TokenId = Annotated[int, Field(ge=0, lt=2**32)]
PlaceIndex = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class RecordedRounds(BaseModel):
    """The rounds of a text, one entry each; older runs lack some, see ``RoundRecord``."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    proposed: list[RoundCount] | None = None
    accepted: list[RoundCount] | None = None
    emitted: list[RoundCount] | None = None
    rejected: list[TokenId | None] | None = None
    agreed: list[list[bool]] | None = None
    expected: list[list[float]] | None = None
    weights: list[list[float]] | None = None

    @model_validator(mode="after")
    def _have_one_length(self) -> Self:
        if len({len(values) for values in vars(self).values() if values is not None}) > 1:
            raise ValueError("lists of rounds have different lengths")
        return self


class SampleRecord(SampleColumns):
    """A sample: a text that a cell decoded from an example, its counts, times and scores."""

    quality_metric: str | None = column("", "metric reported as quality", "nothing scored")
    quality: Fraction | None = column("fraction", "score under that metric, 0 to 1", "not scored")
    device: str | None = column(
        "", "device it was decoded on; with several workers, also the machine", UNRECORDED
    )
    prompt_tokens: Count | None = column("tokens", "prompt length", UNTOLD)
    output_tokens: Count | None = column(
        "tokens", "tokens emitted, including the end token", UNTOLD
    )
    rounds: Count | None = column(
        "rounds", "target passes; each round drafts N tokens and verifies them", UNTOLD
    )
    proposed: Count | None = column(
        "tokens", "drafted tokens proposed to the target, summed over rounds", UNTOLD
    )
    accepted: Count | None = column("tokens", "drafted tokens accepted", UNDRAFTED)
    judged: Count | None = column(
        "tokens",
        "drafted tokens judged: the accepted ones and the first rejection of each round",
        UNDRAFTED,
    )
    draft_acceptance_rate: Fraction | None = column(
        "fraction", "accepted / proposed for this sample", UNDRAFTED
    )
    acceptance_length: float | None = column(
        "tokens/round", "tokens emitted per round, including the target's own token", UNDRAFTED
    )
    expected_acceptance: float | None = EXPECTED_ACCEPTANCE
    mean_weight: float | None = MEAN_WEIGHT
    prefill_seconds: float | None = column(
        "s",
        "prefill time of both models; of a server, its share of the time until the first token",
        UNRECORDED,
    )
    decode_seconds: float | None = column(
        "s",
        "time of all rounds; in a batch, or among requests in flight, this text's share",
        UNRECORDED,
    )
    draft_seconds: float | None = column("s", "part of it spent on drafting", UNRECORDED)
    verify_seconds: float | None = column("s", "part of it spent on target passes", UNRECORDED)
    accept_seconds: float | None = column(
        "s", "part of it spent on acceptance tests and token draws", UNRECORDED
    )
    latency_seconds: float | None = column(
        "s",
        "wall time from the start of prefill, or from sending the request, to the end of the "
        "text, including work for other texts in the batch",
        UNRECORDED,
    )
    tokens_per_second: float | None = column(
        "tokens/s",
        "output_tokens / (prefill_seconds + decode_seconds)",
        "no time passed; not recorded",
    )
    repetition: Fraction | None = column(
        "fraction",
        "share of the text's 4-grams of tokens that repeat an earlier one; of words and signs "
        "where a server returns no tokens",
        "fewer than 4 tokens; not recorded",
    )
    stopped_by: str | None = column(
        "",
        "why the text ended: eos, length (limit on new tokens) or stop (stop string); servers "
        "may give other reasons",
        UNRECORDED,
    )
    bleu_terms: list[int] | None = measured(
        "", "the ten counts behind corpus BLEU, separated by spaces", "not scored by bleu"
    )
    zero_p: Count | None = measured(
        "tokens",
        "tokens emitted that the target would never emit: a filter or T = 0 leaves them p = 0",
        "none; not recorded",
    )
    thought_tokens: Count | None = measured(
        "tokens",
        "tokens of thoughts, such as those up to `</think>`, which are not scored",
        "texts without thoughts; a server that gets messages",
        heading="tokens of thoughts",
    )
    same_prompt_as: str | None = measured(
        "",
        "id of the first example with the same prompt, which counts as one prompt with it in "
        "all intervals",
        "no earlier example has the prompt",
    )
    block: Count | None = measured(
        "",
        "number of the block of prompts, from 0, that was decoded in one batch by each cell in "
        "turn",
        "decoded alone; not recorded",
    )
    first_token_seconds: float | None = measured(
        "s", "wall time from sending a request to its first token (TTFT)", NO_SERVER
    )
    inter_token_seconds: float | None = measured(
        "s",
        "mean wall time between the tokens of a request after its first ones",
        "not a server; one chunk; not recorded",
    )
    retries: Count | None = measured(
        "requests", "requests of a server that failed before the one that answered", NO_SERVER
    )
    refused: Count | None = measured(
        "",
        "1 if a server withheld the answer, or it begins like a refusal, see `specbench docs "
        "servers`",
        NO_SERVER,
    )
    content: str | None = measured(
        "",
        "what a server's answer has: text, thoughts (without a text), calls (of tools, without "
        "one) or nothing",
        NO_SERVER,
    )
    server_model: str | None = measured("", "name of the model that a server answers as", NO_SERVER)
    delivered_bytes: Count | None = measured(
        "bytes", "bytes of a server's answer, with thoughts and calls of tools", NO_SERVER
    )
    contradictions: str | None = measured(
        "",
        "what a server told against the text that it delivered, separated by semicolons, see "
        "`specbench docs servers`",
        "not a server; none",
    )
    options_refused: str | None = measured(
        "",
        "penalties and filters that a server refuses, so that its own values apply, separated "
        "by commas",
        "not a server; none",
    )
    finish_reason: str | None = measured(
        "", "reason that a server gave for the end of the text, in its own word", NO_SERVER
    )
    cached_tokens: Count | None = measured(
        "tokens",
        "tokens of the prompt that a server took from its cache",
        "not a server; a server does not tell",
    )
    inside_emitted: Count | None = measured(
        "tokens",
        "tokens of rounds that began between the marks of `--inside`, of earlier runs",
        UNMARKED,
    )
    inside_proposed: Count | None = measured("tokens", "drafted tokens of these rounds", UNMARKED)
    inside_accepted: Count | None = measured("tokens", "accepted ones of them", UNMARKED)
    shared_rounds: float | None = measured(
        "rounds",
        "this text's share of the rounds of its batch, to which all texts add up",
        NO_BENCHMARK,
    )
    full_rounds: Count | None = measured(
        "rounds", "rounds of this text in which every row of its batch had a text", NO_BENCHMARK
    )
    full_seconds: float | None = measured("s", "this text's share of their time", NO_BENCHMARK)
    timing: str | None = measured(
        "",
        "timings.csv: why a sample was decoded again for its times: baseline (of the cells "
        "added in a later session) or a-a (noise of the times)",
        "other tables",
    )

    key: str = Field("", description="digest of all that determines the sample")
    place: list[PlaceIndex] = Field([], description="indices of task, repeat, example and cell")
    status: Status = Field(OK, description="of the sample")
    error: str | None = Field(None, description="why it could not be decoded or scored")
    text: str | None = Field(None, description="the answer, cut before a stop string")
    token_ids: list[TokenId] | None = Field(None, description="of the answer, without end token")
    per_round: RecordedRounds = Field(RecordedRounds(), description="its rounds")
    scores: dict[str, Fraction | None] | None = Field(None, description="by metric, quality first")
    sources: dict[str, str] = Field({}, description="digests of the user's own functions")
    cell_engine: str | None = Field(None, description="engine that a benchmark named for its cell")
    greedy: str | None = Field(None, description="the target's own greedy text")
    prompt_cut: int | None = Field(None, description="tokens by which its prompt was shortened")
    chunk_seconds: list[float] = Field([], description="when a server's chunks came")

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Return the record in a line of a run, or None if the line is damaged."""
        try:
            record = cls.model_validate_json(line)
        except ValidationError:
            return None
        whole = line.endswith(b"\n") and record.model_fields_set >= {"key", "place", "status"}
        return record if whole else None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the record in a row of ``samples.csv``, without what only a line has."""
        fields = {name: value for name, value in row.items() if value == value}
        if terms := fields.get("bleu_terms"):
            fields["bleu_terms"] = terms.split()
        try:
            return cls.model_validate(fields, strict=False)
        except ValidationError as error:
            raise UsageError(
                f"samples.csv has a wrong {_problem(error)}: give the run as it was written"
            ) from error

    def line(self) -> bytes:
        """Return the record as a line of JSON, with the fields that were set."""
        return self.model_dump_json(exclude_unset=True).encode() + b"\n"

    def present(self) -> dict[str, Any]:
        """Return the fields that were set, whatever their names are."""
        return {name: value for name, value in self if name in self.model_fields_set}

    def without(self, *names: str) -> Self:
        """Return the record without some of its fields."""
        fields = self.present().items()
        return type(self)(**{name: value for name, value in fields if name not in names})

    def filled(self, **fields: Any) -> Self:
        """Return the record with further fields.

        Raises:
            RunError: A value has another type than its field, or a number is not finite.
        """
        try:
            return type(self).model_validate(self.present() | fields)
        except ValidationError as error:
            raise RunError(f"cannot store {_problem(error)}") from error


def _problem(error: ValidationError) -> str:
    """Return the names of the wrong fields, and what is wrong with the first."""
    errors = error.errors(include_url=False)
    names = dict.fromkeys(str(each["loc"][0]) if each["loc"] else "record" for each in errors)
    infinite = errors[0]["type"] == "finite_number"
    return f"{', '.join(names)}: {'a number is not finite' if infinite else errors[0]['msg']}"
