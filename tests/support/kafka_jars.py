"""Apache Kafka's own tools, from Maven Central: the judge of our files. Fetched once into `.cache/kafka-<version>`."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

VERSION = "4.2.1"
ARTIFACTS = ("kafka-clients", "kafka-tools", "kafka_2.13")
ROOT = Path(__file__).resolve().parents[2] / ".cache" / f"kafka-{VERSION}"
FETCH_SECONDS = 900
TOOL_SECONDS = 120

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>kafka-jars</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
_TESTS_DEPENDENCY = _DEPENDENCY.replace("</dependency>", "<classifier>test</classifier></dependency>")
_LOGGER = "<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>"


def class_path() -> str:
    """What `java -cp` needs for every tool of Kafka. Fetches the jars if they are missing; CalledProcessError if it cannot."""
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
    """The jar with `LocalTieredStorage`, Kafka's own object store for its tests: a directory."""
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


def compile_class(source: Path, into: Path) -> None:
    """A class of ours against Kafka's, for its class path. CalledProcessError, with what the compiler printed, if it failed."""
    compiler = "jdk.compiler/com.sun.tools.javac.Main"  # `javac` itself comes with a larger package
    jars = ":".join(map(str, sorted(Path(class_path()).parent.glob("*.jar"))))
    command = ["java", "-m", compiler, "-nowarn", "-cp", jars, "-d", str(into), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TOOL_SECONDS)


def run_tool(main_class: str, *arguments: str) -> str:
    """What the tool printed. CalledProcessError, with what it printed, if it failed."""
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(), main_class]
    done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True, timeout=TOOL_SECONDS)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, main_class, done.stdout, done.stderr)
    return done.stdout
