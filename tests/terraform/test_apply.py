"""The dev environment, applied to moto: the resources are as intended, a commit reaches its queue, and a destroy removes them
all.

moto shows that the calls are well formed and which resources they leave, not that AWS's own permissions and quotas allow them.
moto does not run functions without Docker, so the test hands the queue's messages to the handler.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from lambdas.environment import Settings
from lambdas.verify_commit import handle
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.s3_blocking import BlockingS3Store
from tests.lambdas.support import Context, World
from tests.support import s3_servers
from tests.support.clock import SeededRng
from tests.support.node import ROOT
from tests.terraform.support import Terraform, terraform_missing

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(900)]

BUCKET = "tidelog-terraform-test"
NAME = "tidelog-dev-verify-commit"


def client(service: str, endpoint: str) -> Any:
    make: Any = boto3.client
    return make(
        service,
        endpoint_url=endpoint,
        region_name=s3_servers.REGION,
        aws_access_key_id=s3_servers.ACCESS_KEY,
        aws_secret_access_key=s3_servers.SECRET_KEY,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("package") / "verify_commit.zip"
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lambda_package.py"), "--output", str(output)], check=True, timeout=300
    )
    return output


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Iterator[Terraform]:
    """The dev environment, applied; destroyed after the tests, even if some fail."""
    if reason := terraform_missing():
        pytest.skip(reason)
    with s3_servers.moto_server() as server:
        terraform = Terraform(tmp_path_factory.mktemp("terraform"), server.endpoint)
        if reason := terraform.init():
            pytest.skip(reason)
        variables = terraform.variables(BUCKET, package)
        said = terraform.run("apply", "-auto-approve", "-input=false", *variables)
        assert "Apply complete" in said
        yield terraform
        said = terraform.run("destroy", "-auto-approve", "-input=false", *variables)
        assert "Destroy complete" in said
        assert client("s3", server.endpoint).list_buckets()["Buckets"][-1]["Name"] == s3_servers.BUCKET
        assert "QueueUrls" not in client("sqs", server.endpoint).list_queues()
        assert client("lambda", server.endpoint).list_functions()["Functions"] == []


def endpoint_of(terraform: Terraform) -> str:
    assert terraform.endpoint is not None
    return terraform.endpoint


def test_the_bucket_is_private_encrypted_and_unversioned(applied: Terraform) -> None:
    s3 = client("s3", endpoint_of(applied))
    blocked = s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert blocked == dict.fromkeys(blocked, True) and len(blocked) == 4
    (rule,) = s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    assert rule["BucketKeyEnabled"]
    assert s3.get_bucket_versioning(Bucket=BUCKET).get("Status") != "Enabled"
    key = rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"]
    assert client("kms", endpoint_of(applied)).get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]


def test_the_function_is_wired_as_its_handler_expects(applied: Terraform) -> None:
    found = client("lambda", endpoint_of(applied)).get_function_configuration(FunctionName=NAME)
    assert (found["Runtime"], found["Handler"]) == ("python3.11", "lambdas.verify_commit.handler")
    variables = found["Environment"]["Variables"]
    assert (variables["TIDELOG_STORE"], variables["TIDELOG_READER"]) == (f"s3://{BUCKET}/live/", "verify-commit")
    sqs = client("sqs", endpoint_of(applied))
    queue = sqs.get_queue_url(QueueName=f"{NAME}-hints")["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert int(attributes["VisibilityTimeout"]) == 6 * found["Timeout"]
    assert json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].endswith("-dead-letters")
    policy = client("iam", endpoint_of(applied)).get_role_policy(RoleName=NAME, PolicyName=NAME)["PolicyDocument"]
    assert [found["Sid"] for found in policy["Statement"]][:2] == ["ReadHistory", "KeepItsOwn"]
    alarms = client("cloudwatch", endpoint_of(applied)).describe_alarms()["MetricAlarms"]
    assert {alarm["AlarmName"] for alarm in alarms} == {f"{NAME}-dead-letters", f"{NAME}-damaged"}


async def test_a_commit_reaches_the_queue_and_its_ranges_are_checked(applied: Terraform, tmp_path: Path) -> None:
    endpoint = endpoint_of(applied)
    s3, sqs = client("s3", endpoint), client("sqs", endpoint)
    queue = sqs.get_queue_url(QueueName=f"{NAME}-hints")["QueueUrl"]
    world = World(tmp_path)
    for _ in range(3):
        await world.extend()
    for info in world.store.list(""):
        s3.put_object(Bucket=BUCKET, Key=f"live/{info.key}", Body=world.store.get(info.key).data)
    records = []
    while messages := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            records.append({"messageId": message["MessageId"], "body": message["Body"]})
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    location = StoreLocation.parse(f"s3://{BUCKET}/live", endpoint=endpoint)
    session = boto3.session.Session(s3_servers.ACCESS_KEY, s3_servers.SECRET_KEY, region_name=s3_servers.REGION)
    store = BlockingS3Store(location, session=session)
    settings = Settings(location, "verify-commit")
    answer = handle({"Records": records}, Context(), settings, store, SystemClock(), SeededRng(1))
    assert answer == {"batchItemFailures": []}
    verdicts = [json.loads(store.get(info.key).data) for info in store.list("") if info.key.endswith(".verdict")]
    assert [(found["base"], found["verdict"]) for found in verdicts] == [(0, "sound"), (10, "sound"), (20, "sound")]


def test_a_second_plan_changes_nothing_that_matters(applied: Terraform, package: Path) -> None:
    """moto returns a redrive policy with other blanks, so the plan changes it and the queue's policy."""
    said = applied.run("plan", "-input=false", *applied.variables(BUCKET, package))
    assert "0 to add, 2 to change, 0 to destroy" in said or "No changes" in said
    changed = [line.split()[1] for line in said.splitlines() if "will be updated in-place" in line]
    assert set(changed) <= {"module.lambdas.aws_sqs_queue.hints", "module.lambdas.aws_sqs_queue_policy.hints"}
