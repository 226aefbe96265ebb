"""Rules for a readable source tree: sizes of files and functions, names of classes, headers and purity of modules.

`import-linter` refuses imports; this module checks what it cannot see. Each rule is a function from source text to findings,
and is shown to find what it forbids in a sample that has it.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

#: One worker runs these tests, so that the repository is parsed once.
pytestmark = pytest.mark.xdist_group("tidy")

ROOT = Path(__file__).parents[1]
PRODUCT = ("tidelog/", "storage_tiers/", "grpc_api/", "kafka_gateway/", "service/", "lambdas/", "spark/")
MOST_LINES = 500
MOST_LINES_OF_A_FUNCTION = 70
MOST_ARGUMENTS = 8
#: The options of a command are its arguments, so commands are exempt; these two functions take the fields of a value.
MANY_ARGUMENTS = {"storage_tiers/records/builder.py": ["build_batch"], "storage_tiers/hot/flush.py": ["__init__"]}
COMMANDS = "service/cli/"
#: The number of words that a module's first sentence needs besides those of its own name.
LEAST_WORDS = 4
PURE_CONTRACT = "pure modules know no clock, no chance, no loop and no socket"

#: A pure module imports nothing of these: clocks, chance, loops, threads, processes, sockets, files, the environment.
IMPURE_MODULES = {
    "asyncio",
    "fcntl",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
} | {*("shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid")}
#: A pure module uses no attribute of these names: a loop's timers and tasks, a clock, chance, a file.
IMPURE_ATTRIBUTES = {"call_at", "call_later", "call_soon", "create_task", "run_in_executor", "urandom"} | {
    *("monotonic", "perf_counter", "process_time", "thread_time", "utcnow", "today")
}
IMPURE_BUILTINS = {"input", "open", "print"}
#: Exceptions: names that one pure module may use.
ALLOWED = {"storage_tiers.hot.leader_epochs": {"open"}}  # `read_checkpoint`, as its header says

#: A header that claims purity: not "Pure but for", which claims none, and not Cython's "pure-Python".
CLAIM = re.compile(r"\bPure\b(?!-Python| but)|: pure\b")

#: A sentence begins with its subject; failures and answers are named instead of people who are told; words that read as if
#: translated have a plain one: continue, issue, the common case, spare, previous, no longer, replace.
UNPLAIN = re.compile(
    r"(?:^|(?<=[.;!?] ))(?:Of|What|Who|Which|Whoever|Whatever) |\b(?:(?:go|goes|went|gone) on|(?:give|gives|given) out)\b"
    r"|\b(?i:told|whom|nobody|somebody|anew|likewise|weighed|any more|(?:as|are) most|to spare|of before|all the same"
    r"|heard from|in the place of|takes? the place of)\b"
)


# --- the rules ------------------------------------------------------------------------------------------------------------
def functions_too_long(tree: ast.AST) -> list[str]:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [each.name for each in found if (each.end_lineno or 0) - each.lineno + 1 > MOST_LINES_OF_A_FUNCTION]


def functions_of_too_many_arguments(tree: ast.AST) -> list[str]:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [each.name for each in found if len(arguments(each.args)) > MOST_ARGUMENTS]


def arguments(of: ast.arguments) -> list[str]:
    named = [each.arg for each in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
    return [name for name in named if name not in ("self", "cls")]


def imported(tree: ast.AST) -> set[str]:
    """Modules, or names of modules, that a module imports anywhere, including imports for type checkers alone."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """The modules that import each other, directly or through others, and the modules between two such circles."""
    left = {module: others & imports.keys() - {module} for module, others in imports.items()}
    while True:
        needed = set[str]().union(*left.values())
        ends = {module for module, others in left.items() if not others or module not in needed}
        if not ends:
            return set(left)
        left = {module: others - ends for module, others in left.items() if module not in ends}


def classes_of(tree: ast.AST) -> list[str]:
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def says_what_it_is_for(tree: ast.Module, name: str) -> bool:
    """A header whose first sentence says more than the module's name does."""
    header = ast.get_docstring(tree) or ""
    sentence = re.split(r"[.!?](?:\s|$)", header.split("\n\n")[0], maxsplit=1)[0]
    words = {word.lower() for word in re.findall(r"[^\W\d_]{2,}", sentence)}
    return len(words - set(name.split("_"))) >= LEAST_WORDS


def claims_to_be_pure(tree: ast.Module) -> bool:
    return CLAIM.search(ast.get_docstring(tree) or "") is not None


def impurities(tree: ast.AST) -> list[str]:
    """Names in the source that a pure module may not use. Imports for type checkers alone do not count."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: list[str] = []
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.partition(".")[0] in IMPURE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            if not node.level and (node.module or "").partition(".")[0] in IMPURE_MODULES:
                found.append(node.module or "")
        elif isinstance(node, ast.Attribute):
            found += [node.attr] if node.attr in IMPURE_ATTRIBUTES else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            found.append(node.func.id)
    return found


def named_twice(classes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Class names that stand for two things, from (name, file)."""
    places = defaultdict(list)
    for name, path in classes:
        places[name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def comments_of(source: str) -> list[str]:
    """Comments, those on adjacent lines as one."""
    found: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, row = token.string.lstrip("#: "), token.start[0]
            if row == last + 1:
                found[-1] += f" {text}"
            else:
                found.append(text)
            last = row
    return found


def unplain_names(tree: ast.AST) -> list[str]:
    """Names of tests with words that `UNPLAIN` finds."""
    found = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [name for name in found if name.startswith("test_") and UNPLAIN.search(name.replace("_", " "))]


def unplain_page(page: str) -> list[str]:
    """The findings of `unplain_prose` for a Markdown page: its paragraphs, and the cells of its tables."""
    paragraphs = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL).split("\n\n")
    texts = [" ".join(cell.split()) for each in paragraphs for cell in re.split(r"\||\n(?:- |\d+\. )", each)]
    return [match.group() for text in texts for match in UNPLAIN.finditer(text.removeprefix("- "))]


def unplain_prose(source: str) -> list[str]:
    """Sentences of docstrings and comments without a subject in front, and words that read as if translated."""
    texts = comments_of(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts += [" ".join(each.split()) for each in (ast.get_docstring(node) or "").split("\n\n")]
    return [match.group() for text in texts for match in UNPLAIN.finditer(text)]


# --- the tree -------------------------------------------------------------------------------------------------------------
@cache
def sources() -> dict[str, str]:
    """Path to text of every Python file that somebody wrote: none that protoc made."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, capture_output=True, check=True
    )
    paths = [path for path in listed.stdout.decode().split() if not re.search(r"_pb2(_grpc)?\.py$", path)]
    return {path: (ROOT / path).read_text() for path in paths if (ROOT / path).exists()}


@cache
def trees() -> dict[str, ast.Module]:
    return {path: ast.parse(text) for path, text in sources().items()}


def module_of(path: str) -> str:
    return path.removeprefix("spark/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def listed_as_pure() -> frozenset[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"] == PURE_CONTRACT)
    return frozenset(contract["source_modules"])


def product() -> Iterator[tuple[str, ast.Module]]:
    return ((path, tree) for path, tree in trees().items() if path.startswith(PRODUCT))


def test_no_file_is_too_long() -> None:
    lengths = {path: text.count("\n") for path, text in sources().items()}
    assert len(lengths) > 500
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_no_function_is_too_long() -> None:
    assert {path: found for path, tree in trees().items() if (found := functions_too_long(tree))} == {}


def test_no_function_of_the_product_takes_too_many_arguments() -> None:
    found = {path: functions_of_too_many_arguments(tree) for path, tree in product() if not path.startswith(COMMANDS)}
    assert {path: names for path, names in found.items() if names} == MANY_ARGUMENTS


def test_no_two_modules_of_the_product_import_each_other() -> None:
    """import-linter sees no imports for type checkers alone, in which such circles hide."""
    assert in_circles({module_of(path): imported(tree) for path, tree in product()}) == set()


def test_no_class_name_of_the_product_means_two_things() -> None:
    assert named_twice((name, path) for path, tree in product() for name in classes_of(tree)) == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path, tree in trees().items() if tree.body and not says_what_it_is_for(tree, Path(path).stem)]
    assert silent == []


def test_sentences_of_the_product_begin_with_a_subject() -> None:
    found = {path: unplain_prose(text) for path, text in sources().items() if path.startswith(PRODUCT)}
    assert {path: words for path, words in found.items() if words} == {}


def test_sentences_of_the_pages_begin_with_a_subject() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    assert {page.name: words for page in pages if (words := unplain_page(page.read_text()))} == {}


def test_names_of_tests_begin_with_a_subject() -> None:
    assert {path: names for path, tree in trees().items() if (names := unplain_names(tree))} == {}


def test_every_module_that_claims_to_be_pure_is_held_to_it() -> None:
    """The claim of a package holds for its modules."""
    claiming = {module_of(path): path for path, tree in product() if claims_to_be_pure(tree)}
    expected = {module for module, path in claiming.items() if not path.endswith("__init__.py")}
    for package in claiming.keys() - expected:
        expected |= {module_of(path) for path, _ in product() if module_of(path).startswith(package + ".")}
    assert sorted(expected - listed_as_pure()) == []


def test_pure_modules_name_nothing_impure() -> None:
    known = {module_of(path): tree for path, tree in product()}
    assert listed_as_pure() <= known.keys()
    found = {module: set(impurities(known[module])) - ALLOWED.get(module, set()) for module in listed_as_pure()}
    assert {module: names for module, names in found.items() if names} == {}


# --- the rules find what they forbid -------------------------------------------------------------------------------------
def forks(tree: ast.AST) -> bool:
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    options = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    return "fork" in names or "preexec_fn" in options


def test_nothing_forks_without_exec() -> None:
    """A forked child inherits locks of threads that it does not have, and gRPC's fork handlers abort it at times."""
    assert [path for path, tree in trees().items() if forks(tree)] == []


@pytest.mark.parametrize("source", ["import os\npid = os.fork()", "run(['x'], preexec_fn=lambda: os.nice(3))"])
def test_a_fork_is_found(source: str) -> None:
    assert forks(ast.parse(source))


def test_a_long_function_is_found() -> None:
    lines = "\n".join(["    pass"] * (MOST_LINES_OF_A_FUNCTION - 1))
    assert functions_too_long(ast.parse(f"class C:\n  async def just(self):\n{lines}\n")) == []
    assert functions_too_long(ast.parse(f"class C:\n  async def over(self):\n{lines}\n    pass\n")) == ["over"]


def test_too_many_arguments_are_found() -> None:
    names = ", ".join(f"a{number}" for number in range(MOST_ARGUMENTS))
    assert functions_of_too_many_arguments(ast.parse(f"class C:\n  async def just(self, {names}): ...")) == []
    assert functions_of_too_many_arguments(ast.parse(f"def over({names}, *, one): ...")) == ["over"]


def test_a_circle_is_found() -> None:
    hidden = "if TYPE_CHECKING:\n    from service.serve.rounds import rounds"
    trees = {
        "service.node": hidden,
        "service.serve.rounds": "from service import node",
        "service.serve.app": "import service.node",
    }
    imports = {module: imported(ast.parse(text)) for module, text in trees.items()}
    assert in_circles(imports) == {"service.node", "service.serve.rounds"}
    assert in_circles(imports | {"service.node": set()}) == set()


def test_a_class_name_is_found_in_any_scope() -> None:
    hidden = ast.parse("def f():\n    class Node: ...\nclass Other: ...")
    assert named_twice([(name, "a.py") for name in classes_of(hidden)] + [("Node", "b.py")]) == {
        "Node": ["a.py", "b.py"]
    }


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("", False),
        ('"""Frames."""', False),
        ('"""Metadata frames. They have lengths and checksums, and a term."""', False),
        ('"""The metadata frames.\n\nWhat follows the first paragraph comes too late for readers."""', False),
        ('"""How a batch of metadata records lies in its log."""', True),
    ],
)
def test_a_header_without_a_purpose_is_found(header: str, says: bool) -> None:
    assert says_what_it_is_for(ast.parse(header + "\nx = 1\n"), "metadata_frames") is says


@pytest.mark.parametrize(
    ("header", "claims"),
    [
        ("Plans. Pure; the caller sleeps.", True),
        ("What to offload next: pure.", True),
        ("Pure: time is an argument.", True),
        ("Pure but for the receiver.", False),
        ("Cython in pure-Python mode.", False),
        ("Pure-Python mode of Cython.", False),
        ("Every change is a pure function of the state.", False),
    ],
)
def test_a_claim_is_found(header: str, claims: bool) -> None:
    assert claims_to_be_pure(ast.parse(f'"""{header}"""')) is claims


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import asyncio.timeouts", ["asyncio.timeouts"]),
        ("from time import perf_counter as now", ["time"]),
        ("import secrets, re", ["secrets"]),
        ("from os import path", ["os"]),
        ("def f():\n    import socket", ["socket"]),
        ("loop.call_later(1, f)", ["call_later"]),
        ("began = clock.perf_counter()", ["perf_counter"]),
        ("with open(path) as file: ...", ["open"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio", []),
        ("from storage_tiers.types import TopicId\nfrom .time import x\nsegment.open(path)\nlimits.now", []),
    ],
)
def test_impure_modules_are_found(source: str, names: list[str]) -> None:
    assert impurities(ast.parse(source)) == names


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""Of two readers one waits."""', ["Of "]),
        ("x = 1  # The log ends. What follows is lost", ["What "]),
        ("# The client\n# is told, and nobody waits", ["told", "nobody"]),
        ('"""It goes on as before, which ids are given out for, as are most."""', ["goes on", "given out", "are most"]),
        ('def f():\n    """First.\n\n    Which one\n    wins."""', ["Which "]),
        ('print("Of two")\n"""The log of what is written."""', []),
    ],
)
def test_unplain_prose_is_found(source: str, words: list[str]) -> None:
    assert unplain_prose(source) == words


def test_unplain_pages_and_names_are_found() -> None:
    page = "# Of\n\nA log\ngoes on.\n\n```sh\n# told\n```\n\n| Who waits | nobody |\n- What comes"
    assert unplain_page(page) == ["goes on", "Who ", "nobody", "What "]
    assert unplain_names(ast.parse("def test_nobody_waits(): ...\ndef nobody(): ...")) == ["test_nobody_waits"]
