"""S3 servers that tests start and stop: moto and versitygw, on a free port of the loopback interface.

moto runs behind one lock around its WSGI app. Its put first checks the existing key and then stores: without the lock,
racing conditional writes of large bodies could both win. versitygw is a real S3 server over a plain directory;
`install_versitygw.py` builds it once, and where that fails the fixture skips with the reason.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.children import start_child
from tests.support.ports import free_port

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ACCESS_KEY = "tidelogtest"
SECRET_KEY = "tidelogsecret"
REGION = "us-east-1"
#: The bucket that every fixture creates; tests separate their objects by prefix.
BUCKET = "tidelog-test"

VERSITYGW = Path(__file__).resolve().parents[2] / ".cache" / "bin" / "versitygw"
START_SECONDS = 60

#: Makes the AWS SDKs of this process and its children use the test servers' keys, and no other settings.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_FOREIGN = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_MAX_ATTEMPTS")


@dataclass
class S3Server:
    name: str
    endpoint: str
    process: subprocess.Popen[bytes]
    directory: Path | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @cached_property
    def client(self) -> S3Client:
        """A blocking client without retries, for a test's own requests."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def create_bucket(self, name: str) -> None:
        self.client.create_bucket(Bucket=name)

    def stop(self) -> None:
        """Ends the server and waits for its exit. moto gets SIGKILL, because SIGTERM takes seconds and moto holds nothing
        durable."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if self.directory is None else signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def set_environment() -> None:
    """Points the SDKs of this process and its children at the test keys."""
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)


@contextmanager
def moto_server() -> Iterator[S3Server]:
    port = free_port()
    yield from _serving("moto", port, [sys.executable, __file__, str(port)], ENVIRONMENT, None)


@contextmanager
def versitygw_server(directory: Path, *, arguments: tuple[str, ...] = ()) -> Iterator[S3Server]:
    """`directory` holds the buckets. Call `versitygw_missing` first."""
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(VERSITYGW), "--keep-alive", "-q", *arguments, "-p", f"127.0.0.1:{port}", "posix", str(directory)]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    yield from _serving("versitygw", port, command, keys, directory)


def versitygw_missing() -> str | None:
    """Why versitygw cannot run here, or None. Builds it if necessary."""
    from tests.support.install_versitygw import install

    return install(VERSITYGW)


def _serving(
    name: str, port: int, command: list[str], environment: dict[str, str], directory: Path | None
) -> Iterator[S3Server]:
    process = start_child(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,  # no bytes come: the pipe's end tells moto that this process is gone
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = S3Server(name, f"http://127.0.0.1:{port}", process, directory)
    atexit.register(server.stop)
    try:
        _wait_until_listening(server, port)
        server.create_bucket(BUCKET)
        yield server
    finally:
        server.stop()
        atexit.unregister(server.stop)


def _wait_until_listening(server: S3Server, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.name} ended at its start with {server.process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"{server.name} does not listen on {port} after {START_SECONDS} s")


def _serve_moto(port: int) -> None:
    import threading
    from typing import Any

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    app: Any = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ: Any, start_response: Any) -> Any:
        with lock:
            return app(environ, start_response)

    def end_with_the_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    run_simple("127.0.0.1", port, one_at_a_time, threaded=True)


if __name__ == "__main__":
    _serve_moto(int(sys.argv[1]))
