"""Rules of the source: imports point one way, and a tensor names its device."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regmax

ROOT = Path(regmax.__file__).parent
PLUGINS = ROOT.parent / "plugins"
# the chapters from the lowest up: each imports from those above it in this list, and itself
CHAPTERS = (
    ("kernels",),
    ("regularizers",),
    ("domains",),
    ("optimality",),
    ("solvers",),
    ("mapping",),
    ("functional", "nn"),
    ("losses",),
    ("analysis", "integrations", "testing"),
    ("plots",),
    ("cli",),
)
FACE = ("__init__", "__main__")
"""What makes regmax a package and a program: it hands names on."""
MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in sorted(ROOT.rglob("*.py"))
}


def imports(path, name):
    """Dotted names below ``regmax`` that a file imports, at any depth of its code."""
    package = name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                base = base + (node.module.split(".") if node.module else [])
            elif node.module and node.module.split(".")[0] == "regmax":
                base = node.module.split(".")[1:]
            else:
                continue
            for alias in node.names:
                yield resolve([*base, alias.name])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "regmax":
                    yield resolve(parts[1:])


def resolve(parts):
    """The module that a dotted name lives in."""
    for n in range(len(parts), -1, -1):
        head = ".".join(parts[:n])
        for candidate in (head, f"{head}.__init__" if head else "__init__"):
            if candidate in MODULES:
                return candidate
    raise AssertionError(parts)


def floor_of(module):
    (floor,) = [i for i, names in enumerate(CHAPTERS) if module.split(".")[0] in names]
    return floor


def test_every_module_is_in_a_chapter():
    tops = {module.split(".")[0] for module in MODULES}
    assert tops == {name for names in CHAPTERS for name in names} | set(FACE)
    assert len(tops - set(FACE)) <= 14


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module):
    chapter = module.split(".")[0]
    if chapter in FACE:
        return
    for other in imports(MODULES[module], module):
        if other == "__init__":
            assert module == "cli.__init__", f"{module} imports regmax itself"  # the version
        elif other.split(".")[0] != chapter:
            assert floor_of(other) < floor_of(module), f"{module} imports {other}"


def test_import_regmax_gives_every_chapter():
    names = sorted({name for names in CHAPTERS for name in names} - {"cli"})
    code = f"import regmax; [getattr(regmax, name) for name in {names}]"
    subprocess.run([sys.executable, "-c", code], check=True)


def cycles():
    graph = {m: {o for o in imports(p, m) if o != m} for m, p in MODULES.items()}
    found, state, path = [], {}, []

    def visit(m):
        state[m] = "open"
        path.append(m)
        for o in sorted(graph[m]):
            if state.get(o) == "open":
                found.append([*path[path.index(o) :], o])
            elif o not in state:
                visit(o)
        path.pop()
        state[m] = "done"

    for m in sorted(graph):
        if m not in state:
            visit(m)
    return found


def test_no_cycles():
    assert cycles() == []


def plugin_names():
    return sorted(p.name for p in PLUGINS.iterdir() if (p / "__init__.py").exists())


def test_regmax_names_no_plugin():
    names = plugin_names()
    assert len(names) >= 6
    for module, path in MODULES.items():
        text = path.read_text()
        for name in names:
            assert name not in text, f"{module} names {name}"
        assert "plugins/" not in text, module


def plugin_files():
    return sorted(PLUGINS.rglob("*.py"))


@pytest.mark.parametrize("path", plugin_files(), ids=lambda p: str(p.relative_to(PLUGINS)))
def test_plugins_use_public_names(path):
    """Nothing with a leading underscore, and nobody else's plugin."""
    tree = ast.parse(path.read_text())
    own = path.relative_to(PLUGINS).parts[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            parts = [*node.module.split("."), *(a.name for a in node.names)]
        elif isinstance(node, ast.Import):
            parts = [p for a in node.names for p in a.name.split(".")]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            parts = [node.value.id, node.attr]
        else:
            continue
        if parts[0] == "regmax":
            assert not [p for p in parts if p.startswith("_")], (path.name, parts)
        assert parts[0] == own or not parts[0].startswith("regmax_"), (path.name, parts)


def test_no_file_holds_two_ideas():
    for path in [*MODULES.values(), *plugin_files()]:
        assert len(path.read_text().splitlines()) <= 420, path.name


FUNCTIONS = 6
"""Π_Ω, its product with J and max_Ω; sums over shards; losses and attention; products whose bits do
not depend on the batch."""


def test_one_function_differentiates():
    """A new method needs no autograd.Function of its own: this number falls."""
    found = [
        node.name
        for path in [*MODULES.values(), *plugin_files()]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any("autograd.Function" in ast.unparse(base) for base in node.bases)
    ]
    assert len(found) == FUNCTIONS, found


FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace"),
    *("logspace", "normal", "ones", "rand", "randint", "randn", "randperm", "range", "zeros"),
    *("scalar_tensor", "sparse_coo_tensor", "tensor", "tril_indices", "triu_indices"),
}
FOLLOW = {"nn/learnable.py"}
"""Parameters of modules, which torch.device and torch.set_default_device place, as those of
torch.nn."""


def test_each_tensor_names_its_device():
    """torch.device("meta") and torch.set_default_device move all others."""
    files = [p for p in MODULES.values() if str(p.relative_to(ROOT)) not in FOLLOW]
    unnamed = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in [*files, *sorted(PLUGINS.rglob("*.py"))]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "torch"
        and node.func.attr in FACTORIES
        and not any(k.arg in ("device", None) for k in node.keywords)
    ]
    assert not unnamed
