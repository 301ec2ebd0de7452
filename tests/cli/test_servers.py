"""Runs with servers as arms: what is recorded, and what happens to servers that misbehave."""

import json
import shlex
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar

import pandas as pd
import pytest

from specbench.experiment import measurements
from specbench.experiment.arms import MOST_FAILED

from ..serving.fake import Fake, Fault, Handler, arms, solved, threaded
from ..synthetic import records
from .made import configure

FOLDER = Path("run")
RUN = ("run", "-t", "mini-math", "--no-progress", "--output", "run")


def test_two_arms_are_measured_in_turns_and_scored(cli):
    steps = {"num_spec_steps": 2, "num_accepted_draft_tokens": 2, "num_draft_tokens": 6}
    steps |= {"per_step_accepted": [1, 1], "per_step_drafted": [3, 3]}
    fast = Fake(solved, report=lambda words: {"metrics": {"speculative_decoding": steps}})
    plain = Fake(solved, per_chunk=1)
    with arms(plain=plain, fast=fast) as servers:
        done = cli(*RUN, *servers, "-n", "6", "--concurrency", "1,3", "--batch-size", "3")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/samples.csv")
    assert len(rows) == 2 * 2 * 6
    assert {*rows["method"]} == {"plain", "fast"}
    assert {*rows["settings"]} == {"concurrency=1", "concurrency=3"}
    assert {*rows["engine"]} == {"servers"} and {*rows["stopped_by"]} == {"eos"}
    assert {*rows["output_tokens"]} == {5}
    plain_rows, fast_rows = (rows[rows["method"] == name] for name in ("plain", "fast"))
    assert plain_rows["rounds"].isna().all() and plain_rows["proposed"].isna().all()
    # The text has five tokens: one of the prompt, and two rounds with one accepted draft each.
    assert {*fast_rows["rounds"]} == {2} and {*fast_rows["accepted"]} == {2}
    assert {*fast_rows["judged"]} == {4} and {*fast_rows["acceptance_length"]} == {2}
    assert {*rows.groupby("sample_id")["quality"].nunique()} == {1}
    # A text whose chunks arrive together, as on a busy machine, has no first token's time.
    assert not (rows["first_token_seconds"] > rows["latency_seconds"]).any()
    alone = rows[rows["settings"] == "concurrency=1"]
    shares = alone["prefill_seconds"] + alone["decode_seconds"]
    assert (abs(shares - alone["latency_seconds"]) < 1e-6).all()
    seeds = [body["seed"] for body in plain.bodies if body["max_tokens"] > 16]
    assert len({*seeds}) == 6 and len(seeds) == 12
    environment = json.loads(Path("run/environment.json").read_text(encoding="utf-8"))
    assert environment["servers"]["plain"]["version"] == "1.2.3"
    configure(Path("run"), lambda config: config["settings"].update(engine="eager"))
    assert "settings are those of the plan" in cli("verify", "run", "-n", "0", code=0).out


def test_as_many_requests_are_in_flight_as_asked_for_and_no_more(cli):
    together = Barrier(3)

    def waits(handler, body):
        if body["max_tokens"] > 16:
            together.wait(timeout=20)  # until three are there
        return False

    fake = Fake(solved, fault=waits)
    with arms(a=fake) as servers:
        options = "--concurrency", "3", "--batch-size", "6", "--timeout", "30"
        cli(*RUN, *servers, "-n", "6", *options, code=0)
    assert fake.most_in_flight == 3


def test_requests_in_flight_share_the_elapsed_time(cli):
    with arms(slow=Fake(solved, delay=0.5)) as servers:
        cli(*RUN, *servers, "-n", "4", "--concurrency", "4", "--batch-size", "4", code=0)
    rows = pd.read_csv("run/samples.csv")
    shares = (rows["prefill_seconds"] + rows["decode_seconds"]).sum()
    assert rows["latency_seconds"].max() * 0.9 < shares < rows["latency_seconds"].sum() / 2


def test_the_pair_gives_token_ids_and_text_stays_text(cli):
    for form, kind in (("tokens", list), ("text", str)):
        fake = Fake(solved)
        with arms(a=fake) as servers:
            sent = "--pair", "mini", *servers, "--send", form, "-n", "2"
            cli(*RUN, *sent, "--fresh", code=0)
        assert {type(body["prompt"]) for body in fake.bodies} == {kind}
        assert all("messages" not in body for body in fake.bodies)


def test_thoughts_that_the_prompt_begins_are_not_scored(cli, monkeypatch):
    monkeypatch.setattr(measurements, "begins_thoughts", lambda *_: True)
    Path("asked.jsonl").write_text('{"prompt": "2 + 2?", "reference": "#### 4"}', encoding="utf-8")
    words = ["four", " is", " #### 4"]
    for text, is_cut in ((words, True), (["</think>", *words], False)):
        with arms(a=Fake(lambda _, text=text: text)) as servers:
            options = ("--prompts", "asked.jsonl", "--metric", "accuracy", "-o", "run", "--fresh")
            cli("run", "--pair", "mini", "--send", "tokens", *servers, *options, code=0)
        (sample,) = records(FOLDER)
        assert sample["thought_tokens"] == (sample["output_tokens"] if is_cut else None)
        assert sample["quality"] == (not is_cut)


def test_a_prompt_that_is_refused_again_and_again_stops_no_run(cli):
    def refuses(handler, body):
        refused = body["max_tokens"] > 16 and "0" in str(body["messages"])
        if refused:
            handler.reply(422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096"})
        return refused

    with arms(a=Fake(solved, fault=refuses)) as servers:
        for _ in range(2):  # the second time, all that failed come one after the other
            told = cli(*RUN, *servers, "-n", "20", code=1).err
    assert [r["status"] for r in records(FOLDER)].count("error") > 2 * MOST_FAILED
    assert "one after the other" not in told


def test_conversations_are_sent_as_they_are(cli):
    parts = [{"type": "text", "text": "And"}, {"type": "text", "text": "3?"}]
    turns = [("system", "Brief."), ("user", "1 + 1?"), ("assistant", "2"), ("user", parts)]
    messages = [{"role": role, "content": content} for role, content in turns]
    shared = {"conversations": [{"from": "human", "value": "4?"}, {"from": "gpt", "value": "4"}]}
    Path("asked.json").write_text(json.dumps([{"messages": messages}, shared]), encoding="utf-8")
    run = ("run", "--prompts", "asked.json", "--metric", "accuracy", "-o", "run", "--no-progress")
    sent: dict[str, list[Any]] = {}
    for form, part in (("chat", "messages"), ("text", "prompt")):
        fake = Fake(solved)
        with arms(a=fake) as servers:
            cli(*run, *servers, "--send", form, "--fresh", code=0)
        sent[form] = [body[part] for body in fake.bodies]
    assert messages in sent["chat"] and [{"role": "user", "content": "4?"}] in sent["chat"]
    assert {*sent["text"]} == {"Brief.\n\n1 + 1?\n\n2\n\nAnd\n3?", "4?"}
    assert [record["quality"] for record in records(FOLDER)] == [None, 1.0]


def test_a_run_resumes_with_the_server_at_another_address(cli):

    def dies(handler, body):
        if len(handler.fake.bodies) < 6:
            return False
        handler.close_connection = True
        return True

    with arms(a=(dying := Fake(solved, fault=dies))) as (option, url):
        stopped = cli(*RUN, option, f"{url}#tiny", "-n", "20", code=1)
    assert "5 requests to a failed one after the other" in stopped.err
    assert "run the same command to go on" in stopped.err
    before = [record for record in records(FOLDER) if record["status"] == "ok"]
    fake = Fake(solved, model="tiny,another")
    with arms(a=fake) as (option, url):
        cli(*RUN, option, f"{url}#tiny", "-n", "20", code=0)
    assert fake.bodies[-1]["messages"] == dying.bodies[-1]["messages"]  # what failed comes last
    assert len(fake.bodies) == 1 + 20 - len(before)  # one warms up
    assert records(FOLDER)[: len(before)] == before


def test_answers_that_came_before_a_server_died_are_recorded(cli):
    def dies(handler, body):
        handler.close_connection = len(handler.fake.bodies) > 1 + 11
        return handler.close_connection

    with arms(a=Fake(solved, fault=dies)) as servers:
        together = "--batch-size", "16", "--concurrency", "1"
        stopped = cli(*RUN, *servers, "-n", "16", *together, code=1)
    assert "5 requests to a failed one after the other" in stopped.err
    assert [record["status"] for record in records(FOLDER)].count("ok") == 11


def hangs(handler: Handler, body: dict[str, Any]) -> bool:
    time.sleep(2)
    return True


def endless(handler: Handler, body: dict[str, Any]) -> bool:
    handler.begin()
    while True:
        handler.event({"choices": [{"text": "a", "token_ids": [1]}]})
        time.sleep(0.01)


def replies(code: int, answer: Any) -> Fault:
    def reply(handler: Handler, body: dict[str, Any]) -> bool:
        handler.reply(code, answer)
        return True

    return reply


def streams(*events: Any) -> Fault:
    def stream(handler: Handler, body: dict[str, Any]) -> bool:
        handler.begin()
        for event in events:
            handler.wfile.write(b"data: " + event + b"\n\n")
        handler.close_connection = True
        return True

    return stream


CHOICE = b'{"choices": [{"text": "a", "token_ids": [%d], "finish_reason": "stop"}]%s}'


FAULTS: list[tuple[Fault, str]] = [
    (hangs, "did not answer within 0.5 seconds: raise --timeout"),
    (endless, "did not answer within 0.5 seconds"),
    (replies(500, {"error": "broken"}), "answers 500"),
    (replies(200, b"<html>"), "answers no JSON but '<html>'"),
    (replies(200, {"ok": True}), "without choices, text and finish_reason"),
    (streams(b'{"choices": ['), "streams no JSON"),
    (streams(b'{"choices": [{"text": "a"}]}'), "breaks off its answer, which has no finish_reason"),
    (streams(b'{"error": {"message": "out of memory"}}'), "out of memory"),
    (streams(CHOICE % (99999, b"")), "returns token 99999"),
    (streams(CHOICE % (1, b', "model": "other"')), "answers as the model other, not as tiny"),
    (streams(CHOICE % (1, b', "usage": {"completion_tokens": -3}')), "which is no count"),
    (streams(CHOICE % (1, b', "usage": {"completion_tokens": "%s"}' % (b"9" * 5000))), "no count"),
    (streams(b"[1]"), "the server answers [1] without choices"),
]


def test_a_server_that_misbehaves_is_named_and_nothing_is_lost(cli, monkeypatch):
    """Each prompt meets the next fault, also when it is sent again."""
    monkeypatch.setattr("specbench.experiment.arms.MOST_FAILED", len(FAULTS) + 1)
    met: dict[str, Fault] = {}

    def misbehaves(handler, body):
        if body["max_tokens"] <= 16:  # the warm-up
            return False
        return met.setdefault(str(body["prompt"]), FAULTS[len(met)][0])(handler, body)

    with arms(good=Fake(solved), bad=Fake(solved, fault=misbehaves)) as servers:
        short = "--timeout", "0.5", "--pair", "mini", "-n", f"{len(FAULTS)}"
        done = cli(*RUN, *servers, *short, code=1)
    assert FAULTS[0][1] in done.err
    failed = [record for record in records(FOLDER) if record["status"] == "error"]
    assert {record["method"] for record in failed} == {"bad"}
    for record, (_, message) in zip(failed, FAULTS, strict=True):
        assert message in record["error"]
    assert sum(record["method"] == "good" for record in records(FOLDER)) == len(FAULTS)


def test_an_option_that_a_server_refuses_is_named_in_the_run_and_in_the_verdict(cli):
    refused = "min_p"

    def strict(handler, body):
        if refused not in body and body.get("top_k") != 0:
            return False
        handler.reply(400, {"error": "bad request"})
        return True

    plain, picky = Fake(solved), Fake(solved, fault=strict)
    with arms(plain=plain, picky=picky) as servers:
        done = cli(*RUN, *servers, "-n", "12", code=0)
    assert f"picky refuses {refused}, so" in done.err
    for fake, top_k in ((plain, 0), (picky, -1)):
        neutral = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
        neutral |= {"top_k": top_k, "top_p": 1, "min_p": 0, "repeat_penalty": 1, "typical_p": 1}
        neutral |= {refused: None} if fake is picky else {}
        body = fake.bodies[-1]
        assert {name: body.get(name) for name in neutral} == neutral
    environment = json.loads(Path("run/environment.json").read_text(encoding="utf-8"))
    assert environment["servers"]["picky"]["options_refused"] == [refused]
    assert environment["servers"]["picky"]["options_changed"] == {"top_k": -1}
    for form in ((), ("--json",)):
        verdict = cli("compare", "run", "--against", "plain", "--margin", "2", *form).out
        told = " ".join(verdict.split())
        assert f"picky refused {refused}, so its own values may apply" in told
        assert "both may be sampled differently" in told


def test_a_server_that_counts_tokens_of_no_text_is_named_in_the_verdict(cli):
    def inflated(words):
        return {"usage": {"prompt_tokens": 9, "completion_tokens": 2 * words}}

    with arms(plain=Fake(solved), fast=Fake(solved, report=inflated)) as servers:
        cli(*RUN, *servers, "-n", "12", code=0)
    told = " ".join(cli("compare", "run", "--against", "plain", "--margin", "2").out.split())
    assert "fast counts 2.00 times as many tokens in a text of the same length" in told
    assert "times as long" not in told


def test_a_get_is_sent_again_and_counters_are_optional(cli):
    class Flaky(Handler):
        fake = Fake(solved)
        gets: ClassVar[Counter[str]] = Counter()

        def do_GET(self):
            self.gets[self.path] += 1
            if self.path != "/metrics" and self.gets[self.path] % 2:
                self.close_connection = True  # without an answer
            elif self.path == "/metrics" and self.gets[self.path] < 3:
                self.reply(200, b"vllm:spec_decode_num_drafts_total 1\n")
            elif self.path == "/metrics" and self.gets[self.path] < 5:
                self.reply(200, b"vllm:spec_decode_num_drafts_total NaN\n")
            elif self.path == "/metrics":
                self.close_connection = True
            else:
                super().do_GET()

    with threaded(Flaky) as url:
        done = cli(*RUN, "--server", f"a={url}", "-n", "3", "--batch-size", "1")
    assert done.code == 0 and Flaky.gets["/metrics"] > 4
    assert pd.read_csv("run/samples.csv")["rounds"].isna().all()


def test_counters_around_a_request_give_its_acceptance(cli):
    """The lines are those of vLLM 0.32. A text may lack drafts, and a server may start again."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    real = [(2, 10, 7), (0, 0, 0), (3, 15, 0)]
    counted = [*real, (-1, 5, 0), (1, 1, 2), (1, 5, -1)]
    paths: list[str] = []

    class Counting(Handler):
        fake = Fake(solved)

        def do_GET(self):
            paths.append(self.path)
            if self.path != "/metrics":
                return super().do_GET()
            lines = ['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 1.0']
            answered = islice(cycle(counted), len(self.fake.bodies))  # warm-ups too
            for name, *counts in zip(names, (9, 9, 9), *answered, strict=True):
                lines += [f"# TYPE vllm:spec_decode_num_{name}_total counter"]
                for engine in (0, 1):
                    labels = f'{{engine="{engine}",model_name="mini"}}'
                    lines += [f"vllm:spec_decode_num_{name}_total{labels} {sum(counts) / 2}"]
                    lines += [f"vllm:spec_decode_num_{name}_created{labels} 1.79e+09"]
            return self.reply(200, "\n".join(lines).encode())

    with threaded(Counting) as url:
        cli(*RUN, "--server", f"a={url}", "-n", f"{len(counted)}", "--batch-size", "1", code=0)
    samples = pd.read_csv("run/samples.csv")[["rounds", "proposed", "accepted"]]
    assert sorted(samples.dropna().itertuples(index=False, name=None)) == sorted(real)
    assert paths.count("/v1/models") > len(counted)  # before each request, to be connected


def test_a_dry_run_tells_the_cells_and_decodes_no_sample(cli):
    fake = Fake(solved, delay=0.001)
    with arms(a=fake) as servers:
        plan = (*RUN, *servers, "-n", "7", "--concurrency", "1,2")
        done = cli(*plan, "--dry-run", code=0)
    assert "a concurrency=1" in done.out and "14 samples; engine servers\n" in done.out
    assert not fake.bodies
    assert not Path("run").exists()


@pytest.mark.parametrize("has_driver", [False, True])
def test_on_a_cpu_vllm_reads_each_prompt_in_one_piece(cli, monkeypatch, has_driver):
    monkeypatch.setattr("specbench.cli.servers.has_gpu_driver", lambda: has_driver)
    command = cli("serve", "--pair", "mini", "-m", "sd", "--dry-run").out
    assert ("--max-num-batched-tokens" in command) != has_driver
    assert "--dtype float32" in command  # that of the pair, as specbench's engines have it


def test_vllm_gets_the_models_of_a_folder(cli, tmp_path):
    for size in ("0.5b", "1.5b"):
        (tmp_path / f"qwen2.5-coder-{size}-instruct").mkdir()
    serve = ["serve", "--pair", "qwen2.5-coder", "-m", "sd", "--dry-run", "--models"]
    words = shlex.split(cli(*serve, str(tmp_path)).out)
    assert words[words.index("serve") + 1] == str(tmp_path / "qwen2.5-coder-1.5b-instruct")
    drafts = json.loads(words[words.index("--speculative-config") + 1])
    assert drafts["model"] == str(tmp_path / "qwen2.5-coder-0.5b-instruct")
    missing = cli(*serve, str(tmp_path / "none"))
    assert missing.code == 2 and "give --models a folder with models" in missing.err
