"""Installs the tools that the tests run and `pip` does not provide: Kafka's jars, Spark's connector for Kafka, kafkajs,
promtool, the schemas of Kubernetes and versitygw. `python -m tests.support.install_tools`.

All but the last are required. Without versitygw (no Go available) the S3 suites run on moto alone and say so.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support import kafka_jars, kubernetes_schemas, node_packages
from tests.support.install_versitygw import install
from tests.support.promtool import promtool
from tests.support.s3_servers import VERSITYGW


def main() -> int:
    try:
        kafka_jars.class_path()
        kafka_jars.streams()
        kafka_jars.tiered_storage()
        kafka_jars.spark_connector()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"Kafka's jars and Spark's connector cannot be fetched from Maven Central: {error}", file=sys.stderr)
        return 1
    try:
        node_packages.node_path()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"kafkajs cannot be fetched from npm: {error}", file=sys.stderr)
        return 1
    try:
        promtool()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"promtool cannot be fetched from Debian's package prometheus: {error}", file=sys.stderr)
        return 1
    try:
        kubernetes_schemas.folder()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"kubernetes-validate cannot be fetched from PyPI: {error}", file=sys.stderr)
        return 1
    problem = install(VERSITYGW)
    if problem is not None:
        print(f"{problem}; the S3 suites run on moto alone", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
