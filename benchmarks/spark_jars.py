"""Fetches Spark's own Kafka source and its dependencies from Maven Central, once, into `.cache`.

Maven fetches the jars, and Spark gets their paths in `spark.jars`. `spark.jars.packages` would use Ivy, which ignores Maven's
settings (mirrors, proxies). ARTIFACTS lists every jar, because for transitive dependencies Spark's POMs point Maven to a
repository of their own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark

#: Spark 4.2's Kafka source and its dependencies other than Spark.
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__),
    # Some mirrors lack later versions. Only secured clusters use this jar.
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
FETCH_SECONDS = 900
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>spark-jars</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
"""


def kafka_source() -> list[Path]:
    """Returns the paths of the jars. Raises CalledProcessError if Maven cannot fetch them."""
    folder = Path(__file__).resolve().parents[1] / ".cache" / f"spark-kafka-{pyspark.__version__}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(_POM.format("".join(_DEPENDENCY.format(*each) for each in ARTIFACTS)))
        command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={folder / 'jars'}"], check=True, timeout=FETCH_SECONDS)
        (folder / "complete").touch()
    return sorted((folder / "jars").glob("*.jar"))
