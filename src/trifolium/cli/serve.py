"""`trifolium serve`: a local server for OpenAI's and Anthropic's clients, with a page."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..dtypes import DTypeName, check
from . import options as o

if TYPE_CHECKING:
    from ..api import LM

app = typer.Typer(add_completion=False)

KEY_VARIABLE = "TRIFOLIUM_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_EPILOG = (
    "Examples: trifolium serve  |  trifolium serve --port 9000 --api-key secret  |  "
    "then open the page it names, or point any OpenAI client at http://127.0.0.1:8000/v1"
)


@app.command(epilog=_EPILOG)
def serve(
    model: o.Model = o.DEFAULT,
    adapter: o.Adapter = "auto",
    skills: o.Skills = "auto",
    dtype: o.DType = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on; other machines can't reach the default.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(help=f"Clients must send it. [default: ${KEY_VARIABLE}, or none]", show_default=False)
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="A web page's origin that may call; may be given several times.")
    ] = None,
    load_models: Annotated[
        bool, typer.Option("--load-models", help="Let requests name other models of the shelf, and load them.")
    ] = False,
    max_models: Annotated[int, typer.Option(min=1, help="Models that stay loaded.")] = 2,
    max_open: Annotated[int, typer.Option(min=1, help="Requests that may run or wait; others get status 429.")] = 256,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, whatever is asked. [default: the context]")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that an answer may take.")] = 600.0,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that answers have to end when the server stops.")] = 20.0,
    replicas: Annotated[
        int, typer.Option(min=1, help="Several copies of the model behind Ray Serve (needs trifolium[ray]).")
    ] = 1,
    rows: o.RowBudget = o.ROWS,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts and answers to the log.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log warnings and errors only.")] = False,
) -> None:
    """Serve a model on this machine: /v1/chat/completions, /v1/responses, /v1/messages and more, and a page at /.

    Logs one JSON object a request to stderr, without prompts. Ctrl-C stops it once open answers have ended.
    """
    from ..serve import ServeSettings, create_app
    from ..serve.listen import Server, listen
    from ..serve.log import log_to_stderr
    from ..serve.replicas import serve_replicas

    key = api_key or os.environ.get(KEY_VARIABLE) or None
    settings = ServeSettings.parse(
        {
            "api_key": key,
            "hosts": LOOPBACK if host in LOOPBACK and key is None else (),
            "cors_origins": tuple(cors or ()),
            "load_models": load_models,
            "max_models": max_models,
            "max_open": max_open,
            "max_tokens": max_tokens,
            "timeout": timeout,
            "drain": drain,
            "log_prompts": log_prompts,
        },
        "options",
    )
    if host not in LOOPBACK and key is None:
        o.note(f"anyone who can reach {host} can use this server: --api-key protects it")

    def announce(port: int) -> None:
        if not quiet:
            address = f"[{host}]" if ":" in host else host
            print(f"Trifolium: http://{address}:{port}/ (API: /v1)", file=sys.stderr, flush=True)

    if replicas > 1:
        with listen(host, port) as listener:  # is it free? Ray would retry for a while, and not say so
            port = listener.getsockname()[1]
        check(dtype)
        serve_replicas(
            replicas,
            settings,
            model=model,
            adapter=o.named(adapter),
            skills=o.named(skills),
            dtype=cast(DTypeName, dtype),
            rows=rows,
            host=host,
            port=port,
            quiet=quiet,
            ready=lambda: announce(port),
        )
        return

    def load(name: str) -> LM:
        return o.load_model(name, "auto", "auto", rows)

    say = None if quiet else lambda text: print(text, file=sys.stderr)
    lm = o.load_model(model, adapter, dtype, rows, skills=skills, say=say)
    with listen(host, port) as listener, log_to_stderr(quiet=quiet):
        announce(listener.getsockname()[1])
        gc.freeze()  # what is there now stays: looking through it again and again would hold up answers
        Server(create_app(lm, settings, load), drain=drain).run(sockets=[listener])
