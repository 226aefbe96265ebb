"""`make mutants`: puts small faults into the code, one at a time, and reports those that no test detects.

    python scripts/mutants.py [--count 40] [--seed 1] [--python .venv/bin/python]

The script's own interpreter must have cosmic-ray, which makes the faults. The tests run on the interpreter `--python`, in a
copy of the tree, so this tree does not change. The seed determines a sample with equally many faults from each folder of
`ROOMS`. A change of an annotation does not count as a fault. Tests with the module's name run first, then all tests of its
folder. A fault is detected if a test fails with it, fails again alone, and passes without it. So a failure does not count if
only a busy machine causes it.

A run proves nothing about faults outside its sample. docs/mutants.md lists the survivors and why they are acceptable.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
#: Folders of code, each with the tests that should detect faults in it.
ROOMS = {
    "storage_tiers/hot": ("tests/storage_tiers/hot", "tests/service/broker"),
    "storage_tiers/cold": ("tests/storage_tiers/cold", "tests/storage_tiers/tier", "tests/conformance"),
    "service/broker": ("tests/service/broker", "tests/conformance"),
}
#: The timeout of one run of tests on a faulty tree, in seconds.
TIMEOUT_S = 900
#: pytest's exit code if all tests are deselected.
NO_TESTS = 5
#: Excluded operators. The changes that they make are no faults, or Python itself refuses them.
NO_FAULTS = ("core/NoOp", "core/VariableReplacer", "core/VariableInserter", "core/RemoveDecorator")


@dataclasses.dataclass(frozen=True)
class Mutant:
    module: str
    operator: str
    occurrence: int
    source: str
    mutated: str

    @property
    def diff(self) -> str:
        before, after = self.source.splitlines(), self.mutated.splitlines()
        made = f"{self.module} ({self.operator} #{self.occurrence})"
        return "\n".join(difflib.unified_diff(before, after, self.module, made, n=2, lineterm=""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of faults in the sample (default: all)")
    parser.add_argument("--python", default=str(ROOT / ".venv" / "bin" / "python"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as holder:
        tree = copy_of_the_tree(Path(holder) / "tidelog")
        survivors = []
        mutants = sample(given.count, random.Random(given.seed))
        for number, mutant in enumerate(mutants, 1):
            if given.only and number not in given.only:
                continue
            began = time.monotonic()
            caught = is_caught(tree, mutant, os.path.abspath(given.python))
            survivors += [] if caught else [mutant]
            said = "caught  " if caught else "SURVIVED"
            took = time.monotonic() - began
            print(
                f"{number:3} {said} {mutant.module} {mutant.operator} #{mutant.occurrence} ({took:.0f} s)", flush=True
            )
    print(f"\n{len(survivors)} of {len(given.only or mutants)} survived (seed {given.seed})")
    for mutant in survivors:
        print(f"\n{mutant.diff}")
    return 0


def copy_of_the_tree(tree: Path) -> Path:
    """Copies every file under version control, and the compiled kernels of two packages."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    kernels = (
        str(path.relative_to(ROOT))
        for room in ("storage_tiers", "kafka_gateway")
        for path in (ROOT / room).rglob("*.so")
    )
    for name in (*filter(None, listed.split("\0")), *kernels):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    if (ROOT / ".cache").exists():
        (tree / ".cache").symlink_to((ROOT / ".cache").resolve())
    return tree


# --- the sample -------------------------------------------------------------------------------------------------------
def sample(count: int, chance: random.Random) -> list[Mutant]:
    chosen: list[Mutant] = []
    for place, room in enumerate(ROOMS):
        wanted = count // len(ROOMS) + (place < count % len(ROOMS))
        candidates = [(path, *where) for path in sorted((ROOT / room).rglob("*.py")) for where in faults(path)]
        chance.shuffle(candidates)
        found = (mutant for where in candidates if (mutant := made(*where)) is not None)
        chosen += [mutant for mutant, _ in zip(found, range(wanted), strict=False)]
    return chosen


def faults(path: Path) -> Iterator[tuple[str, int]]:
    """(operator, occurrence) of every fault that cosmic-ray could make."""
    nodes = list(ast_nodes(get_ast(path.read_text())))
    for name in sorted(operator_names()):
        if name not in NO_FAULTS and not get_operator(name).arguments():
            operator = get_operator(name)()
            for occurrence in range(sum(len(list(operator.mutation_positions(node))) for node in nodes)):
                yield name, occurrence


def made(path: Path, operator: str, occurrence: int) -> Mutant | None:
    """Returns the fault. Returns None if the change is not a fault, because Python cannot parse it or parses it to the same
    program."""
    source = path.read_text()
    mutated = mutate_code(source, get_operator(operator)(), occurrence)
    try:
        if mutated is None or program(mutated) == program(source):
            return None
    except SyntaxError:
        return None
    return Mutant(str(path.relative_to(ROOT)), operator, occurrence, source, mutated)


def program(source: str) -> str:
    """The program's syntax tree as text, without annotations, which this project never evaluates."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


# --- the tests --------------------------------------------------------------------------------------------------------
def is_caught(tree: Path, mutant: Mutant, python: str) -> bool:
    room = next(room for room in ROOMS if mutant.module.startswith(room))
    folders = [folder for folder in ROOMS[room] if (tree / folder).exists()]
    name = Path(mutant.module).stem
    own = [str(path) for folder in folders for path in sorted((tree / folder).rglob(f"test_*{name}*.py"))]
    target = tree / mutant.module
    try:
        for tests in (own, folders) if own else (folders,):
            target.write_text(mutant.mutated)
            for test in failing(tree, tests, python):
                with_it = failing(tree, [test], python)
                target.write_text(mutant.source)
                if with_it and not failing(tree, [test], python):
                    return True
                target.write_text(mutant.mutated)
        return False
    finally:
        target.write_text(mutant.source)


def failing(tree: Path, tests: Sequence[str], python: str) -> list[str]:
    """The first few failing tests, or all selected tests if pytest itself fails or times out."""
    command = [
        python,
        "-m",
        "pytest",
        "--maxfail=3",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-m",
        "not faults and not s3",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'spark'}", "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return list(tests)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    if run.returncode in (0, NO_TESTS):
        return []
    return re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", said, re.MULTILINE) or list(tests)


if __name__ == "__main__":
    sys.exit(main())
