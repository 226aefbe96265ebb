"""The package of `make lambda-package`, unpacked and invoked in a clean interpreter: bucket, notification, queue, handler."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import Producer

from scripts import lambda_package
from tests.faults.clients import create_topic
from tests.support import s3_servers
from tests.support.node import ROOT, Node
from tests.support.s3_servers import S3Server

#: One xdist worker, so that the package is built once.
pytestmark = pytest.mark.xdist_group("lambda-package")

BUCKET = "tidelog-lambda-test"
#: Runs the handler as Lambda does: only the package on the path, and an event as input.
INVOKE = """
import json, logging, sys
sys.path.insert(0, sys.argv[1])
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")
from lambdas.verify_commit import handler
class Context:
    aws_request_id = "request-1"
    def get_remaining_time_in_millis(self): return 900_000
print(json.dumps(handler(json.load(sys.stdin), Context())))
foreign = [m.__file__ for m in list(sys.modules.values()) if "site-packages" in (getattr(m, "__file__", "") or "")]
assert not foreign, foreign
assert "cramjam" in sys.modules and "pyarrow" not in sys.modules and "service" not in sys.modules
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("package") / "verify_commit.zip"
    command = [sys.executable, str(ROOT / "scripts" / "lambda_package.py"), "--output", str(output)]
    subprocess.run(command, check=True, timeout=170)
    return output


@pytest.fixture(scope="module")
def unpacked(package: Path) -> Path:
    folder = package.parent / "unpacked"
    with zipfile.ZipFile(package) as archive:
        archive.extractall(folder)
    return folder


def test_it_fits_and_loads_on_the_runtime(package: Path, unpacked: Path) -> None:
    files = list(lambda_package.files(unpacked))
    assert sum(path.stat().st_size for path in files) < lambda_package.MAX_UNZIPPED
    native = [path for path in files if path.suffix == ".so"]
    assert {path.parts[-2] for path in native} >= {"records", "cramjam", "crc32c"}
    assert all(lambda_package.glibc_needed(path) <= lambda_package.RUNTIME_GLIBC for path in native)
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
    assert "lambdas/verify_commit.py" in names
    assert not [name for name in names if name.startswith(("service/", "kafka_gateway/", "tests/"))]


class Aws:
    """A bucket on moto that notifies a queue as the Terraform module configures it."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        settings: dict[str, Any] = {
            "endpoint_url": server.endpoint,
            "region_name": s3_servers.REGION,
            "aws_access_key_id": s3_servers.ACCESS_KEY,
            "aws_secret_access_key": s3_servers.SECRET_KEY,
        }
        self.s3: Any = boto3.client("s3", **settings)
        self.sqs: Any = boto3.client("sqs", **settings)
        self.s3.create_bucket(Bucket=BUCKET)
        self.queue = self.sqs.create_queue(QueueName="hints")["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        rules = [{"Name": "prefix", "Value": "live/"}, {"Name": "suffix", "Value": ".json"}]
        notify: Any = {"QueueArn": arn, "Events": ["s3:ObjectCreated:*"], "Filter": {"Key": {"FilterRules": rules}}}
        self.s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": [notify]}
        )

    def receive(self) -> list[dict[str, str]]:
        """All messages in the queue, as the event source delivers them; deletes them."""
        found = []
        while messages := self.sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                found.append({"messageId": message["MessageId"], "body": message["Body"]})
                self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        return found

    def documents(self, suffix: str) -> list[dict[str, Any]]:
        listed = self.s3.list_objects_v2(Bucket=BUCKET, Prefix="live/").get("Contents", [])
        wanted = sorted(item["Key"] for item in listed if item["Key"].endswith(suffix))
        return [json.loads(self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()) for key in wanted]


@pytest.fixture
def aws() -> Iterator[Aws]:
    with s3_servers.moto_server() as server:
        yield Aws(server)


def invoke(unpacked: Path, records: list[dict[str, str]], endpoint: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The handler's response, and the events it logged."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", INVOKE, str(unpacked)],
        input=json.dumps({"Records": records}),
        env={**s3_servers.ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint, "TIDELOG_STORE": f"s3://{BUCKET}/live"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"verdict"')]
    return json.loads(done.stdout), lines


@pytest.mark.s3
def test_a_commit_wakes_the_handler(aws: Aws, unpacked: Path, tmp_path: Path) -> None:
    environment = {**s3_servers.ENVIRONMENT, "AWS_ENDPOINT_URL": aws.server.endpoint}
    with Node(tmp_path, store=f"s3://{BUCKET}/live", environment=environment) as node:
        create_topic(node, "orders", configs={"segment.bytes": str(1 << 20)})
        producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 0})
        for number in range(40):
            producer.produce("orders", value=b"%04d" % number * 15_000)
            producer.flush()
        command = [sys.executable, "-m", "service.cli.main", "topic", "seal", "orders", "--wait"]
        subprocess.run([*command, "--bootstrap-server", node.kafka], check=True, cwd=ROOT, timeout=60)
    records = received(aws, lambda bodies: "manifests" in bodies)

    answer, events = invoke(unpacked, records, aws.server.endpoint)
    assert answer == {"batchItemFailures": []}
    verdicts = aws.documents(".verdict")
    assert len(verdicts) == len(events) > 1
    assert {verdict["verdict"] for verdict in verdicts} == {"sound"}
    assert [verdict["base"] for verdict in verdicts] == [0, *(verdict["end"] for verdict in verdicts[:-1])]
    assert (verdicts[-1]["end"], sum(verdict["records"] for verdict in verdicts)) == (40, 40)
    (cursor,) = aws.documents(".cursor")
    assert cursor["commit"] == verdicts[-1]["commit"]

    assert aws.receive() == [], "objects written by the handler trigger no notification"
    assert invoke(unpacked, records, aws.server.endpoint) == ({"batchItemFailures": []}, [])


def received(aws: Aws, enough: Any, seconds: float = 30) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    deadline = time.monotonic() + seconds
    while not enough(json.dumps(found)):
        assert time.monotonic() < deadline, f"only {found}"
        found += aws.receive()
    return found
