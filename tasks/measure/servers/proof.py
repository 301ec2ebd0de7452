"""Compare rules inside vLLM with their laws and with our own engine, in one process of vLLM.

    python tasks/measure/servers/proof.py FOLDER [--url URL] [--device cuda]
        [laws] [greedy] [acceptance]

``laws``: whole outputs and all their draws against enumeration and plain passes, as ``specbench
check`` compares those of our own loop. The same outputs are judged once more by the law of another
rule, a planted fault that must be found. ``greedy``: texts at temperature 0 beside those of our
engine. ``acceptance``: by position in the round, beside our engine, paired by prompt.

A server draws its first token from the prompt, without a draft, so our engine continues each prompt
and the server's first token. Answers are stored in FOLDER/answers, and a repeated command goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from serving import DRAFT_LENGTH, DRAWN, PYTHON, vllm_server

from specbench.analysis.statistics.intervals import interval, ratio
from specbench.decoding.heads.bind import BoundMethod, bind
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.records import Generation, RoundRecord
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.prompts import encode
from specbench.serving.arm import ARGUMENT, ROUNDS, SEPARATOR
from specbench.serving.client import Client
from specbench.serving.delivered import read_rounds
from specbench.serving.vllm.rules import method_of
from specbench.tasks.task import load_task
from specbench.validation.draws import FALSE_ALARM, Counts, Numbers, Stream
from specbench.validation.findings import FAILED, Test, findings_of
from specbench.validation.laws import laws_at
from specbench.validation.outputs import RARE, choose_ends, enumerate_outputs, next_token
from specbench.validation.rounds import EXCEPTIONS, STREAMS, compare_draws, compare_numbers
from specbench.validation.texts import Context, Ends, Setup, informative, tokens_of

ROOT = Path(__file__).parents[3]
PAIR, TASK = "mini", "mini-math"
DIVERSED = f"diversed:head={PAIR}/{TASK}"
USER_RULE = f"{ROOT / 'specbench/docs/my_rules.py'}:geometric:share=0.5"
RULES = [
    *("sd", "static:weight=0.5", "lossy:lenience=0.5", "typical", "gated", DIVERSED, USER_RULE)
]
# What outputs are judged by once more, and must not be.
FAULTS = {
    "sd": "lossy:lenience=0.8",
    "static:weight=0.5": "static:weight=0.6",
    "lossy:lenience=0.5": "lossy:lenience=0.6",
    "typical": "typical:epsilon=0.2",
    "gated": "gated:gate=0.2",
    DIVERSED: "static:weight=0.65",
    USER_RULE: USER_RULE.replace("0.5", "0.6"),
}
# At temperature 0 the others would emit the target's choice nearly always.
GREEDY_RULES = [
    *("sd", "static:weight=0.3", "lossy:lenience=0.2", "typical", "gated:gate=0.2,weight=0.2"),
    *(DIVERSED, USER_RULE),
]
CONTEXTS, OUTPUTS, OUTPUT_TOKENS = 4, 400, 5
GREEDY_PROMPTS, PROMPTS, NEW_TOKENS = 100, 200, 32
SEEDS = range(1, 5)  # of our texts, which are cheap: their noise is half of vLLM's
AT_ONCE = 16  # texts
PART = 200  # requests after which their rounds are read


class Text(NamedTuple):
    """What a server wrote after a prompt, with the end token, and its rounds."""

    tokens: list[int]
    ended: bool
    rows: list[list[float]]

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds behind the first token."""
        return read_rounds(self.rows, len(self.tokens))


class Answers:
    """Answers of a server, asked for or read if they are stored."""

    def __init__(self, url: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._url, self._folder = url, folder
        self._client = Client(timeout=600, requests=AT_ONCE)

    def texts(self, rule: str, prompts: Sequence[Sequence[int]], **options: Any) -> list[Text]:
        """Return the answers to prompts; ``options`` are those of the request."""
        key = json.dumps([rule.replace(str(ROOT), ""), [*map(list, prompts)], options])
        path = self._folder / f"{blake2b(key.encode(), digest_size=8).hexdigest()}.json"
        if not path.exists():
            path.write_text(json.dumps([*self._asked(rule, prompts, options)]))
        return [Text(*values) for values in json.loads(path.read_text())]

    def _asked(
        self, rule: str, prompts: Sequence[Sequence[int]], options: Mapping[str, Any]
    ) -> Iterator[Text]:
        plain = {"model": PAIR, "top_p": 1, "top_k": 0, "return_token_ids": True}
        for first in range(0, len(prompts), PART):
            part = prompts[first : first + PART]
            keys = [token_hex() for _ in part]
            bodies = [
                {**plain, **options, "prompt": prompt, "vllm_xargs": {ARGUMENT: rule, ROUNDS: key}}
                for prompt, key in zip(map(list, part), keys, strict=True)
            ]
            answers = self._client.post(f"{self._url}/v1/completions", bodies)
            for answer, key in zip(answers, keys, strict=True):
                (choice,) = answer["choices"]
                rows = self._client.get(f"{self._url}/v1/{ROUNDS}/{key}")
                yield Text(choice["token_ids"], choice["finish_reason"] == "stop", rows)


def bound(rule: str, pair: LoadedPair) -> BoundMethod:
    """Return a rule by its text, bound to a pair."""
    return bind(*method_of(rule), pair)


def prompts_of(pair: LoadedPair, number: int) -> dict[str, list[int]]:
    """Return the first prompts of the task by the ids of their examples."""
    examples = load_task(TASK).examples("test", number)
    return {example.id: encode(pair.tokenizer, example.prompt).ids for example in examples}


def laws(pair: LoadedPair, answers: Answers) -> pd.DataFrame:
    """Return a row for each comparison of outputs with laws."""
    prompts = prompts_of(pair, CONTEXTS)
    contexts = [informative(pair, Context(name, prompt)) for name, prompt in prompts.items()]
    chosen = choose_ends(pair, contexts, Sampling(), OUTPUT_TOKENS)
    ends = Ends(OUTPUT_TOKENS, chosen.token)
    alpha = FALSE_ALARM / (len(RULES) * (3 + len(STREAMS)))
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        repeated = [context.prompt for context in contexts for _ in range(OUTPUTS)]
        texts = answers.texts(
            rule,
            repeated,
            temperature=1,
            max_tokens=ends.limit,
            ignore_eos=True,
            stop_token_ids=[ends.token],
        )
        far = "sd" if rule != "sd" else "static:weight=0"
        for judged_as in (rule, FAULTS[rule], far):
            setup = Setup(
                pair, bound(judged_as, pair), draft_length=DRAFT_LENGTH, ends=ends, texts=OUTPUTS
            )
            tests: dict[str, Test] = {
                "outputs": Counts(0),
                **{name: Stream(0) for name in STREAMS},
                **{name: Numbers(EXCEPTIONS[name]) for name in ("probabilities", "weights")},
            }
            for number, context in enumerate(contexts):
                compare(setup, context, texts[number * OUTPUTS :][:OUTPUTS], tests)
            for finding in findings_of("law", label(rule), tests, alpha):
                if not finding.facts["draws"]:
                    continue
                facts = {name: finding.facts.get(name) for name in ("draws", "p_value", "control")}
                row = {"rule": label(rule), "judged as": label(judged_as), "of": finding.name}
                rows.append(row | facts | {"off": finding.facts.get("off")})
                rows[-1] |= {"verdict": finding.verdict, "sentence": finding.sentence}
        print(pd.DataFrame(rows).drop(columns="sentence").to_string(), flush=True)
    return pd.DataFrame(rows)


def compare(setup: Setup, context: Context, texts: Sequence[Text], tests: dict[str, Any]) -> None:
    """Add the texts of a prompt to the tests."""
    generations = [generation(text, setup.ends) for text in texts]
    law = enumerate_outputs(
        # The first token has no draft, as if a whole round had been accepted before it.
        lambda states: next_token(
            setup, context, [(output, at if output else setup.drafts) for output, at in states]
        ),
        RARE / len(texts),
        lambda output: output[-1] != setup.ends.token and len(output) < setup.ends.limit,
    )
    cells = torch.tensor([law.cell(tuple(text.tokens)) for text in texts])
    tests["outputs"].add(law.law, law.wrong, cells)
    tokens = tokens_of(generations, context.prompt, setup.ends, setup.propose)
    whole = [[*context.prompt, *text] for text in tokens.tokens.tolist()]
    at = laws_at(setup, whole, tokens.position, tokens.proposed.flatten())
    compare_draws(setup.method, tokens.flatten(), at, tests)
    compare_numbers(setup.method, tokens, at, tests)


def generation(text: Text, ends: Ends) -> Generation:
    """Return a text as one of our own loop; its first round has no draft."""
    rounds = [RoundRecord(0, 0, 1), *text.rounds]
    assert sum(r.emitted for r in rounds) == len(text.tokens), text
    assert (text.tokens[-1] == ends.token) == text.ended, text
    ids = text.tokens[:-1] if text.ended else text.tokens
    return Generation(
        ids, "", 0, len(text.tokens), "eos" if text.ended else "length", *(0.0,) * 6, rounds
    )


def ours(
    pair: LoadedPair, rule: str, prompts: Sequence[Sequence[int]], temperature: float, seed: int
) -> list[Generation]:
    """Return the texts of our engine."""
    options = DecodeOptions(
        Sampling(temperature=temperature),
        DRAFT_LENGTH,
        NEW_TOKENS - 1,
        seed=seed,
        batch_size=AT_ONCE,
    )
    requests = [Request(prompt, f"proof/{i}") for i, prompt in enumerate(prompts)]
    decoded = dict(decode_all(pair, bound(rule, pair).rule, requests, options))
    return [decoded[i] for i in range(len(prompts))]


def pairs_of_texts(
    pair: LoadedPair, answers: Answers, rule: str, number: int, temperature: float, seed: int = 1
) -> list[tuple[Text, Generation]]:
    """Return the server's texts with more than a token, and ours after the first of them."""
    prompts = [*prompts_of(pair, number).values()]
    texts = answers.texts(rule, prompts, temperature=temperature, max_tokens=NEW_TOKENS)
    both = [(prompt, text) for prompt, text in zip(prompts, texts, strict=True) if text.rows]
    continued = ours(pair, rule, [[*prompt, t.tokens[0]] for prompt, t in both], temperature, seed)
    return [(text, our) for (_, text), our in zip(both, continued, strict=True)]


def greedy(pair: LoadedPair, answers: Answers) -> pd.DataFrame:
    """Return a row for each rule: how many texts, and how many lists of rounds, are equal."""
    rows = []
    for rule in GREEDY_RULES:
        both = pairs_of_texts(pair, answers, rule, GREEDY_PROMPTS, 0)
        ends = pair.eos_ids
        same = [[t for t in a.tokens[1:] if t not in ends] == b.token_ids for a, b in both]
        rounds = [
            [[(r.proposed, r.accepted) for r in text.rounds] for text in texts] for texts in both
        ]
        rows.append(
            {
                "rule": label(rule),
                "prompts": len(both),
                "tokens": sum(len(a.tokens) for a, _ in both),
                "equal texts": sum(same),
                "equal rounds": sum(theirs == our for theirs, our in rounds),
                "accepted/round": np.mean([r.accepted for a, _ in both for r in a.rounds]),
            }
        )
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def acceptance(pair: LoadedPair, answers: Answers) -> pd.DataFrame:
    """Return a row for each rule and position: accepted of judged drafts, in both engines."""
    rows = []
    for rule in RULES:
        texts = [pairs_of_texts(pair, answers, rule, PROMPTS, 1, seed) for seed in SEEDS]
        sums = np.array(  # [seeds, n, 2 k]
            [[[*counts(a.rounds), *counts(b.rounds)] for a, b in both] for both in texts]
        ).sum(0)
        half = sums.shape[1] // 2
        names = [*(f"{i + 1}" for i in range(DRAFT_LENGTH)), "all", "expected"]
        for i, name in enumerate(names):
            columns = [2 * i, 2 * i + 1, half + 2 * i, half + 2 * i + 1]
            values = sums[:, columns]
            difference = interval(
                values, lambda totals: ratio(totals[..., :2]) - ratio(totals[..., 2:])
            )
            total = values.sum(0)
            rows.append(
                {
                    "rule": label(rule),
                    "position": name,
                    "prompts": len(sums),
                    "judged": int(total[1]) // len(SEEDS),
                    "vLLM": total[0] / total[1],
                    "ours": total[2] / total[3],
                    "difference": difference[0],
                    "low": difference[1],
                    "high": difference[2],
                }
            )
        print(pd.DataFrame(rows[-len(names) :]).to_string(), flush=True)
    return pd.DataFrame(rows)


def counts(rounds: Sequence[RoundRecord]) -> list[float]:
    """Return accepted and judged drafts by position, of all, and of the expected acceptance."""
    numbers: list[float] = []
    for i in range(DRAFT_LENGTH):
        numbers += [sum(r.accepted > i for r in rounds), sum(len(r.expected) > i for r in rounds)]
    judged = sum(len(r.expected) for r in rounds)
    numbers += [sum(r.accepted for r in rounds), judged]
    return [*numbers, sum(sum(r.expected) for r in rounds), judged]


def label(rule: str) -> str:
    """Return a rule without the folder of its file."""
    return rule.rpartition("/")[2] if rule.startswith("/") else rule


def faults_of_laws(table: pd.DataFrame) -> str:
    """Describe rules with a wrong law, and planted faults that were not found."""
    failed = table[table["verdict"] == FAILED]
    right = failed["rule"] == failed["judged as"]
    wrong = [*failed[right]["rule"]]
    unseen = {*map(label, RULES)} - {*failed[~right]["rule"]}
    return f"wrong laws of {wrong}, planted faults not found in {unseen}" if wrong or unseen else ""


def faults_of_greedy(table: pd.DataFrame) -> str:
    """Describe rules whose texts differ from those of our engine."""
    unequal = table[table["equal texts"] < table["prompts"]]["rule"]
    return f"other texts by {[*unequal]}" if len(unequal) else ""


PARTS = {"laws": laws, "greedy": greedy, "acceptance": acceptance}
FAULTS_OF = {"laws": faults_of_laws, "greedy": faults_of_greedy}


def main() -> None:
    """Compare, write a table per part, and exit with 1 if a comparison of the laws is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", nargs="*", default=[*PARTS])
    parser.add_argument("--url", help="a server that runs; else one is started")
    parser.add_argument("--device", default="cpu", help="cuda has vLLM in .servers-gpu")
    options = parser.parse_args()
    pair = load_pair(get_pair(PAIR), Loading(device=options.device, dtype="float32"))
    rules = SEPARATOR.join([DIVERSED, USER_RULE])
    python = PYTHON if options.device == "cpu" else ROOT / ".servers-gpu/bin/python"
    server = vllm_server(PAIR, DRAWN, rule=rules, python=python)
    running = nullcontext(options.url) if options.url else server
    with running as url:
        answers = Answers(url, options.folder / "answers")
        for part in options.part:
            table = PARTS[part](pair, answers)
            table.to_csv(options.folder / f"{part}.csv", index=False)
            if faults := FAULTS_OF.get(part, lambda table: "")(table):
                sys.exit(f"{part}: {faults}")


if __name__ == "__main__":
    main()
