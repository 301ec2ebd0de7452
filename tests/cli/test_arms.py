"""What is asked of one server and not of another, and what a run keeps of their answers."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ..serving.fake import Fake, Handler, arms, solved
from ..synthetic import records
from .conftest import Cli

RUN = ("run", "-t", "mini-math", "--no-progress", "-o", "run", "-n", "12")
AGAINST = ("compare", "run", "--against", "plain", "--margin", "2")
TEMPLATE = "chat_template_kwargs.enable_thinking"


def told(cli: Cli, *words: str) -> str:
    """Return what a command prints, on one line."""
    done = cli(*(words or AGAINST))
    return " ".join(f"{done.out} {done.err}".split())


def both(cli: Cli, plain: Fake, fast: Fake, *options: str) -> Any:
    with arms(plain=plain, fast=fast) as servers:
        return cli(*RUN, *servers, *options)


def test_a_body_is_sent_to_all_or_one_and_belongs_to_the_run(cli):
    plain, fast = Fake(solved), Fake(solved)
    bodies = ("--set-body", f"{TEMPLATE}=true", "--set-body", f"fast:{TEMPLATE}=false")
    bodies += ("--set-body", 'chat_template_kwargs.level="a, b=c"', "--set-body", "fast:user=info")
    bodies += ("--set-body", 'a={"b": 1, "c": 2}', "--set-body", "fast:a.b=3")
    bodies += ("--set-body", 'response_format={"type": "text"}', "--set-body", "top_k_draft=[1, 1]")
    assert both(cli, plain, fast, *bodies).code == 0
    shared = {"response_format": {"type": "text"}, "top_k_draft": [1, 1]}
    of_fast = {"user": "info", "a": {"b": 3, "c": 2}}
    for fake, thinks, further in ((plain, True, {"a": {"b": 1, "c": 2}}), (fast, False, of_fast)):
        body = {"chat_template_kwargs": {"enable_thinking": thinks, "level": "a, b=c"}}
        body |= shared | further
        assert all({name: b.get(name) for name in body} == body for b in fake.bodies)
        assert ("user" in fake.bodies[-1]) == (fake is fast)
        config = json.loads(Path("run/config.json").read_text(encoding="utf-8"))
        arms_by_name = {arm["name"]: arm for arm in config["servers"]}
        assert arms_by_name["fast" if fake is fast else "plain"]["body"] == body
    assert both(cli, plain, fast, *bodies).code == 0  # the same run
    other = both(cli, plain, fast, *bodies[2:])
    assert other.code == 2 and "run contains another run (servers is" in other.err
    Path("run/config.json").unlink()
    lost = both(cli, plain, fast, *bodies[2:])
    assert lost.code == 2 and "does not make the recorded sample" in lost.err


def ending(reason: str, every: int = 3) -> Any:
    def fault(handler: Handler, body: dict[str, Any]) -> bool:
        if body["max_tokens"] <= 16 or sum(map(ord, str(body["messages"]))) % every:
            return False
        handler.begin()
        choice = {"delta": {"content": "so"}, "finish_reason": reason}
        handler.event({"model": "tiny", "choices": [choice]})
        handler.close_connection = True
        return True

    return fault


def test_answers_without_an_end_are_failed_requests(cli):
    reason = "insufficient_system_resource"
    done = both(cli, Fake(solved), Fake(solved, fault=ending(reason)), "--seed", "3", "-n", "20")
    failed = [record for record in records(Path("run")) if record["status"] == "error"]
    assert done.code == 1 and 2 <= len(failed) < 20
    assert {record["method"] for record in failed} == {"fast"}
    words = f"ends an answer by the finish_reason {reason}"
    assert all(words in record["error"] for record in failed)
    said = told(cli)
    assert f"(fast {len(failed)} times: {words[:57]}" in said
    assert "lossy" not in said.partition("between tokens:")[0].partition("fast")[2]
    rows = pd.read_csv("run/samples.csv")
    assert {*rows["finish_reason"]} == {"stop"} and {*rows["stopped_by"]} == {"eos"}


def test_known_ends_are_counted_by_arm(cli):
    assert both(cli, Fake(solved), Fake(solved, fault=ending("length", 1))).code == 0
    said = told(cli)
    assert "ends" in said and "eos 12" in said and "length 12" in said
    assert "12 of 12 answers of fast end at the limit, and none of plain" in said


def loops(prompt: str) -> list[str]:
    return ["la"] * 40


def test_a_text_that_repeats_itself_is_named_without_token_ids(cli):
    assert both(cli, Fake(solved), Fake(loops)).code == 0
    rows = pd.read_csv("run/samples.csv").groupby("method")["repetition"].max()
    assert rows["plain"] == 0 and rows["fast"] > 0.5
    assert "12 of 12 answers of fast repeat themselves, as loops do, and none of plain" in told(cli)


def test_prompts_and_caches_that_differ_are_named(cli):
    def used(prompt, cached):
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        counts = {"prompt_tokens": prompt, "completion_tokens": 5, **details}
        return lambda words: {"usage": counts}

    assert both(cli, Fake(solved, report=used(40, 0)), Fake(solved, report=used(39, 30))).code == 0
    said = told(cli)
    assert "fast counts 39 and plain 40 tokens in a prompt, and other numbers in 12 of 12" in said
    assert "fast took 77 % and plain 0 % of the tokens of prompts from a cache" in said
    assert {*pd.read_csv("run/samples.csv")["cached_tokens"]} == {0, 30}


@pytest.mark.parametrize(
    ("answered", "options", "code"),
    [
        *(("tiny-2026-08-06", [], 0), ("org/tiny", [], 0), ("", [], 0), ("other", [], 2)),
        *(
            (("other", ["--alias", f"{arm}=other"], code))
            for arm, code in (("fast", 0), ("plain", 2))
        ),
    ],
)
def test_a_server_may_answer_by_another_name_of_its_model(cli, answered, options, code):
    def names(handler, body):
        choice = {"message": {"content": "#### 4"}, "finish_reason": "stop"}
        handler.reply(200, {"model": answered, "choices": [choice]})
        return True

    done = both(cli, Fake(solved), Fake(fault=names), "-n", "1", *options)
    assert done.code == code, done.err
    if code:
        assert "fast answers as the model other, not as tiny" in done.err
        assert "add --alias fast=other" in done.err
    form = f"fast: it answers as {answered}, a form of the name tiny"
    assert (form in done.err) == ("tiny" in answered)


def test_waiting_for_a_limit_of_requests_is_not_timed(cli, monkeypatch):
    monkeypatch.setattr("specbench.serving.client.PAUSE", 0.3)

    def limits(handler, body):
        if len(handler.fake.bodies) % 2:
            return False
        handler.reply(429, b"", {"Retry-After": "0"})
        return True

    done = both(cli, Fake(solved), Fake(solved, fault=limits), "-n", "4")
    assert done.code == 0 and "fast: it lets requests wait (Retry-After)" in done.err
    rows = pd.read_csv("run/samples.csv")
    waited = rows[rows["method"] == "fast"]
    assert {*waited["retries"]} == {1} and waited["latency_seconds"].max() < 0.3
    assert (waited["prefill_seconds"] + waited["decode_seconds"]).max() < 0.3


def test_comparing_servers_without_a_baseline_names_the_remedy(cli):
    told = both(cli, Fake(solved), Fake(solved), "--margin", "3").err
    assert told.endswith("next: specbench compare run --against plain --margin 3\n")
    done = cli("compare", "run")
    assert done.code == 2 and done.err.endswith("add --against plain --margin 2\n")
    assert cli("compare", "run", "--against", "plain", "--margin", "2").code == 0


def delivering(delta: dict[str, Any], **usage: int) -> Fake:
    def fault(handler: Handler, body: dict[str, Any]) -> bool:
        handler.begin()
        for choice in ({"delta": delta}, {"delta": {}, "finish_reason": "stop"}):
            handler.event({"model": "tiny", "choices": [choice]})
        handler.event({"choices": [], "usage": {"completion_tokens": 9, **usage}})
        handler.close_connection = True
        return True

    return Fake(fault=fault)


CALL = {"function": {"name": "solve", "arguments": '{"numbers": [1, 2, 3, 4]}'}}


@pytest.mark.parametrize(
    ("delta", "count", "words"),
    [
        ({"content": None, "reasoning_content": "so it is #### 4"}, 5, "have thoughts only"),
        ({"content": "<think> so it is four"}, 7, "have thoughts only"),
        ({"tool_calls": [CALL]}, 11, "have calls of tools only"),
        ({"content": ""}, 1, "are empty"),
    ],
)
def test_answers_without_a_text_are_named_by_what_they_have(cli, delta, count, words):
    done = both(cli, Fake(solved), delivering(delta, completion_tokens=count))
    assert f"12 of 12 answers of fast {words}" in " ".join(done.err.split())
    table, sentences = told(cli), told(cli, *AGAINST, "--legend")
    row = told(cli, *AGAINST, "--json")
    assert f"12 of 12 {words}" in row and f"12 of 12 answers of fast {words}" in sentences
    assert f"12 of 12 answers of fast {words}" in table and "of plain have" not in table
    assert "times as many tokens in a text of the same" not in table


@pytest.mark.parametrize("text", ["4", "#### 4"])
def test_a_text_of_one_token_is_not_empty(cli, text):
    assert both(cli, Fake(solved), delivering({"content": text}, completion_tokens=1)).code == 0
    assert "empty" not in told(cli).partition("between tokens:")[0]


def test_a_model_is_asked_for_if_a_server_lists_several(cli):
    several = Fake(solved, model="embedder,draft,target")
    done = both(cli, several, several)
    assert done.code == 2 and "lists several models, embedder, draft, target: name the" in done.err
    with arms(plain=several, fast=Fake(solved, model="tiny,tiny:latest,org/tiny")) as servers:
        servers[1] += "#target"
        done = cli(*RUN, *servers)
    assert done.code == 0 and "fast runs tiny, and plain target" in done.err
    words = "fast is the model tiny, and plain target: if these are two, the differences are theirs"
    assert words in told(cli) and words in told(cli, *AGAINST, "--legend")


def test_counts_that_contradict_their_text_have_no_rates(cli):
    once = Fake(solved, per_chunk=1, report=lambda words: {"usage": {"completion_tokens": 1}})
    wordy = Fake(lambda prompt: ["so it is, as we know, #### 4"], report=once.report)
    assert both(cli, Fake(solved), wordy).code == 0
    rows = pd.read_csv("run/samples.csv")
    rates = rows.loc[rows["method"] == "fast", ["tokens_per_second", "output_tokens"]]
    assert rates.isna().all(axis=None)
    said = told(cli)
    assert "fast: usage does not count the text in 12 of 12 answers" in said
    assert "tokens take" not in said and "first token, ms" in said
    assert "between tokens: empty where" in said


def test_headers_and_a_query_are_sent_and_no_secret_is_stored(cli):
    seen: list[tuple[str, str | None]] = []

    def note(handler: Handler, body: dict[str, Any]) -> bool:
        seen.append((handler.path, handler.headers["api-key"]))
        return False

    with arms(plain=Fake(solved, fault=note)) as servers:
        servers[1] += "/v1?api-version=2024-10-21"
        done = cli(*RUN, *servers, "--header", "api-key=abc", "--header=X-Org=hush-hush")
        assert done.code == 0, done.err
        secret = cli(*RUN, servers[0], f"{servers[1]}&api-key=abc")
    assert {*seen} == {("/v1/chat/completions?api-version=2024-10-21", "abc")}
    stored = [path.read_text(encoding="utf-8") for path in Path("run").glob("*.json")]
    assert '"X-Org"' in "".join(stored) and "hush" not in "".join(stored)
    assert "api-key=abc" not in "".join(stored)
    assert secret.code == 2 and "send it by --header" in secret.err
    assert cli(*RUN, *servers, "--header", "api-key").err.count("NAME=VALUE") == 1


def test_tools_are_sent_and_every_metric_that_is_named_counts(cli):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    row = {"messages": [{"role": "user", "content": "2 + 2?"}], "reference": ["4", "four"]}
    rows = [{**row, "tools": tools}, {**row, "tools": json.dumps(tools)}, row]
    Path("p.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    Path("own.py").write_text("def half(text, reference):\n    return 0.5\n", encoding="utf-8")
    plain = Fake(solved)
    for output, metrics in (
        ("one", ["--metric", "accuracy,rouge2,own.py:half"]),
        ("two", ["--metric", "accuracy", "--metric", "rouge2", "--metric", "own.py:half"]),
    ):
        with arms(plain=plain) as servers:
            words = ("run", "--prompts", "p.jsonl", "--no-progress", "-o", output, *servers)
            done = cli(*words, *metrics)
        assert done.code == 0, done.err
        scores = [record["scores"] for record in records(Path(output))]
        assert {tuple(s) for s in scores} == {("accuracy", "rouge2", "half")}
        assert len(scores) == 3 and all(s["half"] == 0.5 for s in scores)
    sent = [body.get("tools") for body in plain.bodies[-3:]]
    assert sent == [tools, tools, None]
