"""Several replicas of one server behind Ray Serve: each has the model and an engine of its own, on its share of cores.

Ray spreads requests, restarts replicas that die, and can be told of more machines (`ray start`); this file only says
what a replica is. A replica's stored responses and prefix cache are its own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ..api import load
from ..dtypes import DTypeName
from ..errors import UsageError
from .app import create_app
from .log import log_to_stderr
from .settings import ServeSettings

NAME = "trifolium"

SPARE = 64
"""Requests that Ray lets a replica have at once beyond twice as many as it answers."""


def serve_replicas(
    count: int,
    settings: ServeSettings,
    *,
    model: str,
    adapter: str | None,
    skills: str | None,
    dtype: DTypeName,
    rows: int,
    host: str,
    port: int,
    quiet: bool,
    ready: Callable[[], None],
) -> None:
    """Serve `count` replicas until SIGINT or SIGTERM; `ready` is called once they all answer.

    Open answers have `settings.drain` seconds to end. Joins the Ray cluster of $RAY_ADDRESS, if that is set; else one
    is started on this machine, without its dashboard and without reports to its makers. Raises UsageError without Ray.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions
    except ModuleNotFoundError:
        raise UsageError("--replicas needs Ray: pip install 'trifolium[ray]'") from None
    cores = os.cpu_count() or 1
    threads = max(1, cores // count)

    def build() -> Any:
        """The application of one replica, made where it runs."""
        import torch

        torch.set_num_threads(threads)
        lm = load(model, adapter=adapter, skills=skills, dtype=dtype, max_rows=rows, progress=False)
        app = create_app(lm, settings, replica=serve.get_replica_context().replica_tag)
        app.state.log = ExitStack()  # as long as the replica lives
        app.state.log.enter_context(log_to_stderr(quiet=quiet))
        return app

    stopped = threading.Event()
    previous: dict[int, Any] = {}
    try:
        if not os.environ.get("RAY_ADDRESS"):
            cpus = max(cores, count)
            ray.init(include_dashboard=False, num_cpus=cpus, log_to_driver=not quiet, logging_level="ERROR")
        # After Ray has set its own, which would end this process at once.
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, lambda *_: stopped.set())
        serve.start(http_options=HTTPOptions(host=host, port=port), logging_config={"log_level": "ERROR"})
        deployment = serve.deployment(
            name=NAME,
            num_replicas=count,
            # More than a replica answers: it is the replica that says 429, and /health isn't kept waiting by answers.
            max_ongoing_requests=2 * settings.max_open + SPARE,
            graceful_shutdown_timeout_s=settings.drain + 5,
            ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads)}}},
        )
        serve.run(deployment(serve.ingress(build)()).bind(), name=NAME, route_prefix="/")
        ready()
        stopped.wait()
        serve.delete(NAME)  # which lets open answers end; shutdown() alone would cut them off
    finally:
        serve.shutdown()
        ray.shutdown()
        for taken, handler in previous.items():
            signal.signal(taken, handler)
