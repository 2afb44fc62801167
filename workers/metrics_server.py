"""Serves the metrics of a worker's processes on a port of its own: `python -m workers.metrics_server HOST PORT PARENT`.

A process beside the worker's, not a thread in it: the worker forks, and whoever is forked would hold the port.
"""

from __future__ import annotations

import os
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from schemas.logs import configure_logging
from schemas.settings import METRICS_FOLDER_VARIABLE, environment_name
from workers.metrics_folder import MetricsFolder
from workers.parent_watch import watch_parent

#: Pause before the port is tried again: an earlier run may still be ending.
BIND_RETRY_S = 1.0
REQUEST_TIMEOUT_S = 10

logger = structlog.get_logger(__name__)


def serve(host: str, port: int, folder: MetricsFolder, parent: int) -> None:
    """Serve `/metrics` until the process `parent` is gone."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND, "only /metrics is served here")
                return
            body = folder.expose()
            self.send_response(HTTPStatus.OK)
            self.send_header("content-type", CONTENT_TYPE_LATEST)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's spelling
            logger.debug("request", said=format % args)

    watch_parent(parent, lambda: os._exit(0), 0)
    said = False
    while True:
        try:
            server = ThreadingHTTPServer((host, port), Handler)
            break
        except OSError as error:
            if not said:
                logger.error("the metrics cannot be served; trying on", port=port, error=str(error))  # noqa: TRY400
            said = True
            time.sleep(BIND_RETRY_S)
    logger.info("metrics are served", host=host, port=port)
    server.serve_forever()


if __name__ == "__main__":
    configure_logging(format=os.environ.get(environment_name("log_format"), "auto"))
    serve(sys.argv[1], int(sys.argv[2]), MetricsFolder(Path(os.environ[METRICS_FOLDER_VARIABLE])), int(sys.argv[3]))
