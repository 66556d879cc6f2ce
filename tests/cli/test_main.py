"""The command line as a whole: help, errors, exit codes, start-up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from trifolium import __version__
from trifolium.cli import COMMANDS, main


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """(exit code, stdout, stderr) of a command line."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    return caught.value.code, out, err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, "--version") == (0, f"trifolium {__version__}\n", "")


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from trifolium.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'numpy', 'transformers', 'huggingface_hub', 'pydantic', 'gguf'} & set(sys.modules)\n"
        "    print(end.code, sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "0 []\n"
    for name in COMMANDS:
        assert f" {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(capsys, name, "--help")
    assert code == 0
    assert f"trifolium {name}" in out


@pytest.mark.parametrize("name", ["list", "pull", "show", "remove"])
def test_every_models_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(capsys, "models", name, "--help")
    assert code == 0
    assert f"trifolium models {name}" in out.split("Example")[1]


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["models", "nothing"], ["models", "show", "--nothing"], ["models", "remove"]]
)
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = outcome(capsys, *arguments)
    assert code == 2
    assert "Usage: trifolium" in err
    assert out == ""


def test_an_error_of_ours_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = outcome(capsys, "models", "show", "smollm2-135")
    assert code == 2
    assert out == ""
    assert err == "error: the shelf has no model 'smollm2-135'; nearest: smollm2-135m, smollm2-135m-skills\n"


def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    # A shell's background jobs start with SIGINT ignored, and their children inherit that.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from trifolium.cli import main; print('ready', flush=True); main(['models', 'pull'])"
    environment = {**os.environ, "TRIFOLIUM_CACHE": str(tmp_path)}
    with FileLock(tmp_path / "models" / ".smollm2-135m.lock"):  # the command waits for it
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
