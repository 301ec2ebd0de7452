"""Descriptions of the machine and the code, with a replacement for nvidia-smi."""

import json
import os
import subprocess
from pathlib import Path

import specbench
from specbench.experiment import environment as module
from specbench.experiment.environment import UNKNOWN, describe_environment, git_state


def test_the_environment_is_plain_data_with_the_versions(tmp_path, monkeypatch):
    import torch

    environment = describe_environment()
    assert json.loads(json.dumps(environment)) == environment
    # Of a CUDA build, the metadata lack the last part of the version.
    assert torch.__version__.startswith(environment["packages"]["torch"])
    assert environment["torch"]["threads"] == torch.get_num_threads()
    assert environment["command"][0] == "specbench"
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n")
    assert module.cpu_model(cpuinfo) == "Some CPU @ 2 GHz"
    monkeypatch.setenv("PATH", "")
    package = Path(specbench.__file__).parent
    assert git_state(package) == {"commit": UNKNOWN, "dirty": UNKNOWN}
    assert module.cpu_model(tmp_path / "missing")


def test_the_enabled_attention_backends_are_recorded_on_a_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    torch_facts = describe_environment()["torch"]
    assert torch_facts["attention_backends"] == ["flash", "mem_efficient", "math"]
    assert torch_facts["driver"] == UNKNOWN and torch_facts["gpus"] == []


def test_git_state_is_that_of_the_code(tmp_path):
    package, tasks = tmp_path / "package", tmp_path / "tasks"
    for folder in (package, tasks):
        folder.mkdir()
        (folder / "__init__.py").touch()

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    git("init", "--quiet")
    # The package is not tracked, so this is another project's repository.
    assert git_state(package)["commit"] == UNKNOWN
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    state = git_state(package)
    assert len(state["commit"]) == 40 and state["dirty"] is False
    (tmp_path / "results.csv").touch()  # not code
    assert git_state(package)["dirty"] is False
    (tasks / "__init__.py").write_text("changed")
    assert git_state(package)["dirty"] is True


def test_the_driver_reports_other_processes(tmp_path, monkeypatch):
    def install(processes):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\necho "{processes}"\n')
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for processes, others in (
        (f"{os.getpid()}, 900\n42, 512", [{"pid": 42, "memory_mib": 512}]),
        ("42, [N/A]", [{"pid": 42, "memory_mib": None}]),
        ("NVIDIA-SMI has failed because it could not communicate", []),
    ):
        install(processes)
        assert module.other_processes() == others
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "$*" >"$(dirname "$0")/called"\n')
    for visible, restricted in {"1,3": True, "": False, "MIG-7": False}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        module.other_processes()
        assert (f"--id={visible}" in (tmp_path / "called").read_text()) is restricted
    monkeypatch.setenv("PATH", "")
    assert module.other_processes() == []
