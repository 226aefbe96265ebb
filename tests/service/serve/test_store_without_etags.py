"""A store whose answers lack the header that tells versions apart: the node refuses it with one precise error, and stops."""

from __future__ import annotations

from pathlib import Path

from tests.support.node import Node
from tests.support.s3_proxy import S3Proxy, without_header
from tests.support.s3_servers import BUCKET, REGION, S3Server


def test_a_store_without_etags_is_refused_at_the_probe(tmp_path: Path, versitygw: S3Server) -> None:
    with S3Proxy(versitygw.endpoint) as proxy:
        proxy.always(without_header("ETag"))
        environment = {"AWS_ENDPOINT_URL": proxy.endpoint, "AWS_REGION": REGION}
        node = Node(tmp_path, store=f"s3://{BUCKET}/without-etags", environment=environment)
        try:
            node.spawn()
            assert node.wait() == 1
            said = node.output_path.read_text()
            node.environment["AWS_ENDPOINT_URL"] = versitygw.endpoint  # a store that sends ETags, as S3 does
            node.start()
        finally:
            node.kill()
    assert "answers without ETag" in said
    assert "Traceback" not in said
