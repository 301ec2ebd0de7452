"""The proxy that corrupts some answers of a server, by which alarms are proved."""

import pandas as pd
import pytest

from specbench.cli.app import main
from tasks.measure.servers.proxy import proxied
from tests.serving.fake import Fake, serving, solved


def test_a_proxy_corrupts_the_answers_to_a_share_of_the_prompts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(Fake(solved)) as url, proxied(url, corrupted=0.3) as worse:
        servers = ["--server", f"plain={url}", "--server", f"worse={worse}"]
        with pytest.raises(SystemExit) as end:
            main(["run", "-t", "mini-math", "-n", "40", "--no-progress", "-o", "run", *servers])
    assert not end.value.code
    samples = pd.read_json("run/samples.jsonl", lines=True)
    texts = samples.pivot(index="sample_id", columns="method", values="text")
    differ = texts["plain"] != texts["worse"]
    assert 4 <= differ.sum() <= 20
    assert not texts["worse"][differ].str.contains(r"\d").any()
