"""The policies of a node and of a reader against the actual bucket requests of their programs: each request is allowed, and
each permission is used by a request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.service.cli.support import tidelog
from tests.support import s3_servers
from tests.support.clients import until
from tests.support.node import ROOT, Node
from tests.support.s3_proxy import Answer, Forward, Request, S3Proxy

pytestmark = pytest.mark.s3

FOLDER = ROOT / "packaging" / "iam"
PREFIX = "iam/cluster"
BUCKET_ARN = f"arn:aws:s3:::{s3_servers.BUCKET}"
KEY_ARN = "arn:aws:kms:us-east-1:123456789012:key/k"
#: Statements granted for needs other than the programs' own requests, with the reason.
WITHOUT_A_REQUEST = {
    "ReadAndWriteEncrypted": "S3 asks KMS in the caller's name",
    "ReadEncrypted": "S3 asks KMS in the caller's name",
}
SETTINGS: dict[str, str | int | bool] = {
    "log.segment.bytes": 24 << 20,
    "log.local.retention.bytes": 1,
    "log.retention.check.interval.ms": 200,
    "tidelog.tier.delete.grace.ms": 500,
    "tidelog.metadata.snapshot.interval.ms": 100,
}
MIB = 1 << 20


@dataclass(frozen=True)
class Call:
    """A permission that a request needs, and the resource it is for."""

    action: str
    resource: str


def calls_of(request: Request) -> list[Call]:
    """The IAM permissions of a request: https://docs.aws.amazon.com/service-authorization, "Actions defined by Amazon S3"."""
    parts = urlsplit(request.path)
    _, bucket, key = [*parts.path.split("/", 2), ""][:3]
    assert bucket == s3_servers.BUCKET, request.path
    query = parse_qs(parts.query, keep_blank_values=True)
    target = f"{BUCKET_ARN}/{unquote(key)}"
    assert b"x-amz-copy-source" not in request.head.lower()
    if not key:
        if request.method == "POST" and "delete" in query:
            keys = re.findall(rb"<Key>(.*?)</Key>", request.body)
            assert keys
            return [Call("s3:DeleteObject", f"{BUCKET_ARN}/{each.decode()}") for each in keys]
        known = {("GET", True): "s3:ListBucketMultipartUploads", ("GET", False): "s3:ListBucket"}
        known |= {("HEAD", False): "s3:ListBucket"}
        return [Call(known[request.method, "uploads" in query], BUCKET_ARN)]
    action = {
        ("GET", False): "s3:GetObject",
        ("HEAD", False): "s3:GetObject",
        ("PUT", False): "s3:PutObject",
        ("PUT", True): "s3:PutObject",
        ("POST", True): "s3:PutObject",
        ("DELETE", False): "s3:DeleteObject",
        ("DELETE", True): "s3:AbortMultipartUpload",
    }[request.method, bool({"uploads", "uploadId"} & set(query))]
    return [Call(action, target)]


def statements(name: str) -> list[dict[str, Any]]:
    text = (FOLDER / f"{name}.json").read_text()
    for placeholder, value in (("BUCKET", s3_servers.BUCKET), ("PREFIX", PREFIX), ("KEY_ARN", KEY_ARN)):
        text = re.sub(rf"\b{placeholder}\b", value, text)
    found: list[dict[str, Any]] = json.loads(text)["Statement"]
    return found


def allowed(statement: dict[str, Any], call: Call) -> bool:
    return call.action in statement["Action"] and any(
        fnmatchcase(call.resource, each) for each in statement["Resource"]
    )


def check(name: str, made: set[Call]) -> None:
    used: dict[str, set[str]] = {}
    for call in made:
        granting = [each["Sid"] for each in statements(name) if allowed(each, call)]
        assert granting, f"{name} may not {call}"
        for sid in granting:
            used.setdefault(sid, set()).add(call.action)
    for each in statements(name):
        if each["Sid"] in WITHOUT_A_REQUEST:
            assert each["Sid"] not in used
        else:
            assert set(each["Action"]) == used.get(each["Sid"]), each["Sid"]


class Recorder:
    """Records the requests through the proxy as permissions."""

    def __init__(self, proxy: S3Proxy) -> None:
        self.proxy = proxy
        self.made: set[Call] = set()
        proxy.always(self._record)

    async def _record(self, request: Request, forward: Forward) -> Answer:
        self.made.update(calls_of(request))
        return await forward(request)

    def has(self, action: str, key: str = "") -> bool:
        return any(call.action == action and key in call.resource for call in self.made)


@pytest.fixture
def recorder(versitygw: s3_servers.S3Server) -> Iterator[Recorder]:
    with S3Proxy(versitygw.endpoint) as proxy:
        yield Recorder(proxy)


def node_at(directory: Path, recorder: Recorder, *flags: str) -> Node:
    store = f"s3://{s3_servers.BUCKET}/{PREFIX}"
    return Node(directory, store=store, settings=SETTINGS, flags=["--s3-endpoint", recorder.proxy.endpoint, *flags])


def produce(node: Node, topic: str, mebibytes: int) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "compression.type": "none"})
    for number in range(mebibytes * 4):
        producer.produce(topic, number.to_bytes(4, "big") * (1 << 16), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def read_from_the_beginning(node: Node, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    until(lambda: consumer.poll(1) is not None, "the first record is read")
    consumer.close()


def seal(node: Node, topic: str) -> None:
    done = tidelog("topic", "seal", topic, "--wait", "-b", node.kafka)
    assert done.code == 0, done.err


def command(recorder: Recorder, *words: str) -> str:
    store = ("--store", f"s3://{s3_servers.BUCKET}/{PREFIX}", "--s3-endpoint", recorder.proxy.endpoint)
    done = tidelog(*words, *store)
    assert done.code == 0, done.err
    return done.out


def test_the_policies_of_node_and_reader_allow_their_requests_and_no_more(
    tmp_path: Path, recorder: Recorder, versitygw: s3_servers.S3Server
) -> None:
    with node_at(tmp_path / "first", recorder) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for future in admin.create_topics([NewTopic("large", 1), NewTopic("small", 1), NewTopic("gone", 1)]).values():
            future.result(60)
        cluster_id = str(admin.describe_cluster().result(60).cluster_id)
        produce(node, "large", 26)
        produce(node, "small", 1)
        produce(node, "gone", 1)
        for topic in ("large", "small", "gone"):
            seal(node, topic)
        until(lambda: not list(node.partition_dir("large").glob("00000000000000000000.log")), "the segment is evicted")
        read_from_the_beginning(node, "large")
        admin.delete_topics(["gone"])["gone"].result(60)
        admin.delete_records([TopicPartition("large", 0, 50)])
        until(lambda: recorder.has("s3:DeleteObject", "/gone/"), "the deleted topic is swept")
        # An unfinished upload, as a node that died leaves it.
        (segment, *_) = (call.resource for call in recorder.made if call.resource.endswith(".log"))
        left = segment.removeprefix(f"{BUCKET_ARN}/").replace(".log", "left.log")
        versitygw.client.create_multipart_upload(Bucket=s3_servers.BUCKET, Key=left)
        until(lambda: recorder.has("s3:AbortMultipartUpload"), "the unfinished upload is aborted")
        assert node.stop() == 0
    written = recorder.made
    recorder.made = set()
    assert cluster_id in command(recorder, "cold", "ls")
    command(recorder, "fsck")
    command(recorder, "restore", cluster_id, "--data-dir", str(tmp_path / "tried"), "--dry-run")
    check("reader", recorder.made)
    recorder.made = set()
    command(recorder, "restore", cluster_id, "--data-dir", str(tmp_path / "second" / "data"), "--verify")
    with node_at(tmp_path / "second", recorder) as node:
        read_from_the_beginning(node, "small")
        assert node.stop() == 0
    check("node", written | recorder.made)


def test_no_policy_allows_everything() -> None:
    for name in ("node", "reader"):
        for each in statements(name):
            assert not any("*" in action for action in each["Action"])
            assert not any(resource.endswith(f"{s3_servers.BUCKET}/*") for resource in each["Resource"])
    assert not any(
        allowed(each, Call(action, f"{BUCKET_ARN}/{PREFIX}/c/cluster.json"))
        for each in statements("reader")
        for action in ("s3:PutObject", "s3:DeleteObject")
    )
