"""Errors of the file system are one sentence with the advice that fits."""

import errno
from pathlib import Path

import pytest

from specbench.errors import RunError, UsageError
from specbench.files import check_parent, clear_errors


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EROFS])
def test_only_a_full_disk_asks_for_space(number: int) -> None:
    other = "choose another folder with --output"
    with pytest.raises(UsageError, match=rf"x \(why\): {other}$"), clear_errors(Path("x")):
        raise OSError(number, "why")
    full = rf"x \(why\): free disk space or {other}$"
    with pytest.raises(RunError, match=full), clear_errors(Path("x")):
        raise OSError(errno.ENOSPC, "why")


def test_a_file_needs_a_folder(tmp_path: Path) -> None:
    check_parent(tmp_path / "x")
    with pytest.raises(UsageError, match=r"none/x \(No such file or directory\)"):
        check_parent(tmp_path / "none" / "x")
