"""Check a server: its texts against the target's exact distribution in float32.

Greedy texts must consist of the target's first choices up to rounding. Sampled texts are tested
for draws from the draft in four ways: their first tokens and their prefixes by counts in a few
contexts, all their tokens as one stream in which each has the law of its own context, and those
that are probably bonus tokens once more, since they are few. Texts are two rounds long. Half of the
contexts end where the target is unsure, the others a round earlier, so that a bonus token falls
there. Another temperature and filters left on show most where a law has a long tail, so prompts are
also cut off where the log-probability of the next token varies most, and continued by a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair, Model
from specbench.engine.passes import MAX_NUMBERS, plain_pass
from specbench.errors import require
from specbench.experiment.rounding import END
from specbench.serving.server import Completion
from specbench.validation import draws
from specbench.validation.findings import FAILED, OK, WEAK, Finding, findings_of
from specbench.validation.greedy import NEVER_UNLIKE, PART, TIE, against_plain, first_choices
from specbench.validation.outputs import Beginning, LawsAfter, enumerate_outputs
from specbench.validation.texts import LEAD, Context, after_rounds, extended, laws_along, processed

FALSE_ALARM = 0.005  # probability for a whole check, divided evenly among its tests
SAMPLED = "sampled"
COUNTED = FIRST, PREFIXES = "first tokens", "prefixes"
STREAMS = TOKENS, BONUS = "tokens", "bonus tokens"
SAMPLER = TEMPERATURE, FILTERS = "temperature", "filters"
CONTEXTS = 4  # prompts to sample rounds from; fewer prompts get more texts each
GREEDY_TOKENS = 64  # per text
CUT_TOKENS, CUT_SAMPLES = 4, 4  # tokens of a text after a cut prompt; texts per other text
LIKELY = 0.5  # probability that a token is a bonus, given those before
ShowStep = Callable[[str], object]
Complete = Callable[[Sequence[int], float, int, int, int], list[Completion]]
"""``complete(prompt, temperature, count, limit, seed)`` continues a prompt ``count`` times with
the seeds from ``seed`` on, by ``limit`` tokens at most. Temperature 0 is greedy. All tokens of the
vocabulary may be sampled."""


class TextsOfServer(NamedTuple):
    """The texts of a server that runs a pair's target."""

    pair: LoadedPair
    complete: Complete
    draft_length: int  # N
    samples: int  # texts per temperature, over all contexts
    temperatures: Sequence[float]  # of sampled texts; each is tested
    seed: int
    tie: float  # logits; greedy texts that differ by less differ by rounding

    @property
    def end(self) -> int:
        """The token that stands for any end of a text: one more than the target has."""
        return self.pair.target.vocabulary

    def decode(
        self, context: Context, temperature: float, count: int, limit: int, first: int = 0
    ) -> list[list[int]]:
        """Return the tokens of texts, with an end, by ``count`` seeds from ``first`` on."""
        texts, seed = [], self.seed + first
        for tokens, ended in self.complete(context.prompt, temperature, count, limit, seed):
            text = [*takewhile(lambda token: token not in self.pair.eos_ids, tokens)]
            require(
                max(text, default=0) < self.end,
                f"the server returns token {max(text, default=0)}, but the target has {self.end}: "
                "give the --pair or --target that it runs",
            )
            ended = ended or len(text) < len(tokens)
            require(
                ended or len(text) == limit,
                f"the server stopped after {len(text)} of {limit} tokens after {context.name} "
                "without ending the text: give it a longer context, or shorter --prompts",
            )
            texts.append([*text, self.end] if ended else text)
        return texts

    def laws(
        self,
        model: Model,
        temperature: float,
        prompt: Sequence[int],
        texts: Sequence[Sequence[int]],
        last: int,
    ) -> Tensor:
        """Return the laws ``[K, last, V + 1]`` of the last tokens of K texts, or of an end."""
        rows = [[*prompt, *(0 if token == self.end else token for token in t)] for t in texts]
        p = processed(plain_pass(model, rows, last).logits, Sampling(temperature=temperature))
        ends = [token for token in self.pair.eos_ids if token < model.vocabulary]
        ending = p[..., ends].sum(-1, keepdim=True)
        p[..., ends] = 0
        return torch.cat((p, ending), -1)


def check_server(
    server: TextsOfServer, contexts: Sequence[Context], show_step: ShowStep
) -> Iterator[Finding]:
    """Yield the findings on a server; call ``show_step`` with the name of each step."""
    pair, texts = server.pair, []
    for number, context in enumerate(contexts, 1):
        show_step(f"greedy texts, {number} of {len(contexts)}")
        texts += server.decode(context, 0.0, 1, GREEDY_TOKENS)
    marked = [[END if token == server.end else token for token in text] for text in texts]
    choices = first_choices(pair, contexts, marked, server.tie)
    facts = choices._asdict() | {"texts": len(texts), "tie": server.tie}
    weakness = "" if choices.draft_unlike else NEVER_UNLIKE
    judgement = against_plain(choices, facts, server.tie, weakness)
    if judgement.verdict == FAILED and server.tie == TIE:
        hint = "; give the server's --dtype if it is not float32"
        judgement = judgement._replace(sentence=judgement.sentence + hint)
    yield Finding(PART, "T=0", "first choices", *judgement)
    unsure = []
    for number, (context, text) in enumerate(zip(contexts[:CONTEXTS], texts, strict=False)):
        answer = [token for token in text[:LEAD] if token != server.end]
        # A round begins with the first token, or after one token of the target's own.
        earlier = (0, server.draft_length, 0, server.draft_length + 1)[number % 4]
        unsure.append(extended(pair, context, answer, earlier))
    for temperature in server.temperatures:
        # Prompts of a task may begin alike, and the same prompt and seed give the same text twice.
        cut = {}
        for context in contexts:  # cut off where the log-probability of the next token varies most
            prompt, sampling = [*context.prompt], Sampling(temperature=temperature)
            laws = laws_along(pair.target, [*prompt, 0], len(prompt), sampling)
            prompt = prompt[: int(draws.log_deviations(laws)[1].argmax()) + 1]
            cut[tuple(prompt)] = Context(context.name, prompt)
        yield from _sampled(server, unsure, [*cut.values()], temperature, show_step)


def too_weak(findings: Sequence[Finding]) -> bool:
    """Return whether at some temperature no test would notice texts of the draft alone."""
    of_sampled = {finding.subject for finding in findings if finding.part == SAMPLED}
    strong = {f.subject for f in findings if f.name in COUNTED + STREAMS and f.verdict != WEAK}
    return not of_sampled or of_sampled != strong


def _sampled(
    server: TextsOfServer,
    unsure: Sequence[Context],
    cut: Sequence[Context],
    temperature: float,
    show_step: ShowStep,
) -> Iterator[Finding]:
    """Test texts that are sampled at a temperature after two kinds of prompts."""
    tests: dict[str, Any] = {
        **{name: draws.Counts(server.seed) for name in COUNTED},
        **{name: draws.Stream(server.seed) for name in STREAMS},
        TEMPERATURE: draws.TemperatureScore(temperature),
        FILTERS: draws.FilteredTails(),
    }
    limit, target = after_rounds(server.draft_length).limit, server.pair.target
    # Equal seeds would give equal random numbers after all prompts, and draws that depend on each
    # other.
    for number, context in enumerate(unsure):
        show_step(f"texts at T={temperature:g}, prompt {number + 1} of {len(unsure)}")
        count = max(1, server.samples // len(unsure))
        texts = server.decode(context, temperature, count, limit, number * count)
        _compare(server, temperature, context, texts, tests)
    for number, context in enumerate(cut):
        show_step(f"texts at T={temperature:g}, cut prompt {number + 1} of {len(cut)}")
        count = max(1, CUT_SAMPLES * server.samples // len(cut))
        first = len(unsure) * server.samples + number * count
        texts = server.decode(context, temperature, count, CUT_TOKENS, first)
        for law, _, tokens, _ in positions(server, temperature, context, texts, [target]):
            for name in SAMPLER:
                tests[name].add(law, tokens)
    alpha = FALSE_ALARM / (len(tests) * len(server.temperatures))
    for finding in findings_of(SAMPLED, f"T={temperature:g}", tests, alpha):
        # Here a test must name a visible fault: its control may have failed by chance.
        powerless = finding.verdict == OK and finding.facts.get("share", 1) is None
        yield replace(finding, verdict=WEAK) if powerless else finding


def _compare(
    server: TextsOfServer,
    temperature: float,
    context: Context,
    texts: Sequence[list[int]],
    tests: Mapping[str, Any],
) -> None:
    """Add the texts of one context to the tests; the wrong law is the draft's."""
    models = server.pair.target, server.pair.draft
    p, q = (server.laws(model, temperature, context.prompt, [[0]], 1)[0, 0] for model in models)
    tests[FIRST].add(p, q, torch.tensor([tokens[0] for tokens in texts]))
    tests[PREFIXES].add(*prefixes(server, temperature, context, texts))
    for law, wrong, tokens, bonus in positions(server, temperature, context, texts, models):
        tests[TOKENS].add(law, wrong, tokens)
        tests[BONUS].add(law[bonus], wrong[bonus], tokens[bonus])
        for name in SAMPLER:
            tests[name].add(law, tokens)


def positions(
    server: TextsOfServer,
    temperature: float,
    context: Context,
    texts: Sequence[list[int]],
    models: Sequence[Model],
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield the laws ``[K, V + 1]`` by the first and last model, the tokens, and the bonus tokens.

    With one model no token is a bonus token.
    """
    length = max(map(len, texts))
    numbers = 10 * length * (server.end + 1)
    padded = torch.tensor([tokens + [server.end] * (length - len(tokens)) for tokens in texts])
    real = torch.tensor([[i < len(tokens) for i in range(length)] for tokens in texts])
    device = models[0].device
    for rows in torch.arange(len(texts)).split(max(1, MAX_NUMBERS // numbers)):
        tokens, drawn = padded[rows].to(device), real[rows].to(device)
        prompted = context.prompt, tokens.tolist(), length
        laws = [server.laws(model, temperature, *prompted) for model in models]
        bonus = torch.zeros_like(drawn)
        if len(laws) > 1:
            bonus = _bonus(laws[0], laws[-1], tokens, server.draft_length)
        yield laws[0][drawn], laws[-1][drawn], tokens[drawn], bonus[drawn]


def _bonus(p: Tensor, q: Tensor, tokens: Tensor, draft_length: int) -> Tensor:
    """Return ``[K, T]`` whether a token probably follows N accepted drafts of its round.

    It depends only on the tokens before, so the law of such a token is still p. A token x that
    was judged is an accepted draft with probability min(1, q(x) / p(x)). The first round begins
    with the first token or, if reading the prompt gives a token, with the second.
    """
    drawn = tokens[..., None]
    accepted = (q.gather(-1, drawn) / p.gather(-1, drawn))[..., 0].clamp_max(1).nan_to_num(0)
    bonus = torch.zeros_like(tokens, dtype=torch.bool)
    for start in (0, draft_length):
        state = torch.zeros(len(tokens), draft_length + 1, dtype=p.dtype, device=p.device)
        state[:, start] = 1  # probability of each position in the round
        for position in range(tokens.shape[1]):
            bonus[:, position] |= state[:, -1] >= LIKELY
            going = state[:, :-1] * accepted[:, position, None]
            state = torch.cat((1 - going.sum(1, keepdim=True), going), 1)
    return bonus


def prefixes(
    server: TextsOfServer, temperature: float, context: Context, texts: Sequence[list[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the law of prefixes ``[C]``, the wrong law, and the prefix of each text.

    A prefix grows by a token as long as enough texts are expected to have it, so every text has
    exactly one of the C prefixes.
    """
    limit, models = max(map(len, texts)), (server.pair.target, server.pair.draft)

    def after(beginnings: Sequence[Beginning]) -> LawsAfter:
        prompted = context.prompt, [[*tokens, 0] for tokens, _ in beginnings], 1
        p, q = (server.laws(model, temperature, *prompted)[:, 0].cpu() for model in models)
        return torch.zeros_like(p), p, p, q

    law = enumerate_outputs(
        after,
        2 * draws.MIN_EXPECTED / len(texts),
        lambda prefix: prefix[-1] != server.end and len(prefix) < limit,
    )
    return law.law, law.wrong, torch.tensor([law.cell(tuple(tokens)) for tokens in texts])
