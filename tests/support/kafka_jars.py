"""Apache Kafka's own tools, from Maven Central, which check our files. Fetched once into `.cache/kafka-<version>`."""

from __future__ import annotations

import fcntl
import importlib.metadata
import subprocess
from pathlib import Path

VERSION = "4.2.1"
ARTIFACTS = ("kafka-clients", "kafka-tools", "kafka_2.13")
#: Spark's connector for Kafka, and those of its dependencies that PySpark does not have.
CONNECTOR = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)
ROOT = Path(__file__).resolve().parents[2] / ".cache" / f"kafka-{VERSION}"
FETCH_SECONDS = 900
TOOL_SECONDS = 120
#: Java options for short processes: they start sooner, but never become as fast.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>kafka-jars</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
_TESTS_DEPENDENCY = _DEPENDENCY.replace("</dependency>", "<classifier>test</classifier></dependency>")
_CONNECTOR = (
    f"<dependency><groupId>org.apache.spark</groupId><artifactId>{CONNECTOR[0]}</artifactId>"
    "<version>{}</version></dependency>"
)
_LOGGER = "<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>"


def class_path() -> str:
    """The argument of `java -cp` for every tool of Kafka. Fetches missing jars; CalledProcessError if that fails."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with open(ROOT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (ROOT / "complete").exists():
            dependencies = "".join(_DEPENDENCY.format(name, VERSION) for name in ARTIFACTS) + _LOGGER
            (ROOT / "pom.xml").write_text(_POM.format(dependencies))
            command = ["mvn", "-q", "-B", "-f", str(ROOT / "pom.xml"), "dependency:copy-dependencies"]
            command.append(f"-DoutputDirectory={ROOT / 'jars'}")
            subprocess.run(command, check=True, timeout=FETCH_SECONDS)
            (ROOT / "complete").touch()
    return f"{ROOT / 'jars'}/*"


def tiered_storage() -> Path:
    """The jar with `LocalTieredStorage`, the object store of Kafka's own tests: a directory."""
    folder = ROOT / "tests"
    jar = folder / f"kafka-storage-{VERSION}-test.jar"
    class_path()
    with open(ROOT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            folder.mkdir(exist_ok=True)
            (folder / "pom.xml").write_text(_POM.format(_TESTS_DEPENDENCY.format("kafka-storage", VERSION)))
            command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
            command += [f"-DoutputDirectory={folder}", "-DexcludeTransitive=true"]
            subprocess.run(command, check=True, timeout=FETCH_SECONDS)
    return jar


def streams() -> str:
    """The argument of `java -cp` for Kafka Streams and its own smoke test."""
    folder = ROOT / "streams"
    tools = class_path()
    with open(ROOT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            wanted = _DEPENDENCY.format("kafka-streams", VERSION)
            wanted += "".join(_TESTS_DEPENDENCY.format(name, VERSION) for name in ("kafka-streams", "kafka-clients"))
            (folder / "pom.xml").write_text(_POM.format(wanted))
            command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
            subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, timeout=FETCH_SECONDS)
            (folder / "complete").touch()
    return f"{folder}/*:{tools}"


def spark_connector() -> list[Path]:
    """The jars of Spark's own source and sink for Kafka, beside those that PySpark has."""
    version = importlib.metadata.version("pyspark")  # here, not above: `make lowest` has no PySpark
    folder = ROOT / f"spark-{version}"
    class_path()
    with open(ROOT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            (folder / "pom.xml").write_text(_POM.format(_CONNECTOR.format(version)))
            command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
            command += [f"-DoutputDirectory={folder}", f"-DincludeArtifactIds={','.join(CONNECTOR)}"]
            subprocess.run(command, check=True, timeout=FETCH_SECONDS)
            (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))


def compile_class(source: Path, into: Path) -> None:
    """Compiles one of our classes against Kafka's, into the class path `into`. CalledProcessError with the compiler's output
    if that fails."""
    compiler = "jdk.compiler/com.sun.tools.javac.Main"  # the command `javac` needs a larger package
    jars = ":".join(map(str, sorted(Path(class_path()).parent.glob("*.jar"))))
    command = ["java", *QUICK_START, "-m", compiler, "-nowarn", "-cp", jars, "-d", str(into), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TOOL_SECONDS)


def run_tool(main_class: str, *arguments: str) -> str:
    """Returns the tool's output. CalledProcessError, with that output, if it failed."""
    command = [
        "java",
        "-Xmx256m",
        *QUICK_START,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        class_path(),
        main_class,
    ]
    done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True, timeout=TOOL_SECONDS)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, main_class, done.stdout, done.stderr)
    return done.stdout
