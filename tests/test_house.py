"""The house holds: imports point one way, a name means one thing, and the code does not grow.

`house.json` keeps the lines of code of each folder, and what still breaks a rule. Both may only
become less: `python tests/test_house.py` writes what there is now, where that is less.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("house.json")
TREES = ("robot_rl", "policies", "drivers", "launch")
# From the ground up: a folder, or a file at the top of robot_rl, may import those of its own row
# and of the rows above it.
LAYERS = (
    ("policies",),
    ("errors", "plugins"),
    ("processes",),
    ("run", "wire", "safety"),
    ("config",),
    ("data",),
    ("replay",),
    ("env",),
    ("ros", "console", "rewards"),
    ("evaluation",),
    ("learning",),
    ("actor", "learner"),
    ("bench", "commands"),
    ("cli", "robot_rl"),
    ("drivers", "launch"),
    ("extras",),
)
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
# Modules that have one role, each for another device, extra or family.
ROLES = ("base", "node", "plugin", "sim", "topics")


def modules() -> dict[str, Path]:
    """Name → file of all modules of the product, relative to the checkout."""
    files = (p.relative_to(ROOT) for tree in TREES for p in sorted((ROOT / tree).rglob("*.py")))
    return {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p for p in files}


def folder(module: str) -> str:
    """What a module belongs to: a row of `LAYERS` has its name."""
    top, *rest = module.split(".")
    return rest[0] if top == "robot_rl" and rest else top


def is_extra(module: str) -> bool:
    return module.startswith("robot_rl.extras")


def parsed(file: Path) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def imports() -> dict[str, set[str]]:
    """Module → those of ours that it imports, at once or when a function is called."""
    known = modules()
    found: dict[str, set[str]] = {}
    for module, file in known.items():
        names: set[str] = set()
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file} imports by its own place"
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        found[module] = set()
        for name in names:
            while name and name not in known:
                name = name.rpartition(".")[0]
            found[module] |= {name} - {"", module}
    return found


def reached(module: str, arrows: Mapping[str, set[str]]) -> set[str]:
    """All that a module imports, by way of others too."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        new = arrows[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def faults() -> Counter[str]:
    """What breaks a rule → how often."""
    arrows, found = imports(), Counter[str]()
    behind = {module: reached(module, arrows) for module in arrows}
    for module, others in arrows.items():
        for other in others:
            if LEVEL[folder(other)] > LEVEL[folder(module)]:
                found[f"arrow back: {folder(module)} -> {folder(other)}"] += 1
        if module in behind[module]:
            found[f"in a circle: modules of {folder(module)}"] += 1
    stems = Counter(p.stem for p in modules().values() if p.name != "__init__.py")
    of_makers = Counter(p.stem for p in modules().values() if p.parts[0] == "drivers")
    for name, count in stems.items():
        if count > 1 and name not in ROLES and count > of_makers[name]:
            found[f"modules named {name}"] = count
    classes = Counter(
        node.name
        for file in modules().values()
        for node in parsed(file).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    found.update({f"classes named {name}": n for name, n in classes.items() if n > 1})
    return found


def lines_of_code(text: str) -> int:
    """Lines of a module without blanks, comments and docstrings."""
    passing = (
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in passing:
            lines.update(range(token.start[0], token.end[0] + 1))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def counted() -> dict[str, int]:
    """Folder → lines of code, those of each extra apart."""
    found: dict[str, int] = defaultdict(int)
    for module, file in modules().items():
        parts = module.split(".")
        place = f"extras/{parts[2]}" if is_extra(module) and len(parts) > 2 else folder(module)
        found[place] += lines_of_code((ROOT / file).read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def totals(lines: Mapping[str, int]) -> dict[str, int]:
    return {
        "core": sum(n for name, n in lines.items() if not name.startswith("extras")),
        "whole": sum(lines.values()),
    }


def table() -> dict[str, dict[str, int]]:
    content: dict[str, dict[str, int]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return content


def test_imports_point_one_way_and_a_name_means_one_thing():
    known = table()["faults"]
    more = {fault: count for fault, count in faults().items() if count > known.get(fault, 0)}
    assert not more, f"new against {TABLE.name}: {more}"


def test_the_core_names_no_extra():
    named = re.compile(r"robot_rl\.extras\.\w")
    yaml = [p.relative_to(ROOT) for p in sorted((ROOT / "configs").rglob("*.yaml"))]
    files: Iterator[Path] = (f for name, f in modules().items() if not is_extra(name))
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in (*files, *yaml)}
    assert [str(file) for file, text in texts.items() if named.search(text)] == []


def test_the_code_does_not_grow(capsys):
    before, now = table()["lines"], counted()
    with capsys.disabled():
        print("\nlines of code, and in the table:")
        for name in sorted({*before, *now}):
            print(f"  {name:<20} {now.get(name, 0):>6} {before.get(name, 0):>6}")
        for name, count in totals(now).items():
            print(f"  {name:<20} {count:>6} {totals(before)[name]:>6}")
    for name, count in totals(now).items():
        assert count <= totals(before)[name], f"the {name} has grown"


def lower() -> None:
    """Write the table anew, where that is less than what it says."""
    known = table() if TABLE.exists() else None
    lines, found = counted(), dict(sorted(faults().items()))
    if known is not None:
        grown = [n for n, count in totals(lines).items() if count > totals(known["lines"])[n]]
        grown += [name for name, count in found.items() if count > known["faults"].get(name, 0)]
        if grown:
            raise SystemExit(f"not written: {', '.join(grown)} would grow")
    text = json.dumps({"lines": lines, "faults": found}, indent=1)
    TABLE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    lower()
