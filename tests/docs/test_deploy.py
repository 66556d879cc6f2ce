"""What `deploy/` has is checked as far as a machine without systemd as its first process and without Docker can."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from trifolium.cli.serve import LOOPBACK
from trifolium.serve import ServeSettings
from trifolium.serve.listen import CLOSING

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def unit() -> ConfigParser:
    """The systemd unit; of keys that are given twice the last one."""
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / "trifolium.service")
    return parser


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, arguments), with continued lines joined and comments left out."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1].strip()) for line in text.splitlines() if line.strip()
    ]


def options(words: list[str]) -> dict[str, object]:
    """What `trifolium serve` makes of its words; raises for an unknown option."""
    import typer

    from trifolium.cli import serve

    assert words[0] == "serve"
    return typer.main.get_command(serve.app).make_context("trifolium", words[1:]).params


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "trifolium.service"
    text = (DEPLOY / "trifolium.service").read_text()
    copy.write_text(text.replace("/opt/trifolium/bin/trifolium", sys.executable))  # which has to exist
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "trifolium.service" not in done.stderr, done.stderr
    copy.write_text(copy.read_text().replace("NoNewPrivileges=", "NoNewPrivilege="))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert "Unknown key" in done.stderr, "it would have told"


def test_the_unit_runs_the_real_command_on_loopback_and_waits_for_it(unit: ConfigParser) -> None:
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0].endswith("/bin/trifolium")
    given = options(words[1:])
    assert given["host"] in LOOPBACK and given["api_key"] is None, "keys in command lines are seen by everyone"
    assert int(service["TimeoutStopSec"]) > float(str(given["drain"])) + CLOSING
    assert service["NoNewPrivileges"] == "yes" and service["ProtectSystem"] == "strict"
    assert service["CacheDirectory"] == service["StateDirectory"] == "trifolium"
    assert f"TRIFOLIUM_CACHE=/var/cache/{service['CacheDirectory']}" in service["Environment"].split()


def test_the_container_runs_the_real_command_and_not_as_root() -> None:
    steps = dockerfile()
    by_name = dict(steps)
    assert json.loads(by_name["ENTRYPOINT"]) == ["trifolium"]
    given = options(json.loads(by_name["CMD"]))
    assert str(given["port"]) == by_name["EXPOSE"]
    assert f":{given['port']}/health" in by_name["HEALTHCHECK"]
    assert by_name["USER"] == "trifolium" and steps.index(("USER", "trifolium")) < len(steps) - 3
    assert f"TRIFOLIUM_CACHE={by_name['VOLUME']}" in by_name["ENV"].split()
    root = DEPLOY.parent
    for name, arguments in steps:
        if name == "COPY":
            for source in arguments.split()[:-1]:
                assert (root / source).exists()
                assert f"!{source}" in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()


def test_the_health_check_of_the_container_is_python_that_runs() -> None:
    check = json.loads(dict(dockerfile())["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    assert check[:2] == ["python", "-c"]


def test_proxies_take_what_the_server_takes() -> None:
    nginx, caddy = ((DEPLOY / name).read_text() for name in ("nginx.conf", "Caddyfile"))
    settings = ServeSettings()
    assert settings.max_body == 16 * 2**20
    assert "client_max_body_size 16m;" in nginx and "max_size 16MiB" in caddy
    for text in (nginx, caddy):
        assert "127.0.0.1:8000" in text
        [seconds] = re.findall(r"(?:proxy_read_timeout|response_header_timeout) (\d+)s", text)
        assert int(seconds) > settings.timeout
    assert "proxy_buffering off;" in nginx and "flush_interval -1" in caddy
