"""Loops, grids, tiles and tails that are right only up to a size."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place, is_range
from properties.mutants.semantic.places import least
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called, is_launch, words

# Bounds of loops over chunks, blocks or segments; over tokens or keys; over parts in a strided
# loop.
_TURNS, _ROWS, _PARTS = 32, 512, 256
_CHANNELS = 128
# Four programs for each multiprocessor of an H200.
_PROGRAMS = 4 * 132
# Loops within a tile, or over the heads of a group, which `heads` covers.
_SHORT = words("group own LEVELS")


def _is_of_channels(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.endswith("_dim")


@kind("a loop stops after 512 rows, 256 parts or 32 turns")
def capped_loop(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.For(iter=ast.Call(args=[ast.Name(id=stop) as end]) as call) if (
            at.function.on_device and is_range(call) and stop not in _SHORT and stop.islower()
        ):
            cap = _ROWS if stop.startswith("length") else _TURNS
            yield at.put(f"tl.minimum({stop}, {cap})", end)
        case ast.For(iter=ast.Call(args=[ast.Constant(1), ast.BinOp() as end]) as call) if (
            at.function.on_device and is_range(call)
        ):
            yield at.put(f"tl.minimum({at.function.source.of(end)}, {_TURNS})", end)
        case ast.For(iter=ast.Call(args=[start, end, _]) as call) if (
            at.function.on_device
            and is_range(call)
            and isinstance(end, (ast.Name, ast.Subscript))
            and not _is_of_channels(end)
        ):
            first, stop = (at.function.source.of(node) for node in (start, end))
            cap = _PARTS if stop == "parts" else _ROWS
            least = cap if first == "0" else f"{first} + {cap}"
            yield at.put(f"tl.minimum({stop}, {least})", end)
        case ast.While(test=ast.Compare(left=ast.BinOp(left=ast.Name(id=end)))):
            # A binary search, whose upper end is set before it.
            yield from _capped_search(at, end)


def _capped_search(at: Place, end: str) -> Iterator[Change]:
    for node in ast.walk(at.function.node):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.BinOp(right=ast.Name(id=count) as right)
            ) if name == end:
                yield at.put(f"tl.minimum({count}, {_TURNS})", right)


@kind("a loop over a head dim stops at 128 channels")
def capped_dim(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.For(iter=ast.Call(args=[_, end, _]) as call) if is_range(call) and _is_of_channels(
            end
        ):
            yield at.put(f"{least(at)}({at.function.source.of(end)}, {_CHANNELS})", end)


@kind("a tile holds at most 128 channels of a head dim")
def capped_tile(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[ast.Name(id=dim)]) if called(
            at.node
        ) == "next_power_of_2" and dim.endswith("dim"):
            # If a tile may be narrower than the dim, a loop or the grid covers the rest.
            if not _is_within(at, "min"):
                yield at.put(f"min({at.function.source.of(at.node)}, {_CHANNELS})")


def _is_within(at: Place, function: str) -> bool:
    """Whether an expression is inside an argument of a function."""
    node = at.node
    while isinstance(node, ast.expr):
        if called(node) == function:
            return True
        node = at.function.source.parents[node]
    return False


@kind("the grid is capped as for a persistent kernel, which this one is not")
def capped_grid(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Subscript(slice=ast.Tuple(elts=[programs]))) if is_launch(at.node):
            yield at.put(f"min({at.function.source.of(programs)}, {_PROGRAMS})", programs)


@kind("a ragged last tile is skipped if a full one comes before it")
def ragged_tail(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[count, size]) if called(at.node) == "cdiv":
            most = "tl.maximum" if at.function.on_device else "max"
            yield at.put(f"{most}({at.text(count)} // {at.text(size)}, 1)")


@kind("tiles of V are counted by K, or the reverse, if both are wider than 128")
def wrong_dim_when_wide(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[ast.Name(id="key_dim" | "value_dim" as dim) as node, _]) if (
            called(at.node) == "cdiv"
        ):
            other = "value_dim" if dim == "key_dim" else "key_dim"
            if other not in at.function.names:
                return
            if at.function.on_device:
                wide = f"(key_dim > {_CHANNELS}) & (value_dim > {_CHANNELS})"
                yield at.put(f"tl.where({wide}, {other}, {dim})", node)
            else:
                wide = f"min(key_dim, value_dim) > {_CHANNELS}"
                yield at.put(f"{other} if {wide} else {dim}", node)


# Kernels' names for the remaining rows of a sequence, and for the tile's size.
_LEFT = words("left length length_q length_k")
_TILES = {"length_q": "QUERIES", "length_k": "KEYS"}


@kind("a load is masked by the end of the tile, not of the sequence")
def tile_bound(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=given) if called(at.node).startswith(("load", "_load", "_next")):
            for argument in given:
                if not isinstance(argument, ast.Name) or argument.id not in _LEFT:
                    continue
                size = _tile(at, argument.id)
                if size is not None:
                    source = at.function.source
                    texts = [size if each is argument else source.of(each) for each in given]
                    texts += [source.of(keyword) for keyword in at.node.keywords]
                    yield at.put(f"{called(at.node)}({', '.join(texts)})")


def _tile(at: Place, left: str) -> str | None:
    """The first row after the loaded tile, counted like the remaining rows."""
    names = at.function.names
    if left == "left" and "C" in names:
        return "C"
    size = _TILES.get(left)
    return f"first + {size}" if size in names and "first" in names else None
