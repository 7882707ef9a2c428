#!/usr/bin/env python3
"""Prints the numbers of the structure: per crate its lines of code, the files flat at its top, and
the files and folders that import each other in circles.

    contrib/structure.py                 every crate of the workspace
    contrib/structure.py ult na/sm -v    these crates, with the members of each circle

Lines of code are those that are neither blank nor comments nor tests. Imports are found by text, in
`use` and in paths that begin with `crate`, `super` or `self`; a name that a module re-exports
counts as an import of the file that has it. The parent of a `mod` is no import.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = re.compile(r"(^|/)(\w*tests?|conformance)(/|\.rs$)|_tests?\.rs$")


def sources(crate):
    """The files of a crate without its tests: path below `src` -> text without tests and comments."""
    found = {}
    for path in sorted((crate / "src").rglob("*.rs")):
        name = path.relative_to(crate / "src").as_posix()
        if not TESTS.search(name):
            text = path.read_text().split("\n#[cfg(test)]\nmod ")[0]
            found[name] = re.sub(r"(?m)//.*$", "", text)
    return found


def module(name):
    parts = name.removesuffix(".rs").split("/")
    return tuple(parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts)


def expand(tree):
    """The paths of a `use` tree: `a::{b, c::d}` -> `a::b`, `a::c::d`."""
    tree = " ".join(tree.split())
    if "{" not in tree:
        return [tree.split(" as ")[0].strip()] if tree.strip() else []
    head, body = tree.split("{", 1)
    body, depth, part, paths = body[: body.rfind("}")], 0, "", []
    for c in body + ",":
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            paths += [head.strip() + path for path in expand(part)]
            part = ""
        else:
            part += c
    return paths


def imports(files):
    """File -> files that it imports."""
    modules = {module(name): name for name in files}
    uses = re.compile(r"(?m)^\s*(pub(?:\([a-z ]+\))? )?use ([^;]+);")

    def start(at, path):
        segments = path.split("::")
        if segments[0] == "crate":
            return (), segments[1:]
        while segments and segments[0] in ("self", "super"):
            at = at[:-1] if segments.pop(0) == "super" else at
        return at, segments

    exports = {}
    for name, text in files.items():
        for public, tree in uses.findall(text):
            for path in expand(tree) if public else []:
                at, segments = start(module(name), path)
                while segments and at + (segments[0],) in modules:
                    at += (segments.pop(0),)
                if segments:
                    exports[module(name), segments[0]] = at

    def resolve(at, segments):
        while segments:
            if at + (segments[0],) in modules:
                at += (segments.pop(0),)
            elif exports.get((at, segments[0]), at) != at:
                at = exports[at, segments[0]]
            else:
                break
        return at

    edges = {}
    for name, text in files.items():
        paths = [path for public, tree in uses.findall(text) if not public for path in expand(tree)]
        paths += re.findall(r"\b(?:crate|super|self)(?:::\w+)+", uses.sub("", text))
        found = {resolve(*start(module(name), path)) for path in paths
                 if re.match(r"(crate|super|self)\b", path)}
        edges[name] = {modules[to] for to in found if to in modules} - {name}
    return edges


def circles(edges):
    """The strongly connected parts of more than one node, the largest first (Tarjan)."""
    index, low, stack, parts = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in edges.get(node, ()):
            if to not in index:
                visit(to)
            if to in stack:
                low[node] = min(low[node], low[to])
        if low[node] == index[node]:
            at = stack.index(node)
            parts.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for node in edges:
        if node not in index:
            visit(node)
    return sorted((part for part in parts if len(part) > 1), key=len, reverse=True)


def main(arguments):
    verbose = "-v" in arguments
    named = [ROOT / name for name in arguments if name != "-v"]
    every = {path.parent for path in ROOT.rglob("Cargo.toml") if "target" not in path.parts}
    crates = named or sorted(crate for crate in every if (crate / "src").is_dir())
    total = 0
    print(f"{'crate':18} {'code':>6} {'flat':>4}  circles of files; of folders")
    for crate in crates:
        files = sources(crate)
        code = sum(bool(line.strip()) for text in files.values() for line in text.splitlines())
        total += code
        edges = imports(files)
        folders = {}
        for name, to in edges.items():
            folders.setdefault(name.split("/")[0], set()).update(n.split("/")[0] for n in to)
        of_files, of_folders = circles(edges), circles(folders)
        sizes = [", ".join(str(len(part)) for part in parts) or "none"
                 for parts in (of_files, of_folders)]
        flat = sum("/" not in name for name in files)
        name = crate.relative_to(ROOT).as_posix()
        print(f"{name if name != '.' else 'margo (src)':18} {code:6} {flat:4}  {'; '.join(sizes)}")
        for part in (of_files + of_folders) if verbose else []:
            print("    " + " ".join(part))
    print(f"{'together':18} {total:6}")


main(sys.argv[1:])
