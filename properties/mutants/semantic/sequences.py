"""Mistakes with unequal lengths, boundaries and empty sequences."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.places import is_missing
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called, is_launch, words


@kind("the length of the first sequence stands for the longest, or the shortest")
def first_for_all(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Name(id="max" | "min"), args=[every], keywords=keywords):
            if isinstance(every, ast.Starred):
                return
            text = at.function.source.of(every)
            if isinstance(every, ast.GeneratorExp) and not text.startswith("("):
                text = f"({text})"
            default = [at.function.source.of(k.value) for k in keywords if k.arg == "default"]
            yield at.put(f"next({', '.join([f'iter({text})', *default])})")


_READ = words("contiguous tolist long")


@kind("boundaries lose their duplicates, and so the empty sequences")
def empty_sequences_dropped(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name) as boundaries, attr=attr)) if (
            name.startswith("cu_seqlens") and attr in _READ
        ):
            yield at.put(f"{name}.unique()", boundaries)


@kind("one packed sequence is taken for a dense batch, and is not checked")
def one_sequence_unchecked(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.If(test=test, body=[*_, ast.Return()]) if is_missing(test, "cu_seqlens"):
            yield at.put(f"{at.function.source.of(test)} or len(cu_seqlens) == 2", test)


@kind("a pack of one token is taken for a dense batch")
def one_token_is_decoding(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[ast.Name(id="q" | "x" | "g" as first), *_], keywords=keywords) if (
            is_launch(at.node)
        ):
            for keyword in keywords:
                if keyword.arg == "PACKED":
                    packed = at.function.source.of(keyword.value)
                    yield at.put(f"{packed} and {first}.shape[1] > 1", keyword.value)


@kind("keys take the boundaries of the queries if there are as many tokens")
def keys_bounded_by_queries(at: Place) -> Iterator[Change]:
    names = at.function.names
    if at.function.on_device or not {"q", "k", "cu_seqlens", "cu_seqlens_k"} <= {*names}:
        return
    match at.node:
        case ast.Call(args=given) if is_launch(at.node) or called(at.node) == "cumulative_gates":
            for argument in given:
                if isinstance(argument, ast.Name) and argument.id == "cu_seqlens_k":
                    equal = "q.shape[1] == k.shape[1]"
                    yield at.put(f"cu_seqlens if {equal} else cu_seqlens_k", argument)


_WHOLE = {
    "rows": words("length"),
    "rows_in_all": words("length"),
    "num_queries": words("length_q length"),
    "num_keys": words("length_k length"),
}


@kind("the length of a sequence stands for that of the whole axis")
def local_for_global(at: Place) -> Iterator[Change]:
    match at.node:
        # Rows of a batch have one length, and packed sequences are one batch row.
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Name(id=name) as whole) if (
            at.function.on_device and not (isinstance(left, ast.Name) and left.id == "batch")
        ):
            for local in _set_before(at) if name in _WHOLE else ():
                if local in _WHOLE[name]:
                    yield at.put(local, whole)
                    return


def _set_before(at: Place) -> list[str]:
    """The names assigned before a place is reached."""
    place, _ = at.function.source.span(at.node)
    return [
        node.id
        for node in ast.walk(at.function.node)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and at.function.source.span(node)[0] < place
    ]
